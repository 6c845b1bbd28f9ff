r"""Is this math answer right? The grader of the benchmarks, and the reward of a training run.

    extract_answer(response) -> str | None     what a response finally answers
    verdict(response, answer) -> bool | None   right, wrong, or not decided within the bounds
    is_correct(response, answer) -> bool       verdict is True: undecided is not right
    is_readable(answer) -> bool                False for a gold answer that is broken

An answer is rewritten until a thing is written in one way only, parsed into sympy objects, and
evaluated: exactly while it is rational, else with mpmath (sympy's arithmetic) at two precisions,
its variables at a few fixed points. sympy itself evaluates nothing, as it could not be stopped, and
text from a model is never executed, nor handed to anything that might. Sizes are checked before
anything is evaluated, and all work is counted (STEPS), so a verdict is a function of the two
strings, and comes in time in any thread and any process.

Where people disagree, this is the policy:

- 25% equals 25 and 0.25, but 25 does not equal 0.25; 60 degrees equals 60 and pi/3.
- A unit says nothing: 5 cm equals 5. A number in base b is its value: 101_2 equals 5.
- A decimal equals what it is the rounding of, from nine digits on; 3.14 is not pi.
- Several solutions are a set: no order, no repetition; {1,2} equals 1,2, but (1,2) does not.
- m + n = 55 says 55 where no equation is asked for; x = 3, y = 4 says 3, 4 in this order.
- y = 2x equals 2x, k = 3 equals 3; equations are equal up to a constant factor. A vector in a
  column equals a tuple.
- Variables are real; where a root or a logarithm is not, nothing is compared.
- The last box counts, and a thought that was not finished holds no answer.
"""

import math
import random
import re
import threading
import unicodedata
from contextlib import suppress
from fractions import Fraction

from mpmath import MPContext, libmp  # sympy's own arithmetic
from sympy import Add, E, Expr, Function, I, Mul, Pow, Rational, S, Symbol, Tuple, oo, pi
from sympy.core.symbol import Str

LONGEST = 2_000  # characters of an answer that is more than one number
STEPS = 20_000  # of all evaluations for one verdict together: well below a second
LOW, HIGH = 50, 200  # digits of the two evaluations


class _Undecided(Exception):
    """Not mathematics as this file knows it, or too large, or undefined."""


# ------------------------------------------------------------------------------- finding the answer

_STOP = re.compile(r"<[|｜]?(?:im_end|/s|e[no][\w▁]+)[|｜]?>|(?!\A)<\|im_start\|>")
_BOX = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
# \boxed{1} and \boxed{2} are one answer
_AND = re.compile(
    r"(\\boxed\{[^{}]*)\}[^.;\n{}]{0,50}?(?:,|\band|\bor)[\s$]*(?:\w ?= ?)?\\boxed\{(?=[^}]*\})")
_NO_CONTENT = re.compile(r"(?:[\W_]|[lc]?dots|text|the|your|final|answer|here)*", re.I)
_MARKED = [re.compile(pattern, re.I) for pattern in (  # what comes first here, counts
    r"(?:answer|réponse|respuesta|antwort|答案)[^.\n:=]{0,60}?(?:\b(?:is|are|est|es|ist)\b|[:=：是为])"
    r"[\s*:]*(?=\S)(.*?)(?:(?<!\.\w)\.(?:\s|$)|$|[\n。])", r"#### *((?!\d+[.)]\s)[-+$\\(\[.\d].*)")]
# words before words, or before mathematics
_PROSE = re.compile(r"(?<![\\\w{])(?!or |and )[A-Za-z]{2,}[:,]? (?:[a-z]{2}|[$\\\d]|[a-z] ?=)|\n")
_SIGN = "-−+*/⁄^=<>≤≥≠≈∈∪±×·⋅"
_NAME = r"(?:(?!a [a-z])[A-Za-z]|[xyz]{2,3}|ab|sin|cos|tan|ln|log|sqrt|pi)(?![A-Za-z'’])"
# **...**, $...$ and its likes, or a run of mathematical characters
_MATH = re.compile(r"\*\*(?=\S)([^*\n]+)\*\*|\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|(?:\\[a-zA-Z]+|(?<!\^)[-−+(\[{\d√∛π¼-¾|]|\.(?=\d)"
    # a letter begins a run, or is tied to it: x + 1, 2πr, but not the units of 5 m/s
    rf"|(?<![\w\\'’/])(?<![\d⁰-⁹] ){_NAME}(?=\(| ?[{_SIGN}¹²³⁴-⁹ⁿ]| ?\\(?:[lg]eq?|in|cdot)\b))"
    rf"(?:\\[a-zA-Z{{}},!% ]+|[{_SIGN}()\[\]{{}}\d.,:%!|√∛π∞°²³¹⁰-ⁿ¼-¾ ]"
    rf"|(?:(?<=[{_SIGN}()π²³⁴-⁹])|(?<=[{_SIGN}] )|(?<=\d)(?![mgsLh](?! ?[-+−=]))){_NAME}"
    rf"|(?<=\d )(?:x(?= \d)|ln|log)\b|(?<=, ){_NAME}(?= ?[=<>≤≥]))*(?<![\s,.:])", re.DOTALL)


def extract_answer(response):
    r"""The text of the final answer, or None.

    The last \boxed{} with something in it, and with those before it that it is listed with, else
    what follows "the answer is", else "####", else the last number or expression. Nothing behind
    a stop id counts, nor what was only thought.
    """
    text = _STOP.split(response, maxsplit=1)[0].rpartition("</think>")[2].partition("<think>")[0]
    boxed = _last_boxed(_AND.sub(r"\1, ", _AND.sub(r"\1, ", text)))
    return boxed or _last_said(text[-2 * LONGEST:])


def _last_said(text):
    tail = re.sub(r"\$,?(?: and| or)? \$(?!\$)", ", ", text).strip()  # $1$ and $2$ are one answer
    marked = [match for pattern in _MARKED for match in pattern.findall(tail)[-1:]]
    tail = marked[0].strip(" *") if marked else tail
    if len(tail) < 200 and not _PROSE.search(tail) and _readings(tail):
        return tail
    found = [m[m.lastindex or 0].strip(" *,;:!/$").rstrip(" (.-") for m in _MATH.finditer(tail)]
    # a letter at the start, a bold word at the end, the expressions with numbers, a letter
    choices = re.findall(r"(?:\A\(?(?=[A-H][.:)]\s)|\*\*(?=\w{2,}\W*\Z))([A-Za-z]+)", tail) or [
        x for x in found if re.search(r"\d|\\begin|=|[½-¾∞]|\\infty|\\text", x)] or re.findall(
        r"(?<![\w'\\])\(?(A(?! [a-z])|[B-H])\)?(?![\w'])", tail) or found or [""]
    return choices[0 if marked else -1] or None  # the first behind "answer is", else the last


def _last_boxed(text):
    opened, last = [], (-1, 0, 0)  # of boxes in boxes, the innermost starts last
    for match in _BOX.finditer(text):
        if match[0] == "}" and opened:
            box, start = opened.pop()
            if box >= 0 and not _NO_CONTENT.fullmatch(text, start, match.start()):
                last = max(last, (box, start, match.start()))
        elif match[0][-1] == "{" and match[0] != r"\{":
            opened.append((match.start() if len(match[0]) > 1 else -1, match.end()))
    return text[last[1]:last[2]].strip() if last[2] else None


# ---------------------------------------------------------------- one thing, one way to write it

_SYNONYMS = dict(pair.split(" ") for pair in r"""
** ^;\cdot *;\times *;\div /;\lt <;\gt >;\equiv =;<= ≤;\le ≤;\leq ≤;\leqslant ≤;>= ≥;\ge ≥;\geq ≥
\geqslant ≥;!= ≠;\ne ≠;\neq ≠;\lbrace \{;\rbrace \};\langle (;\rangle );\ln \log;− -;– -;× *;· *;⋅ *
÷ /;√ \sqrt;∛ \root{3};π \pi;\infty ∞;\cup ∪;\in ∈;± \pm;≈ \approx;and ,;or ,;& ,;percent %;\% %
degrees °;degree °;infinity ∞;pi \pi;sqrt \root{2};\emptyset “∅”;\varnothing “∅”;∅ “∅”;\cdots \ldots
hundred *100;thousand *1000;million *10^6;billion *10^9;half *(1/2);zero 0;one 1
two 2;three 3;four 4;five 5;six 6;seven 7;eight 8;nine 9;ten 10;twelve 12;to :;if ,
""".strip().replace("\n", ";").split(";"))
_FUNCTIONS = {"\\" + name.partition("=")[0]: Function(name.rpartition("=")[2]) for name in (
    "frac root sin cos tan cot sec csc sinh cosh tanh exp floor ceil gcd lcm max min log ln=log "
    "lg=log10 arcsin=asin arccos=acos arctan=atan abs binom=binomial !=factorial !!=fac2".split())}


def _words(match):
    r"""Letters, bare or of a \text{}: "quoted" if they are words, else names, or variables."""
    text, before = (match[1] or match[0]).strip(" ~.,"), match.string[:match.start()]
    if text.lower() in _SYNONYMS or "\\" + text in _FUNCTIONS:
        return f" {_SYNONYMS.get(text.lower(), chr(92) + text)} "
    is_word = re.search(r"[^\W\d]\.?[^\W\d]" if match[1] else r".{4}|[^\0-~]", text)
    is_last = before[-1:] == " " and match.string[match.end():].lstrip()[:1] in ",/"
    if re.search(r"[\d)}°](?: |\*|\\cdot)*$", before) and (match[1] or is_last):  # a unit
        is_word = is_word or re.match(r"[^\W\d].|[mgsh]$" + r"|[NJVWKL]$" * bool(match[1]), text)
    return f"“{re.sub(r'^(?:an?|the) |[^a-z0-9]', '', text.lower())}”" if is_word else text


_REWRITES = [(re.compile(pattern, re.DOTALL), new) for pattern, new in (
    # a matrix becomes a tuple of rows in brackets of their own
    (r"\\begin *\{(?:(?:[pbB]|small)?matrix\}|cases\}|aligned\}|array\} *\{[^{}]*\})", "⟦⟦"),
    (r"(?:\\\\\s*)?(\\end *\{[a-z]*\})|\\\\(\[[\d.]+\w+])?", lambda m: "⟧⟧" if m[1] else "⟧,⟦"),
    (r"(?<=\d)(?:,\\!|\{,\}(?:\\!)?|\\[,;:!]|~)\s*(?=\d{3}(?!\d))", ""),  # thousands
    (r"\\not\s*=", "≠"),
    # what is only looks
    (r"\\(?:left|right)(?![a-z])\.?|\\pmod *(?:\{[^{}]*\}|\d)|\( *mod[^()]*\)|[$~€£\"`]", " "),
    (r"\\[,;:!>\s()\[\]$]|\\(?:q?quad|[bB]igg?[lrm]?|(?:math)?bf|bm|[a-z]+style|boxed)\b", " "),
    (r"(\\mathbb *\{?R\}?|ℝ)|\^ *\{? *\\prime *\}?", lambda m: "(-∞,∞)" if m[1] else "'"),
    # 0.1\overline{6} becomes a decimal of a hundred digits
    (r"(\.\d*)\\(?:overline|dot|bar) *\{?(\d+)\}?", lambda m: m[1] + (m[2] * 99)[:99]),
    (r"\{([^{}]*)\\choose\b([^{}]*)\}", r"\\binom{\1}{\2}"),
    # functions in brackets, and inverse functions
    (r"(?:\||\\[lr]?vert\b)([^|]*?)(?:\||\\[lr]?vert\b)", r"\\abs(\1)"),
    (r"\\l(floor|ceil)\b(.*?)\\r(?:floor|ceil)\b", r"\\\1(\2)"),
    (r"\\(sin|cos|tan) *\^ *\{? *-1 *\}?", r"\\arc\1 "),
    (r"(?:\^ *\{? *\\circ *\}?|\\degree\b|°)(?:\s*\\(?:text|mathrm) *\{[CF]\}|\s?[CF]\b)?", "°"),
    # 6.02e23 and 6.02 x 10^23; \frac12; \sqrt[3]{2}; and the mixed number 1 2/3 is a sum
    (r"(?<=\d)[eE]([-+]?\d+)| +x +(?=\d)", lambda m: f"*10^{{{m[1]}}}" if m[1] else "*"),
    (r"\\[dtc]?(frac|binom) *(\d?)", lambda m: f"\\{m[1]}" + (m[2] and f"{{{m[2]}}}")),
    (r"(\\(?:frac|binom) *\{[^{}]*\}) *(\d)", r"\1{\2}"),
    (r"\\sqrt *(?:\[([^\[\]]+)\])?(?![a-z])", lambda m: f"\\root{{{m[1] or 2}}}"),
    (r"(?<![\^_.\d])(\d+) *(\\frac *\{\d+\} *\{\d+\}|(?<= )\d+ */ *\d+(?!\d))", r"(\1+\2)"),
    # words; 101_2 and "101 base two"
    (r"\\text *\{(?:[^{}]*answer is)? *([$\d][^{}]*)\}", r"\1 "),
    (r"\\(?:text[a-z]*|[mh]box|math(?:rm|it)|operatorname)\*? *\{((?:[^{}\\]|\\cdot|\{[^{}]*\})*)\}"
     r"|(?<![\\A-Za-z])[A-Za-z]+|[^\W\d_A-Za-z]+", _words),
    (r"(\()?\b(\d+|\d[\dA-F]+(?=_\{?1))(?(1)\)) *(?:_|“base”) *(\{ *)?(\d\d|[2-9])(?(3) *\})",
     lambda m: f" {int(m[2], int(m[4]))} "),
    # a unit behind a value, and what else is said about it
    (r"(?:(?<=[\d)}°%])|(?<=\b[A-Za-z])|(?<=\\pi))\s*“[^”]*”"
     r"(?:\s*\^\s*\{?-?\d\}?|(?:[\s/*]|\\cdot)*“[^”]*”|\s+[A-Za-z]+)*\s*(?=$|[,;()\]=:}])", " "),
    (r"[\s,&]*[,&][\s,&]*(?=⟧)|[,&][\s,&]*[,&]", lambda m: "," * (m.string[m.end():][:1] != "⟧")),
    # p ≈ .33 says .33, but p = 1/3 ≈ .33 says 1/3
    (r"^([^\d=]*)\\approx|\\approx.*", lambda m: "" if m[1] is None else m[1] + "="),
    (r"(?<!_)(\d\s+)(?=[\d.])", r"\1?"),  # numbers beside each other are not a product
    (r"^.*\\(?:pm|mp).*$", lambda m: m[0].replace(r"\pm", "+").replace(r"\mp", "-") + "," +
     m[0].replace(r"\pm", "-").replace(r"\mp", "+")),
    (r"^(.*;.*)$", lambda m: "(" + m[1].replace(";", "),(") + ")"),  # p=5,q=2;p=7,q=2
    # the name of what is asked, with its "=": f(2), AB, \frac{NO}{BO}, (x,y), but not x
    (r"(?<![^,(])(?!\W*\w(?:_\w|_{\w*})? *=)"
     r"(?:\\?[A-Za-z](?:\^{-1}|_\{[^{}]*}|_.)*|\((?:[^()]|\(.\))*\)|\\?[{}]|[/:|' ]|“\w*”)+=", ""),
)]
_TOKEN = re.compile(r"\d+\.?\d*|\.\d+|“[^”]*”|\\[^A-Za-z]|\*\*|!!|[<>!=]=|(?:\\[A-Za-z]+|[A-Za-z])"
                    r"\s*(?:_\s*(?:\{[^{}]*\}|\\[A-Za-z]+|[^\s\\{}])|')*|\S", re.DOTALL)


def _tokens(text):
    """The text in its plainest form, in tokens."""
    text = re.sub("[⁰¹²³⁴-⁹⁻]+", r"^{\g<0>}", text)
    text = "".join(f" {_SYNONYMS[c]} " if c in _SYNONYMS and c > "z" else c for c in text)
    text = unicodedata.normalize("NFKC", re.sub("(?=[¼-¾⅐-⅞])", " ", text)).replace("⁄", "/")
    text = re.sub(r"^[\s'=]+|^(?:an?|the)\s+(?=[a-z]{3})|(?<=\d)'$|(?<!\\)[\s.,;:]+$", "", text)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    tokens = (re.sub(r"\s", "", token) for token in _TOKEN.findall(text.strip(" ,=")))
    return [_SYNONYMS.get(token, token) for token in tokens]


# ------------------------------------------------------------------------------------------- parser
#
# An expression is one of sympy's: Integer, Rational, Symbol, pi, E, I, oo; Add, Mul and Pow of them
# built with evaluate=False; and undefined Functions, so that there is nothing sympy could evaluate.
# Around expressions: a word is Str(text), and what has several parts Tuple(Str(kind), *parts). Its
# kind is "," for a set, the brackets for a tuple or an interval, "⟦⟧" for a matrix and its rows,
# ":" for a ratio, and the signs for a relation.

_RELATIONS = tuple("=<>≤≥≠∈")
_SIGNS = dict.fromkeys(_RELATIONS, 2) | {",": 1, "∪": 3, ":": 4, "+": 5, "-": 5, "*": 6, "/": 6}
_TURNED = str.maketrans("<>≤≥", "><≥≤")
_INVERSE = {"-": Mul, "/": Pow, ":": Pow}  # a - b is a + b (-1), and a / b is a b^(-1)
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", "⟦": "⟧"}
_BRACKETS = {"()", "(]", "[)", "[]", "⟦⟧", ":"}
_UNITS = Function("percent")(), Function("degree")()  # functions of nothing: constants
_ATOMS = {r"\pi": pi, "e": E, "i": I, "∞": oo, "%": _UNITS[0], "°": _UNITS[1]}
_UNKNOWN = {"\\" + name for name in "setminus subset to mid circ otimes partial begin".split()}
_ROUNDED = Function("rounded")  # a decimal of nine digits or more, and its digits as an integer


def _kind(node):
    return node.args[0].name if isinstance(node, Tuple) else ""


def _several(kind, parts):
    """A container of the parts. Sets in a set are united."""
    if kind in ",∪":
        kind, parts = ",", [x for p in parts for x in (p.args[1:] if _kind(p) == "," else (p,))]
    return Tuple(Str(kind), *parts)


def _apply(function, *parts):
    """The function of the parts, not evaluated; sums and multiples of matrices by their entries."""
    if _kind(parts[-1]) == "⟦⟧" and (function is Mul) != (_kind(parts[0]) == "⟦⟧"):
        columns = (p.args[1:] if _kind(p) == "⟦⟧" else [p] * len(parts[-1].args) for p in parts)
        return _several("⟦⟧", [_apply(function, *entries) for entries in zip(*columns)])
    _require(all(isinstance(part, Expr) for part in parts))
    return function(*parts, evaluate=False)


def _tied(signs, parts):
    """The tree of the parts with signs of one level between them."""
    sign = signs[1]
    if sign in (">", "≥"):
        signs, parts = [turned.translate(_TURNED) for turned in signs[::-1]], parts[::-1]
    if sign in _RELATIONS:
        return _relation("".join(signs), parts)
    if sign in ",∪" or sign == ":" and len(parts) > 2:
        return _several(sign, parts)
    parts = [_apply(_INVERSE[s], p, -S.One) if s in _INVERSE else p for s, p in zip(signs, parts)]
    return _apply(Add if sign in "+-" else Mul, *parts)


def _relation(signs, parts):
    """The relation; 5 + 3 = 8 is 8, and what bounds one variable is an interval."""
    if {*signs} <= {*"=∈"} and not Tuple(*parts[-2:]).free_symbols:
        return parts[-1]
    at = [i for i, part in enumerate(parts[:3]) if {part} == Tuple(*parts).free_symbols]
    if len(at) != 1 or len(parts) > 3 or {*signs} - {*"<≤"}:
        return _several(signs, parts)
    at, ends = at[0], [_apply(Mul, oo, -S.One), *parts, oo]
    brackets = ("[" if "≤" in signs[:at] else "(") + ("]" if "≤" in signs[at:] else ")")
    return _several("∈", (parts[at], _several(brackets, (ends[at], ends[at + 2]))))


class _Parser:
    """Precedence climbing over tokens."""

    def __init__(self, text):
        self.tokens, self.depth = ["", *_tokens(text)[::-1]], 0  # the next one is the last

    def binds(self):
        """How strongly the next token ties what is before it and behind it; 0 for not at all."""
        begins_factor = r"\\?[A-Za-z{]|\.?\d|[%°∞(\[⟦]"
        return _SIGNS.get(t := self.tokens[-1], 6 if re.match(begins_factor, t) else 0)

    def expression(self, level=0):
        node = self.power()
        while (binds := self.binds()) > level:
            signs, parts = [""], [node]
            while self.binds() == binds:
                signs.append(self.tokens.pop() if self.tokens[-1] in _SIGNS else "*")
                parts.append(self.expression(binds))
            node = _tied(signs, parts)
        return node

    def power(self):
        self.depth += 1
        _require(self.depth <= 40)  # the stack of a thread may be small
        sign = self.tokens.pop() if self.tokens[-1] in ("+", "-") else ""
        node = self.power() if sign else self.primary()
        if self.tokens[-1] in ("!", "!!"):
            node = _apply(_FUNCTIONS["\\" + self.tokens.pop()], node)
        if self.tokens[-1] == "^" and self.tokens.pop():
            node = _apply(Pow, node, self.power())
        self.depth -= 1
        return _apply(Mul, node, -S.One) if sign == "-" else node

    def primary(self):
        token = self.tokens.pop()
        name, _, index = token.partition("_")
        if token in _CLOSING:
            return self.group(token)
        if re.match(r"\.?\d", token):
            value, digits = Rational(Fraction(token)), Rational(int(token.replace(".", "")))
            return _ROUNDED(value, digits) if "." in token and digits >= 10**8 else value
        if name in (r"\frac", r"\binom", r"\root"):
            return _apply(_FUNCTIONS[name], self.primary(), self.primary())
        if name in _FUNCTIONS:
            return self.function(name, index)
        _require(token in _ATOMS or name not in _UNKNOWN and re.match(r"\\?[A-Za-z]|“", token))
        atom = Str if token[0] == "“" else Symbol
        return _ATOMS.get(token) or atom(re.sub("[{}“”]", "", token))

    def group(self, opening):
        node = self.expression()
        items = node.args[1:] if _kind(node) == "," else (node,)
        brackets = opening + self.tokens.pop()
        if brackets in _BRACKETS and len(items) > 1 or brackets == "⟦⟧" == _kind(node):
            return _several(brackets, items)  # a column of a matrix has no rows
        _require(brackets == opening + _CLOSING[opening])
        return node

    def function(self, name, index):
        exponent = self.tokens.pop() and self.power() if self.tokens[-1] == "^" else None
        if self.tokens[-1] in _CLOSING:
            node = self.primary()
        else:  # \sin 2x \cos y: the argument is 2x
            node = self.power()
            while re.match(r"\\?[A-Za-z]|[%°]", t := self.tokens[-1]) and t not in _FUNCTIONS:
                node = _apply(Mul, node, self.power())
        arguments = node.args[1:] if _kind(node) else (node,)
        arguments += (_Parser(index).expression(),) if index and name == r"\log" else ()
        node = _apply(_FUNCTIONS[name], *arguments)
        return node if exponent is None else _apply(Pow, node, exponent)


def _readings(text):
    """The trees that the text may stand for; none if it is not mathematics."""
    found, texts = [], [text]
    if not re.search(r"[(\[]|\\\{", text):  # commas may stand in numbers
        texts.append(re.sub(r"(?<=\d)(?<!\b0)[, ](?=(?:\d{3}[, ])*\d{3}(?!\d))", "", text))
        texts.append(re.sub(r"^(\s*-?\d+),(\d\d|\d{4,}|(?<=\b0,)\d+)\s*$", r"\1.\2", text))
    for each in dict.fromkeys(texts):
        with suppress(_Undecided, RecursionError, ValueError):
            parser = _Parser(each)
            tree = parser.expression()
            found += [tree] if parser.tokens == [""] else []
    return found


# ------------------------------------------------------------------------------------------- values


class _Work(threading.local):
    """A thread's own arithmetic (a precision belongs to a context), and the steps it has left."""

    def __init__(self):
        self.contexts, self.left, self.real = (MPContext(), MPContext()), 0, False
        self.contexts[0].dps, self.contexts[1].dps = LOW, HIGH


_work = _Work()
# mpmath keeps pi and its like for all threads together, which is not safe when more digits are due.
_KEPT = [getattr(libmp, "mpf_" + name)(8_000) for name in ("pi", "e", "ln2", "ln10", "degree")]
# what is not mpmath's
_OPERATIONS = {"Add": lambda *x: sum(x), "Mul": lambda *x: math.prod(x), "abs": abs, "max": max,
    "frac": lambda a, b: a / b, "rounded": lambda a, digits: a, "min": min,
    "gcd": lambda *x: Fraction(math.gcd(*(a.numerator for a in x))),
    "lcm": lambda *x: Fraction(math.lcm(*(a.numerator for a in x)))}


def _require(condition):
    if not condition:
        raise _Undecided


def _spend(steps):
    _work.left -= steps
    _require(_work.left >= 0)


def _bits(x):
    return x.numerator.bit_length() + x.denominator.bit_length() if isinstance(x, Fraction) else 0


def _value(node, at, mp):
    """The node's value at a point {symbol: number}: a Fraction if possible, else mpmath's."""
    if not node.args:
        return at[node] if node in at else Fraction(node.p, node.q)
    name, values = node.func.__name__, [_value(part, at, mp) for part in node.args]
    # large numbers and mpmath's functions cost more
    _spend(1 + sum(map(_bits, values)) // 50 + (0 if name in _OPERATIONS else 20))
    if name in ("Pow", "root"):  # \root{n}{x} is x^{1/n}
        return _power(*values, mp) if name == "Pow" else _power(values[1], 1 / values[0], mp)
    if name not in _OPERATIONS or not all(map(_bits, values)):
        values = [mp.convert(x) for x in values]
    _require(name in _OPERATIONS or (mp.re(values[0]) >= 0 or not _work.real if name == "log"
                                     else max(map(mp.mag, values)) <= 60))
    return (_OPERATIONS.get(name) or getattr(mp, name))(*values)


def _power(a, b, mp):
    p, q = (b.numerator, b.denominator) if isinstance(b, Fraction) else (0, 0)
    if q == 1 and isinstance(a, Fraction) and abs(p) * _bits(a) < 20_000:  # bits; else approximated
        return a**p
    a, b = mp.convert(a), mp.convert(b)
    is_root = q != 1 and isinstance(a, mp.mpf) and a < 0
    is_large = mp.mag(b) + math.log2(abs(int(mp.mag(a or 1))) + 1) > 64
    _require(not is_large and not (is_root and _work.real and q % 2 == 0))
    # of a negative number the real root, if there is one: (-8)^(1/3) is -2
    return mp.power(-a, b) * (-1) ** (p % 2) if is_root and q % 2 else mp.power(a, b)


def _is_close(a, b, points, within):
    """Whether a at the first point and b at the second differ by rounding, or `within`, at most.

    A difference that is only rounding shrinks with the precision, a real one stays.
    """
    off = []
    for mp in _work.contexts:
        known = dict(zip((pi, E, I, *_UNITS), (+mp.pi, +mp.e, mp.j, Fraction(1, 100), +mp.degree)))
        x, y = (_value(node, known | at, mp) for node, at in zip((a, b), points))
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return abs(x - y) <= within * abs(y)
        x, y = mp.convert(x), mp.convert(y)
        off.append(abs(x - y))
    scale = max(abs(x), abs(y), off[0] * mp.mpf(10) ** LOW)
    return off[1] <= scale * mp.mpf(10) ** (30 - HIGH) + abs(y) * mp.convert(within)


def _equal_values(a, b, units=(), others=0, within=Fraction(0)):
    """Whether two trees have the same value, at several points if there are variables. `within` is
    a relative tolerance; with `others`, b is taken at other points than a.
    """
    names, agreed = Tuple(a, b).free_symbols, 0
    _work.real = bool(names)
    for trial in range(10 if names else 1):
        points = [dict.fromkeys(units, Fraction(1)) | {
            x: Fraction((-2) ** (t % 6) * random.Random(f"{x.name} {t}").randrange(1, 97), 97)
            for x in names} for t in (trial, trial + others)]
        # at this point a value may be undefined, too large, or not real
        with suppress(_Undecided, ArithmeticError, ValueError, TypeError, AttributeError):
            if not _is_close(a, b, points, within):
                return False
            agreed += 1
    _work.undecided |= agreed < (3 if names else 1)
    return agreed >= (3 if names else 1)


# ----------------------------------------------------------------------------------------- verdicts


def verdict(response, answer):
    """Whether the response's final answer equals the answer; None if that is not decided."""
    found = extract_answer(response) or ""
    spelled = [_spelling(found), _spelling(answer)]
    letters = [re.match(r"\(?([A-H])(?:[).:](?!\d)|\)|$)", x) for x in spelled]
    if all(letters) and min(len(x.strip("().:")) for x in spelled) == 1:  # (B) 12 is B
        return letters[0][1] == letters[1][1]
    if spelled[0] == spelled[1] != "" or all(re.fullmatch(r"-?[1-9]\d*", x) for x in spelled):
        return spelled[0] == spelled[1]  # integers of any size
    _work.left, _work.undecided = STEPS, False
    with suppress(_Undecided, RecursionError):
        _spend(max(len(found), len(answer)) // LONGEST * STEPS)
        is_same = any(_same(_stated(a, b), b) for a in _readings(found) for b in _readings(answer))
        return is_same or (None if _work.undecided else False)


def is_correct(response, answer):
    """Whether the response's final answer equals the answer, beyond doubt."""
    return verdict(response, answer) is True


def is_readable(answer):
    """Whether a gold answer is in order: its braces are balanced, its $ come in pairs."""
    text = re.sub(r"\\[{}$]|^\s*\$(?=[\d.,]+\s*$)", "", answer).strip()  # $18 is in order
    is_paired = text.count("{") == text.count("}") and text.count("$") % 2 == 0
    return is_paired and text.strip("$") != "" and not re.search(r"\$\s+\$", text)


def _spelling(text):
    text = re.sub(r"^[\s$]*0+(?=\d)|\$|\s(?!\d)|(?<!\d)\s", "", text).strip(".,")
    spelled = re.sub(r"\\(?:text|math)[a-z]*\{([^{}]*)\}", r"\1", text)
    return spelled.lower() if re.fullmatch(r"[^\W\d_]{2,}", spelled) else spelled


def _stated(found, gold):
    """The last side of m + n = 55 or of x^2 - 1 = (x - 1)(x + 1), if no equation is asked for; but
    an equation in one variable is still to be solved, and what is 0 is hardly asked for.
    """
    *_, before, last = 0, 0, *found.args
    if {*_kind(found)} != {"="} or _is_named(found) or {*_kind(gold)} & {*_RELATIONS}:
        return found
    is_asked = len(before.free_symbols) > 1 and last != 0 or not isinstance(last, Expr)
    return last if (_same(before, last) if last.free_symbols else is_asked) else found


def _same(a, b):
    """Whether two trees are the same answer."""
    _spend(5)
    if a == b or _kind(a) == _kind(b) == "=" and _is_multiple(a, b):
        return True
    if len({x.args[1].name.partition("_")[0] for x in (a, b) if _is_named(x)}) > 1:
        return False  # y = -1 is not x = -1
    a, b = (x.args[-1] if _is_named(x) else x for x in (a, b))
    kinds = {_kind(a), _kind(b)}
    if "," in kinds:  # 1/2 or 50% is 1/2
        a, b = (x.args[1:] if _kind(x) == "," else (x,) for x in (a, b))
        named = [{x.args[1].name[0] for x in c if _is_named(x)} for c in (a, b)]
        if len(a) > 1 and {*map(len, named)} == {0, len(a)}:  # x = 3, y = 4 says 3 and 4 in order
            return len(a) == len(b) and all(map(_same, a, b))
        return all(any(_same(x, y) for y in d) for c, d in ((a, b), (b, a)) for x in c)
    if isinstance(a, Tuple) and isinstance(b, Tuple):  # (1,2) is not [1,2]
        is_alike = len(kinds) == 1 or kinds <= _BRACKETS and (len(a.args) > 3 or "⟦⟧" in kinds)
        return is_alike and len(a.args) == len(b.args) and all(map(_same, a.args[1:], b.args[1:]))
    # a long decimal rounds what is not a decimal
    digits = [min((int(x.args[1]) for x in x.atoms(_ROUNDED)), default=0) for x in (a, b)]
    within = Fraction(99, 100 * max(digits)) if 0 in digits and any(digits) else Fraction(0)
    units = [(), _UNITS][:1 + bool(Tuple(a, b).atoms() & {*_UNITS})]
    return a == b or isinstance(a, Expr) and isinstance(b, Expr) and any(
        _equal_values(a, b, ones, within=within) for ones in units)


def _is_named(node):
    return _kind(node)[-1:] in ("=", "∈") and isinstance(node.args[1], Symbol)


def _is_multiple(a, b):
    """Whether two equations f = 0 and g = 0 are the same: f / g is constant. The inverse is
    undefined for f = 0 and for g = 0.
    """
    f, g = (_apply(Add, x.args[1], _apply(Mul, x.args[2], -S.One)) for x in (a, b))
    inverse = _apply(Pow, _apply(_FUNCTIONS[r"\frac"], f, g), -S.One)
    return _equal_values(inverse, inverse, others=1)
