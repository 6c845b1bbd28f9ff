r"""Is this math answer right? The grader of the benchmarks, and the reward of a training run.

    extract_answer(response) -> str | None     what a response finally answers
    verdict(response, answer) -> bool | None   right, wrong, or not decided within the bounds
    is_correct(response, answer) -> bool       verdict is True: undecided is not right
    is_readable(answer) -> bool                False for a gold answer that is broken

An answer is rewritten until a thing is written in one way only, parsed into a tree of tuples, and
evaluated: exactly while it is rational, else with mpmath (sympy's arithmetic) at two precisions,
its variables at a few fixed points. Text from a model is never executed, nor handed to anything
that might. Sizes are checked before anything is evaluated, and all work is counted (STEPS), so a
verdict is a function of the two strings, and comes in time in any thread and any process.

Where people disagree, this is the policy:

- 25% equals 25 and 0.25, but 25 does not equal 0.25; 60 degrees equals 60 and pi/3.
- A unit says nothing: 5 cm equals 5. A number in base b is its value: 101_2 equals 5.
- A decimal equals what it is the rounding of, from nine digits on; 3.14 is not pi.
- Several solutions are a set: no order, no repetition; {1,2} equals 1,2, but (1,2) does not.
- y = 2x equals 2x, k = 3 equals 3; equations are equal up to a constant factor.
- Variables are real; where a root or a logarithm is not, nothing is compared.
- The last box counts, and a thought that was not finished holds no answer.
"""

import math
import random
import re
import threading
import unicodedata

from mpmath import MPContext, libmp
from mpmath.rational import mpq  # exact, and at home among mpmath's floating-point numbers

LONGEST = 2_000  # characters of an answer that is more than one number
DEPTH = 40  # of the parser: some ten frames of the stack each
STEPS = 20_000  # of all evaluations for one verdict together: well below a second
EXACT_BITS = 20_000  # larger rationals are approximated
LOW, HIGH = 50, 200  # digits of the two evaluations


class _Undecided(Exception):
    """Not mathematics as this file knows it, or too large, or undefined."""


# ------------------------------------------------------------------------------- finding the answer

_STOP = re.compile(r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|eos)\|>|(?!\A)<\|im_start\|>"
                   r"|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>")
_BOX = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NO_CONTENT = re.compile(r"(?:[\W_]|[lc]?dots|text|the|your|final|answer|here)*", re.I)
_MARKER = re.compile(r"(?:answer|réponse|respuesta|antwort|答案)[^.\n:=]{0,60}?"
                     r"(?:\b(?:is|are|est|es|ist)\b|[:=：是为])[\s*:]*(?=\S)", re.I)
_HASHES = re.compile(r"####[ \t]*((?!\d+[.)]\s)[-+$\\(\[.\d][^\n]*)")
_SENTENCE = re.compile(r"\.(?:\s|$)|[\n。]|\bI hope\b")
_MATH = re.compile(  # $...$ and its likes, or a run of mathematical characters
    r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|(?:\\[a-zA-Z]+|[-−+(\[{\d.√π])(?:\\[a-zA-Z{},!% ]+|[-−+*/^(){}\[\]\d.,%!√π° ])*", re.DOTALL)
_CHOICE = re.compile(r"(?<![\w'\\])\(?([A-H])\)?(?![\w'])")


def extract_answer(response):
    r"""The text of the final answer, or None.

    The last \boxed{} with something in it, else what follows "the answer is", else "####", else the
    last number or expression. Nothing behind a stop id counts, nor what was only thought.
    """
    text = _STOP.split(response, maxsplit=1)[0].rpartition("</think>")[2].partition("<think>")[0]
    boxed, tail = _last_boxed(text), text[-2 * LONGEST:].strip()
    if boxed is not None:
        marked = _MARKER.search(boxed[:LONGEST])
        return boxed[marked.end():].rstrip("} ") if marked else boxed
    marked, hashes = [*_MARKER.finditer(tail)], _HASHES.findall(tail)
    if marked:
        tail = _SENTENCE.split(tail[marked[-1].end():])[0].strip(" *")
    elif hashes:
        tail = hashes[-1].strip()
    is_prose = len(tail) > 200 or re.search(r"(?<![\\a-z])[a-z]{2,} [a-z]{2}", tail)
    if not is_prose and _readings(tail):
        return tail
    tail = tail.rpartition(" is ")[2] if marked else tail
    found = [m[m.lastindex or 0] for m in _MATH.finditer(tail)]
    found = [each.strip(" *,;:!/.") for each in found if re.search(r"\d|\\begin", each)]
    found = [x if x.count("(") == x.count(")") else x.strip("(). ") for x in found]
    choices = re.findall(r"\A\(?([A-H])[.:)]\s", tail) or found or _CHOICE.findall(tail) or [None]
    return choices[0 if marked or hashes else -1]  # the first behind "answer is", else the last


def _last_boxed(text):
    opened, boxes = [], [(-1, None)]
    for match in _BOX.finditer(text):
        if match[0] == "}" and opened:
            box, start = opened.pop()
            if box >= 0 and not _NO_CONTENT.fullmatch(text, start, match.start()):
                boxes.append((box, text[start:match.start()].strip()))
        elif match[0][-1] == "{" and match[0] != r"\{":
            opened.append((match.start() if len(match[0]) > 1 else -1, match.end()))
    return max(boxes)[1]  # of boxes in boxes, the innermost starts last


# ---------------------------------------------------------------- one thing, one way to write it

_SYNONYMS = dict(pair.split(" ") for pair in r"""
** ^;\cdot *;\times *;\div /;\lt <;\gt >;\equiv =;<= \le;\leq \le;>= \ge;\leqslant \le;\geq \ge
\geqslant \ge;!= \ne;\neq \ne;\lbrace \{;\rbrace \};\dots \ldots;\cdots \ldots;\ln \log;− -;– -;× *
· *;⋅ *;÷ /;√ \sqrt;π \pi;∞ \infty;≤ \le;≥ \ge;≠ \ne;∪ \cup;∈ \in;± \pm;≈ \approx;and ,;or ,;pct %
percent %;degrees °;degree °;infinity \infty;inf \infty;pi \pi;sqrt \root{2};about \approx
& ,;\% %;\emptyset “∅”;\varnothing “∅”;∅ “∅”
""".strip().replace("\n", ";").split(";"))
# name: what mpmath calls it
_FUNCTIONS = {f: f for f in "sin cos tan cot sec csc sinh cosh tanh log exp floor ceil".split()}
_FUNCTIONS |= {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "lg": "log10", "ln": "log",
               "abs": "fabs", "!": "factorial", "!!": "fac2", "binom": "binomial"}


def _repeating(match):
    whole, fixed, period = match[1], match[2], match[3]
    return f"(({whole}{fixed}{period}-0{whole}{fixed})/{'9' * len(period)}{'0' * len(fixed)})"


def _words(match):
    r"""Letters, bare or of a \text{}: "quoted" if they are words, else names, or variables."""
    text, before = (match[1] or match[0]).strip(" ~.,"), match.string[:match.start()]
    if text.lower() in _SYNONYMS or text in _FUNCTIONS:
        return f" {_SYNONYMS.get(text.lower(), chr(92) + text)} "
    is_word = len(text) > 3 or not text.isascii()
    if match[1]:
        is_word = re.search(r"[^\W\d]\.?[^\W\d]", text)
    if match[1] and re.match(r"\d", text):
        return re.sub(r"[A-Za-z]{2,}", lambda m: f"“{m[0]}”", text)
    is_last = match.string[match.end():].lstrip()[:1] in ",/"
    if re.search(r"[\d)}°] *$", before) and (match[1] or before[-1] == " " and is_last):  # a unit
        is_word = is_word or text[:1].isalpha() and (len(text) > 1 or text in "mgsh")
    return f"“{re.sub(r'^(?:an?|the) |[^a-z]', '', text.lower())}”" if is_word else text


_REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"\\begin *\{(?:[a-z]*matrix\}|array\} *\{[^{}]*\})", "⟦⟦"),  # a matrix is a tuple of rows
    (r"(?:\\\\\s*)?\\end *\{[a-z]*\}", "⟧⟧"),
    (r"\\\\", "⟧,⟦"),
    (r"(?<=\d)(?:,\\!|\{,\}(?:\\!)?|\\[,;:!])\s*(?=\d{3}(?!\d))", ""),  # thousands
    (r"\\(?:left|right)(?![a-z])\.?|\\pmod *(?:\{[^{}]*\}|\d)|\( *mod[^()]*\)|[$~€£\"`]", " "),
    (r"\\[,;:!>\s()\[\]$]|\\(?:q?quad|[bB]igg?[lrm]?|displaystyle|boxed|fbox|phantom *-)\b", " "),
    (r"\\mathbb *\{?R\}?|ℝ", r"(-\\infty,\\infty)"),
    (r"(\d*)\.(\d*)\\(?:overline|dot|bar) *\{?(\d+)\}?", _repeating),
    (r"\\(bar|vec|hat|d?dot|tilde|overline|overrightarrow|mathbb) *\{\\?(\w+)\}", r"\\\1\2 "),
    (r"(?:\||\\[lr]?vert\b)([^|]*?)(?:\||\\[lr]?vert\b)", r"\\abs(\1)"),
    (r"\\l(floor|ceil)\b(.*?)\\r(?:floor|ceil)\b", r"\\\1(\2)"),
    (r"\\(sin|cos|tan) *\^ *\{ *-1 *\}", r"\\arc\1 "),
    (r"\^ *\{? *\\circ *\}?|\\degree\b|°", "°"),
    (r"\^ *\{? *\\prime *\}?", "'"),
    (r"(?<=\d)[eE]([-+]?\d+)| +x +(?=\d)", lambda m: f"*10^{{{m[1]}}}" if m[1] else "*"),
    (r"(?<![\d.])(\d[\dA-F]*)_\{?(?:\\text *\{)?(\d\d?)\}*", lambda m: f" {int(m[1], int(m[2]))} "),
    (r"\\[dtc]?(frac|binom) *(\d?)", lambda m: f"\\{m[1]}" + (m[2] and f"{{{m[2]}}}")),
    (r"(\\(?:frac|binom) *\{[^{}]*\}) *(\d)", r"\1{\2}"),
    (r"\\sqrt *(?:\[([^\[\]]+)\])?(?![a-z])", lambda m: f"\\root{{{m[1] or 2}}}"),
    (r"(?<![\^_.\d])(\d+) *(\\frac *\{\d+\} *\{\d+\}|(?<= )\d+ */ *\d+(?!\d))", r"(\1+\2)"),
    (r"\\(?:text[a-z]*|[mh]box|math(?:rm|bf|it|sf)|operatorname\*?) *\{([^{}]*)\}"
     r"|(?<![\\A-Za-z])[A-Za-z]+|[^\W\d_A-Za-z]+", _words),
    # a unit behind a value, and what else is said about it
    (r"(?:(?<=[\d)}°%])|(?<=\b[A-Za-z])|(?<=\\pi))\s*“[^”]*”"
     r"(?:\s*\^\s*\{?\d\}?|[\s/]*“[^”]*”|\s+[A-Za-z]+)*\s*(?=$|[,;()\]=:}])", " "),
    (r",[\s,]*,", ","),
    (r"^\s*\\approx", ""),
    (r"^([^\d=]*[A-Za-z][^\d=]*)\\approx", r"\1="),  # p ≈ .33 says .33, but p = 1/3 ≈ .33 says 1/3
    (r"\\approx.*", ""),
)]
_TOKEN = re.compile(
    r"\d+\.?\d*|\.\d+|“[^”]*”|(?:\\[A-Za-z]+|[A-Za-z])\s*(?:_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\\[A-Za-z]+|[^\s\\{}])|')*|\\.|\*\*|!!|[<>!=]=|\S", re.DOTALL)


def _tokens(text):
    """The text in its plainest form, in tokens."""
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴-⁹⁻]+", r"^{\g<0>}", text)
        text = "".join(f" {_SYNONYMS[c]} " if c in _SYNONYMS and c > "z" else c for c in text)
        text = unicodedata.normalize("NFKC", re.sub("(?=[¼-¾⅐-⅞])", " ", text)).replace("⁄", "/")
    text = re.sub(r"^[\s'=]+|(?<=\d)'$|(?<!\\)[\s.,;:]+$", "", text)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    if re.search(r"(?<!_)\d\s+[\d.]|”\s*[\w\\(“]", text):  # numbers, or words, beside each other
        raise _Undecided
    if ";" in text:  # p=5,q=2;p=7,q=2
        text = "(" + text.replace(";", "),(") + ")"
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    tokens = _TOKEN.findall((text if upper == lower else f"{upper},{lower}").strip(" ,="))
    return [_SYNONYMS.get(token, token) for token in (re.sub(r"\s", "", t) for t in tokens)]


# ------------------------------------------------------------------------------------------- parser
#
# The tree: ("num", rational, decimal places), ("sym", name), ("word", text); operations as
# (name, arguments): + * inv ^ % ° ! and functions; around them ("rel", signs, terms, whether the
# first is a name), ("set", items), and ("group", brackets, items) for tuples, intervals, matrices
# (of rows in ⟦⟧), and ratios of more than two.

_RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in")
_SIGNS = dict.fromkeys(_RELATIONS, 2) | {",": 1, r"\cup": 3, ":": 4, "+": 5, "-": 5, "*": 6, "/": 6}
_TURNED = {">": "<", r"\ge": r"\le", "<": ">", r"\le": r"\ge"}
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", "⟦": "⟧"}
_MINUS_ONE, _INFINITY, _CONSTANTS = ("num", mpq(-1), 0), ("sym", r"\infty"), (r"\pi", "e", "i")
# what an equation may begin with that only says what is asked: x, f(2), AB, \frac{NO}{BO}, (x,y)
_NAME = re.compile(r"(?:\\?[A-Za-z](?:\^\{-1\}|_\{[^{}]*\}|_.)*|\([^()]*\)|\\?[{}]|[/:,|']|“\w*”)+")


def _tied(signs, parts, begins):
    """The tree of `parts` with signs of one level between them; `begins` is the first as text."""
    sign = signs[1]
    if sign in (",", r"\cup"):
        return ("list" if sign == "," else "set", tuple(parts))
    if sign in (">", r"\ge"):
        return ("rel", tuple(_TURNED.get(s, s) for s in signs[:0:-1]), tuple(parts[::-1]), False)
    if sign in _RELATIONS:
        return ("rel", tuple(signs[1:]), tuple(parts), _NAME.fullmatch(begins) is not None)
    if sign == ":" and len(parts) > 2:
        return ("group", ":", tuple(parts))
    parts = [("*", (_MINUS_ONE, part)) if s == "-" else ("inv", (part,)) if s in "/:" else part
             for s, part in zip(signs, parts)]
    return _joined("+" if sign in "+-" else "*", parts)


def _joined(kind, parts):
    """A sum or a product; of matrices, entry by entry."""
    rows = [part[2] for part in parts if part[:2] == ("group", "⟦⟧")]
    if not rows or len(parts) == 1:
        return (kind, tuple(parts)) if len(parts) > 1 else parts[0]
    if len({*map(len, rows)}) > 1 or len(rows) != (len(parts) if kind == "+" else 1):
        raise _Undecided
    columns = [part[2] if part[:2] == ("group", "⟦⟧") else [part] * len(rows[0]) for part in parts]
    return ("group", "⟦⟧", tuple(_joined(kind, entry) for entry in zip(*columns)))


class _Parser:
    """Precedence climbing over tokens."""

    def __init__(self, tokens):
        self.rest, self.token, self.read, self.depth = iter(tokens), "", "", 0
        self.next()

    def next(self):
        token, self.token = self.token, next(self.rest, "")
        self.read += token
        return token

    def binds(self):
        """How strongly the next token ties what is before it and behind it; 0 for not at all."""
        begins_factor = self.token in _CLOSING or re.match(r"\\?[A-Za-z]|\.?\d", self.token)
        return _SIGNS.get(self.token, 6 if begins_factor else 0)

    def expression(self, level=0):
        start, node = len(self.read), self.power()
        while (binds := self.binds()) > level:
            begins, signs, parts = self.read[start:], ["*"], [node]
            while self.binds() == binds:
                signs.append(self.next() if self.token in _SIGNS else "*")
                parts.append(self.expression(binds))
            node = _tied(signs, parts, begins)
        return node

    def power(self):
        self.depth += 1
        if self.depth > DEPTH:
            raise _Undecided
        is_negative = False
        while self.token in ("+", "-"):
            is_negative ^= self.next() == "-"
        node = self.primary()
        if self.token in ("!", "!!"):
            node = (self.next(), (node,))
        if self.token == "^":
            self.next()
            node = ("^", (node, self.power()))
        if is_negative:
            node = ("num", -node[1], node[2]) if node[0] == "num" else ("*", (_MINUS_ONE, node))
        self.depth -= 1
        return (self.next(), (node,)) if self.token in ("%", "°") else node

    def primary(self):
        token = self.next()
        name, _, index = token.partition("_")
        if token in _CLOSING:
            return self.group(token)
        if re.match(r"\.?\d", token):
            whole, _, decimals = token.partition(".")
            return ("num", mpq(int(whole + decimals), 10 ** len(decimals)), len(decimals))
        if name in (r"\frac", r"\binom", r"\root"):
            a, b = self.primary(), self.primary()
            return {r"\frac": ("*", (a, ("inv", (b,)))), r"\root": ("^", (b, ("inv", (a,))))}.get(
                name, ("binom", (a, b)))
        if name[:1] == "\\" and name[1:] in _FUNCTIONS:
            return self.function(name[1:], index)
        if not re.match(r"\\?[A-Za-z]|“", token) or token in _SIGNS:
            raise _Undecided
        return ("word" if token[0] == "“" else "sym", re.sub("[{}“”]", "", token))

    def group(self, opening):
        node = self.expression()
        items, brackets = node[1] if node[0] == "list" else (node,), opening + self.next()
        if brackets == "⟦⟧" or brackets in ("()", "(]", "[)", "[]") and len(items) > 1:
            return ("group", brackets, items)
        if brackets != opening + _CLOSING[opening]:
            raise _Undecided
        return ("set", items) if opening == r"\{" or len(items) > 1 else node

    def function(self, name, index):
        exponent = self.next() and self.power() if self.token == "^" else None
        arguments = [self.primary() if self.token in ("(", "{", "[") else self.power()]
        if self.read[-1] not in ")}]":  # \sin 2x \cos y: the argument is 2x
            while self.token not in ("(", "[") and self.token not in _SIGNS and self.binds() and (
                    self.token.partition("_")[0][1:] not in _FUNCTIONS):
                arguments.append(self.power())
        node = _joined("*", arguments)
        node = (name, node[-1] if node[0] in ("group", "set") else (node,))
        if index and name == "log":
            node = ("*", (node, ("inv", (("log", (_tree(index),)),))))
        return ("^", (node, exponent)) if exponent else node


def _tree(text):
    parser = _Parser(_tokens(text))
    node = parser.expression()
    if parser.token:
        raise _Undecided
    return ("set", node[1]) if node[0] == "list" else node


def _readings(text):
    """The trees that the text may stand for; none if it is not mathematics."""
    found, texts = [], [text] if len(text) <= LONGEST else []
    if texts and not re.search(r"[(\[]|\\\{", text):  # commas may stand in numbers
        texts.append(re.sub(r"(?<=\d)(?<!\b0)[, ](?=(?:\d{3}[, ])*\d{3}(?!\d))", "", text))
        texts.append(re.sub(r"^(\s*-?\d+),(\d\d|\d{4,}|(?<=\b0,)\d+)\s*$", r"\1.\2", text))
    for each in dict.fromkeys(texts):
        try:
            found.append(_tree(each))
        except (_Undecided, RecursionError, ValueError):
            continue
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
_POINTS = (97, 300, -200, 97, 900, 300, -900, 4000, 97, 900)  # sizes of the coordinates, in 97ths


def _spend(steps):
    _work.left -= steps
    if _work.left < 0:
        raise _Undecided


def _bits(x):
    return sum(part.bit_length() for part in x._mpq_) if isinstance(x, mpq) else 0


def _value(node, at, mp):
    """The node's value at a point {name: rational}: a rational if possible, else mpmath's."""
    kind, arguments = node[:2]
    if kind in ("num", "sym"):
        return arguments if kind == "num" else at[arguments]
    values = [_value(x, at, mp) for x in arguments]
    bits = sum(map(_bits, values))
    _spend(1 + bits // 500 + (20 if kind in _FUNCTIONS else 0))
    if bits > EXACT_BITS:
        values = [mp.convert(x) for x in values]
    if kind in ("+", "*"):
        return sum(values) if kind == "+" else math.prod(values)
    if kind in ("%", "°"):
        return values[0] * at[kind]
    if kind in ("inv", "^"):
        return _power(values[0], values[-1] if kind == "^" else mpq(-1), mp)
    limit = {"log": math.inf, "!": 60, "binom": 60}.get(kind, 300)
    if max(map(mp.mag, values)) > limit or kind == "log" and _work.real and mp.re(values[0]) < 0:
        raise _Undecided
    return getattr(mp, _FUNCTIONS[kind])(*values)


def _power(a, b, mp):
    p, q = b._mpq_ if isinstance(b, mpq) else (0, 0)
    if q == 1 and isinstance(a, mpq) and abs(p) * _bits(a) <= EXACT_BITS:
        return a**p
    if q != 1 and isinstance(a, (mpq, mp.mpf)) and a < 0:
        if q % 2:  # the real root: (-8)^(1/3) is -2
            return _power(-a, b, mp) * (-1) ** (p % 2)
        if _work.real:
            raise _Undecided
    if mp.mag(b) + math.log2(abs(int(mp.mag(a))) + 1) > 64:
        raise _Undecided
    return mp.power(a, p if q == 1 else b)


def _symbols(node):
    if node[:1] == ("sym",):
        return {node[1]} - {*_CONSTANTS}
    return set().union(*(_symbols(part) for part in node if isinstance(part, tuple)))


def _equal_values(a, b, others=0, within=0):
    """Whether two trees have the same value, at several points if there are variables. `within` is
    a tolerance; with `others`, b is taken at other points than a.

    A difference that is only rounding shrinks with the precision, a real one stays.
    """
    names, agreed = _symbols(a) | _symbols(b), 0
    for trial in range(len(_POINTS) if names else 1):
        points = [{name: mpq(int(random.Random(f"{name} {t}").random() * _POINTS[t % 10]) or 1, 97)
                   for name in names} for t in (trial, trial + others)]
        _work.real, off = bool(names), []
        try:
            for mp in _work.contexts:
                known = {r"\pi": +mp.pi, "e": +mp.e, "i": mp.j, "%": mpq(1, 100), "°": +mp.degree}
                x, y = (_value(node, at | known, mp) for node, at in zip((a, b), points))
                off.append(abs(mp.convert(x - y)))
            scale = max(abs(mp.convert(x)), abs(mp.convert(y)), off[0] * mp.mpf(10) ** LOW)
            tolerance = 0 if _bits(x) and _bits(y) else scale * mp.mpf(10) ** (30 - HIGH)
            if not off[1] <= tolerance + within:
                return False
            agreed += 1
        except (_Undecided, ArithmeticError, ValueError, TypeError, KeyError, mp.NoConvergence):
            continue  # undefined, too large, or not real, at this point
    is_enough = agreed >= (3 if names else 1)
    _work.undecided |= not is_enough
    return is_enough


# ----------------------------------------------------------------------------------------- verdicts


def verdict(response, answer):
    """Whether the response's final answer equals the answer; None if that is not decided."""
    found = extract_answer(response)
    if found is None:
        return False
    numbers = _digits(found), _digits(answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if _spelling(found) == _spelling(answer) != "":
        return True
    _work.left, _work.undecided = STEPS, max(len(found), len(answer)) > LONGEST
    try:
        golds = _readings(answer)
        is_same = any(_same(a, b) for a in _readings(found) for b in golds)
        return is_same or (None if _work.undecided else False)
    except (_Undecided, RecursionError):
        return None


def is_correct(response, answer):
    """Whether the response's final answer equals the answer, beyond doubt."""
    return verdict(response, answer) is True


def is_readable(answer):
    """Whether a gold answer is in order: its braces are balanced, its $ come in pairs."""
    text = re.sub(r"\\[{}$]", "", answer).strip()
    return "" != text.strip("$") and text.count("{") == text.count("}") and (
        text.count("$") % 2 == 0 and not re.search(r"\$\s+\$", text))


def _digits(text):
    """A plain number of any size, exactly, as (is negative, whole digits, decimals); else None."""
    whole = r"[1-9]\d{0,2}(?:(?:,\\!\s*|\{,\}|,)\d{3})+|\d*"
    match = re.fullmatch(rf"[\s$]*([-+−]?)(?=\.?\d)({whole})(?:\.(\d*))?[\s$.]*", text)
    if match is None:
        return None
    whole, decimals = re.sub(r"\D", "", match[2]).lstrip("0"), (match[3] or "").rstrip("0")
    return match[1] in ("-", "−") and bool(whole or decimals), whole, decimals


def _spelling(text):
    spelled = re.sub(r"\\(?:text|math)[a-z]*\s*\{([^{}]*)\}|[\s$]", r"\1", text).strip(".,")
    choice = re.match(r"\(?([A-Z])[).](?!\d)", spelled)  # (B) 12 is B
    return choice[1] if choice else spelled.lower() if len(spelled) > 2 else spelled


def _same(a, b):
    """Whether two trees are the same answer."""
    _spend(5)
    if a[0] == b[0] == "rel" and a != b:
        return _same_relation(a, b)
    a, b = _said(a), _said(b)
    if a == b or a[0] == b[0] == "set":
        return a == b or all(
            any(_same(x, y) for y in d[1]) for c, d in ((a, b), (b, a)) for x in c[1])
    if a[0] == b[0] == "group":
        alike = a[1] == b[1] or len(a[2]) > 2 or {a[1], b[1]} == {"[]", "⟦⟧"}
        return alike and len(a[2]) == len(b[2]) and all(map(_same, a[2], b[2]))
    if {a[0], b[0]} & {"group", "set", "rel", "word"}:
        return False
    if a[0] == b[0] and a[0] in ("%", "°"):
        return _equal_values(a[1][0], b[1][0])
    for x, y in ((a, b), (b, a)):  # a long decimal rounds what is not a decimal
        if x[0] == "num" != y[0] and x[2] and abs(x[1]) * 10 ** x[2] >= 10**8 and not _symbols(y):
            return _equal_values(x, y, within=mpq(99, 10 ** (x[2] + 2)))
    # 25% may be 25 or 25/100, which is what its node evaluates to; the same with degrees
    meant = [(x, x[1][0]) if x[0] in ("%", "°") else (x,) for x in (a, b)]
    return any(_equal_values(x, y) for x in meant[0] for y in meant[1])


def _said(node):
    """What a tree says: of x = 5 the 5, of x > 3 and of unions the intervals, of {5} the 5."""
    if node[0] == "set":
        if len(node[1]) == 1:
            return _said(node[1][0])
        items = [(item, _said(item)) for item in node[1]]
        return ("set", sum((said[1] if said[0] == "set" else (item,) for item, said in items), ()))
    if node[0] != "rel":
        return node
    _, signs, terms, is_named = node
    if {*signs} <= {"=", r"\in"}:
        return _said(terms[-1]) if is_named or not _symbols(node) else node
    at = [i for i, term in enumerate(terms) if term[0] == "sym" and term != _INFINITY]
    if len(at) != 1 or any(_symbols(term) - {r"\infty"} for term in terms if term != terms[at[0]]):
        return node
    ends = [("*", (_MINUS_ONE, _INFINITY)), *terms[:at[0]]][-1], [*terms[at[0] + 1:], _INFINITY][0]
    brackets = ("[" if r"\le" in signs[:at[0]] else "(") + ("]" if r"\le" in signs[at[0]:] else ")")
    return ("group", brackets, ends) if {*signs} <= {"<", r"\le"} and len(terms) < 4 else node


def _same_relation(a, b):
    if a[1] == b[1] and len(a[1]) == 1 and _symbols(a) == _symbols(b):
        # One is a multiple of the other if f / g is constant; the logarithm is undefined for f = 0
        # and g = 0, and for an inequality if the factor is negative.
        f, g = (("+", (left, ("*", (_MINUS_ONE, right)))) for left, right in (a[2], b[2]))
        quotient = ("*", (f, ("inv", (g,))))
        logarithm = ("log", (quotient if a[1] != ("=",) else ("*", (quotient, quotient)),))
        if _equal_values(logarithm, logarithm, others=1):
            return True
    names = {re.sub(r"_.*", "", side[2][0][1]) for side in (a, b) if side[2][0][0] == "sym"}
    if a[1] == b[1] == ("=",) and len(names) > 1:
        return False  # y = -1 is not x = -1
    said = _said(a), _said(b)
    if said != (a, b):
        return said[0] != a and said[1] != b and _same(*said)
    return a[1] == b[1] and len(a[2]) == len(b[2]) and all(map(_same, a[2], b[2]))
