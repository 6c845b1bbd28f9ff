r"""Is this math answer right? The grader of the benchmarks, and the reward of a training run.

    extract_answer(response) -> str | None     what a response finally answers
    verdict(response, answer) -> bool | None   right, wrong, or not decided within the bounds
    is_correct(response, answer) -> bool       verdict is True: undecided is not right
    is_readable(answer) -> bool                False for a gold answer that is broken

An answer is rewritten until one thing is written in one way, parsed into a tree of tuples, and
evaluated: exactly while it is rational, else with mpmath (sympy's arithmetic) at two precisions,
its variables at a few fixed points. Text from a model is never executed, nor handed to anything
that might. Sizes are checked before anything is evaluated, and all work is counted (STEPS), so a
verdict is a function of the two strings, and comes in time in any thread and any process.

Where people disagree, this is the policy:

- 25% equals 25 and 0.25, but 25 does not equal 0.25; 60 degrees equals 60 and pi/3.
- A unit says nothing: 5 cm equals 5. A number in base b is its value: 101_2 equals 5.
- A decimal equals what it approximates from nine digits on; 3.14 is not pi.
- Several solutions are a set: no order, no repetition; {1,2} equals 1,2, but (1,2) does not.
- y = 2x equals 2x, k = 3 equals 3; equations are equal up to a constant factor.
- Variables are real; where a root or a logarithm is not, nothing is compared.
- A thought that was not finished holds no answer; "\boxed{1} and \boxed{2}" is one answer, 1, 2.
"""

import math
import random
import re
import threading
import unicodedata
from itertools import product

from mpmath.ctx_mp import MPContext
from mpmath.rational import mpq  # exact, and at home among mpmath's floating-point numbers

LONGEST = 4_000  # characters of an answer that is more than one number
DEPTH = 40  # of the parser; each is some ten frames of the stack at most
STEPS = 20_000  # of all evaluations for one verdict together: well below a second
EXACT_BITS = 100_000  # larger rationals are approximated
LOW, HIGH = 50, 120  # digits of the two evaluations


class _Unreadable(Exception):
    """Not mathematics as this file knows it: only the wording can be compared."""


class _Undecided(Exception):
    """Too large, or undefined."""


# ------------------------------------------------------------------------------- finding the answer

_STOP = re.compile(r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|eos)\|>|(?!\A)<\|im_start\|>"
                   r"|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>")
_BOX = re.compile(r"\\+(?:boxed|fbox)\s*(?:\{|(\w+))|\\.|[{}]", re.DOTALL)
_NO_CONTENT = re.compile(r"(?:[\W_]|[lc]?dots|text|the|your|final|answer|here)*", re.I)
_MARKER = re.compile(r"(?:answer|réponse|respuesta|antwort|答案)[^.\n:=]{0,60}?"
                     r"(?:\b(?:is|are|est|es|ist)\b|[:=：是为])[\s*:]*", re.I)
_HASHES = re.compile(r"####[ \t]*((?!\d+[.)]\s)[-+$\\(\[.\d][^\n]*)")
_SENTENCE = re.compile(r"\.(?:\s|$)|[\n。]|\bI hope\b")
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_RUN = re.compile(r"(?:\\[a-zA-Z]+|[-−+*/^(){}\[\]\d.,%!=√π° ]|\\.)+")
_CHOICE = re.compile(r"(?<![\w'\\])\(?([A-H])\)?(?![\w'])")


def extract_answer(response):
    r"""The text of the final answer, or None.

    The last \boxed{} with something in it, else what follows "the answer is", else "####", else the
    last number or expression. Nothing behind a stop id counts, nor what was only thought.
    """
    text = _STOP.split(response, maxsplit=1)[0].rpartition("</think>")[2].partition("<think>")[0]
    boxed, tail = _last_boxed(text), text[-LONGEST:].strip()
    if boxed is not None:
        marked = _MARKER.search(boxed[:LONGEST])
        return boxed[marked.end():].rstrip("} ") if marked else boxed
    for marked in reversed([*_MARKER.finditer(tail)]):
        sentence = _SENTENCE.split(tail[marked.end():].strip(), maxsplit=1)[0].strip(" *")
        if sentence:
            rest = re.split(r"\b(?:is|are)\b", sentence)[-1]
            runs = [_trimmed(run) for run in _RUN.findall(rest) if re.search(r"\d", run)]
            return [*[sentence] * _is_math(sentence), *runs, *_CHOICE.findall(rest), sentence][0]
    hashes, choice = _HASHES.findall(tail), re.match(r"\(?([A-H])[.:)](?:\s|$)", tail)
    if hashes or choice or len(tail) < 200 and _is_math(tail):
        return hashes[-1].strip() if hashes else choice[1] if choice else tail
    found = [(m.end(), -m.start(), m[m.lastindex or 0])
             for pattern in (_RUN, _FORMULA) for m in pattern.finditer(tail)]
    found = [each for each in found if re.search(r"\d|\\begin", each[2])]
    if not found:
        return ([None] + _CHOICE.findall(tail))[-1]
    end, start, _ = max(found)  # the 4 of `$x \ge 4$ holds`: then the formula around it
    around = [each for each in found if each[1] >= start and each[0] >= end]
    return _trimmed(max(around, key=lambda each: each[1])[2])


def _last_boxed(text):
    opened, boxes = [], []
    for match in _BOX.finditer(text):
        if match[0] == "}" and opened:
            box, start = opened.pop()
            if box and not _NO_CONTENT.fullmatch(text, start, match.start()):
                boxes.append((box.start(), match.end(), text[start:match.start()].strip()))
        elif match[1]:
            boxes.append((match.start(), match.end(), match[1]))
        elif match[0][-1] == "{" and match[0] != r"\{":
            opened.append((match if len(match[0]) > 1 else None, match.end()))
    boxes.sort()  # of boxes in boxes, the innermost starts last
    found = [boxes.pop()] if boxes else []
    while boxes and boxes[-1][1] <= found[0][0] <= boxes[-1][1] + 40:
        between = text[boxes[-1][1]:found[0][0]]
        words = re.sub(r"\\text|\\q?quad|[\W_]", "", between)
        if words not in ("and", "or") and (words or "," not in between):
            break
        found.insert(0, boxes.pop())
    return ", ".join(content for _, _, content in found) if found else None


def _trimmed(run):
    """A run of mathematical characters without the punctuation of the sentence around it."""
    run = run.strip(" *,;:!=/.").rpartition("=")[2].strip(" *,;:")
    return run if run.count("(") == run.count(")") else run.strip("()., ")


def _is_math(text):
    return bool(_readings(text)) and not re.search(r"[a-z]{2} [a-z]+ [a-z]{2}", text)


# ------------------------------------------------------------------------ one thing, one way to write it

_SYNONYMS = dict(pair.split(" ") for pair in r"""
** ^;\cdot *;\times *;\ast *;\div /;\colon :;\lt <;\gt >;== =;\equiv =;<= \le;\leq \le;\leqslant \le
>= \ge;\geq \ge;\geqslant \ge;!= \ne;\neq \ne;\lbrace \{;\rbrace \};\langle (;\rangle );\dots \ldots
\dbinom \binom;\tbinom \binom;\cdots \ldots;\ln \log;− -;– -;× *;· *;⋅ *;÷ /;√ \sqrt;π \pi;∞ \infty
≤ \le;≥ \ge;≠ \ne;∪ \cup;∈ \in;± \pm;≈ \approx;θ \theta;and ,;or ,;percent %;pct %;degrees °
degree °;infinity \infty;inf \infty;pi \pi;sqrt \sqrt;theta \theta;about \approx;e e;approximately \approx
""".strip().replace("\n", ";").split(";"))
_FUNCTIONS = dict(pair.split(" ") for pair in """
sin sin;cos cos;tan tan;cot cot;sec sec;csc csc;sinh sinh;cosh cosh;tanh tanh;log log;ln log;exp exp
arcsin asin;arccos acos;arctan atan;lg log10;abs fabs;floor floor;ceil ceil;max max;min min;gcd gcd;lcm lcm
! factorial;!! fac2;binom binomial
""".strip().replace("\n", ";").split(";"))
_UNITS = set("mm cm km in ft yd mi mg kg lb lbs oz ml hr hrs min sec ms mph kmh pm am sq".split())
_BASES = "zero one two three four five six seven eight nine ten eleven twelve".split()


def _repeating(match):
    whole, fixed, period = match[1], match[2], match[3]
    return f"(({whole}{fixed}{period}-0{whole}{fixed})/{'9' * len(period)}{'0' * len(fixed)})"


def _in_base(match):
    try:
        base = _BASES.index(match[2]) if match[2] in _BASES else int(match[2] or match[3])
        return f" {int(match[1], base)} "
    except ValueError:  # a digit that the base does not have, or no base
        raise _Unreadable from None


def _words(match):
    r"""Letters, bare or of a \text{}: "quoted" if they are words, else names, or variables."""
    is_text, text = match[1] is not None, (match[1] or match[0]).strip(" ~.,")
    before, parts = match.string[:match.start()], text.split()
    known = [word.lower() in _SYNONYMS or word in _FUNCTIONS for word in parts]
    if len(parts) > 1 and (all(known) or not is_text and not any(
            len(word) > 3 and not name for word, name in zip(parts, known))):
        return " ".join(_LETTERS.sub(_words, word) for word in parts)
    if all(known):
        return f" {_SYNONYMS.get(text.lower(), chr(92) + text)} "
    is_word = re.search(r"[^\W\d]{2}", text) if is_text else len(text) > 3 or not text.isascii()
    if re.search(r"[\d)}°] *$", before):  # behind a value: perhaps a unit
        is_word = is_word or text in _UNITS or (is_text or before[-1] == " ") and (
            len(text) > 2 or text in "mgshLJNW")
    return '"' + re.sub(r"^(?:an?|the) |\W", "", text.lower()) + '"' if is_word else text


_LETTERS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|math(?:rm|bf|it|sf)|operatorname\*?) *\{([^{}]*)\}"
    r"|(?<![\\A-Za-z])[A-Za-z]+(?: +[A-Za-z]+)*|[^\W\d_A-Za-z°]+")
_REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?:\\\\|\\cr)\s*(\\end)", r"\1"),
    (r"\\begin *\{(?:[a-z]*matrix\}|array\} *\{[^{}]*\})", "⟦⟦"),  # a matrix is a tuple of rows
    (r"\\\\", "⟧,⟦"),
    (r"\\end *\{[a-z]*\}", "⟧⟧"),
    (r"&", ","),
    (r"(?<=\d)(?:,\\!|\{,\}(?:\\!)?|\\[,;:!])\s*(?=\d{3}(?!\d))", ""),  # thousands, as LaTeX has them
    (r"\\(?:left|right)(?![a-z])\.?|\\pmod *(?:\{[^{}]*\}|\d)|\( *mod[^()]*\)", " "),
    (r"\\[,;:!>\s()\[\]$]|\\q?quad\b|\\[bB]igg?[lrm]?(?![a-z])|[$~€£\"`]", " "),
    (r"\\(?:displaystyle|textstyle|limits|boxed|fbox|phantom *-)(?![a-z])", " "),
    (r"\\mathbb *\{?R\}?|ℝ", r"(-\\infty,\\infty)"),
    (r"\\emptyset|\\varnothing|∅", r"\\{\\}"),
    (r"(\d*)\.(\d*)\\(?:overline|dot|bar) *\{?(\d+)\}?", _repeating),
    (r"\\(bar|vec|hat|d?dot|tilde|overline|overrightarrow|mathbb) *\{\\?(\w+)\}", r"\\\1\2 "),
    (r"\\[lr]?vert|\\mid", "|"),
    (r"\|([^|]*)\|", r"\\abs(\1)"),
    (r"(?:\\l|⌊)(floor)|⌊", r"\\floor("),
    (r"\\lceil|⌈", r"\\ceil("),
    (r"\\r(?:floor|ceil)|⌋|⌉", ")"),
    (r"\^ *\{? *\\circ *\}?|\\degree\b", "°"),
    (r"\^ *\{? *\\prime *\}?", "'"),
    (r"\\%", "%"),
    (r"(\d) +x +(?=\d)", r"\1*"),
    (r"(\d)[eE]([-+]?\d+)", r"\1*10^{\2}"),
    (r"(?<![\d.])(\d[\dA-F]*)_(?:\{(?:\\text *\{)?([1-9]\d?|[a-z]+)\}+|([2-9]))", _in_base),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\frac *(\d)", r"\\frac{\1}"),
    (r"(\\frac *\{[^{}]*\}) *(\d)", r"\1{\2}"),
    (r"\\sqrt *\[([^\[\]]+)\]", r"\\root{\1}"),
    (r"(?<![\^_.\d])(\d+) *(\\frac *\{\d+\} *\{\d+\})", r"(\1+\2)"),  # mixed numbers
    (r"(?<![\^_.\d])(\d+) +(\d+ */ *\d+)(?!\d)", r"(\1+\2)"),
    (_LETTERS, _words),
    # a unit behind a value, with its exponent or what it is divided by
    (r'(?<=[\w)}°%])\s*"[^"]*"(?:\s*\^\s*\{?\d\}?|\s*/\s*"[^"]*")*\s*(?=$|[,;()\]}=:])', " "),
    (r",[\s,]*,", ","),
)]
_TOKEN = re.compile(
    r"\d+\.?\d*|\.\d+|\"[^\"]*\"|(?:\\[A-Za-z]+|[A-Za-z])\s*(?:_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\\[A-Za-z]+|[^\s\\{}])|')*|\\.|\*\*|[<>!=]=|\S", re.DOTALL)


def _rewritten(text, merge=True):
    """The text in its plainest form. With `merge`, 1,000 and 1 000 are one number, but where
    brackets say that it may be a pair."""
    if len(text) > LONGEST:
        raise _Undecided
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴-⁹⁻]+", lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
        text = unicodedata.normalize("NFKC", re.sub("(?=[¼-¾⅐-⅞])", " ", text)).replace("⁄", "/")
        text = "".join(f" {_SYNONYMS[c]} " if c in _SYNONYMS and c > "z" else c for c in text)
    text = re.sub(r"^[\s'=]+|(?<=\d)'$|[\s.,;:]+$", "", text)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    if merge and not re.search(r"[(\[⟦]|\\\{", text):
        text = re.sub(r"(?<![\d.,])\d{1,3}(?:[, ]\d{3})+(?!\d)", lambda m: re.sub("[, ]", "", m[0]), text)
    if ";" in text:  # p=5,q=2;p=7,q=2
        text = "(" + text.replace(";", "),(") + ")"
    exact, approximates, rounded = text.partition(r"\approx")
    if approximates:  # p = 1/3 ≈ 0.33 says 1/3, but p ≈ 0.33 says 0.33
        is_name = re.search(r"(?<!_)(?<!_\{)[\d=]", exact) is None
        text = f"{exact}={rounded}" if is_name and exact.strip() else rounded if is_name else exact
    if r"\pm" in text or r"\mp" in text:  # both signs, one behind the other
        upper, lower = (re.sub(r"\\[pm]+(?![a-z])", lambda m: signs[m[0]], text) for signs in (
            {r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}))
        text = f"{upper},{lower}"
    return text.strip(" ,.=")


def _tokens(text):
    tokens = (re.sub(r"\s", "", token) for token in _TOKEN.findall(text))
    return [_SYNONYMS.get(token, token) for token in tokens]


# ------------------------------------------------------------------------------------------- parser
#
# The tree: ("num", rational, decimal places), ("sym", name), ("word", text), ("+", terms),
# ("*", factors), ("inv", x), ("^", base, exponent), ("fn", name, arguments), ("%" or "°", x), and
# around them ("rel", signs, terms, whether it starts with a name), ("set", items), and
# ("group", open, close, items) for tuples, intervals, matrices, and ratios of more than two.

_RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in")
_SIGNS = {",": 1, **dict.fromkeys(_RELATIONS, 2), r"\cup": 3, ":": 4, "+": 5, "-": 5, "*": 6, "/": 6}
_TURNED = {">": "<", r"\ge": r"\le", "<": ">", r"\le": r"\ge"}
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", "⟦": "⟧"}
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\root": 2, r"\sqrt": 1}
_ONE, _HALF = ("num", mpq(1), 0), ("num", mpq(1, 2), 0)
_INFINITY, _CONSTANTS = ("sym", r"\infty"), (r"\pi", "e", "i")
# the left side of an equation that only names what is asked for: x, f(2), AB, \frac{NO}{BO}, (x,y)
_NAME = re.compile(r"(?:\\?[A-Za-z](?:\^\{-1\}|_\{[^{}]*\}|_.)*|\([^()]*\)|\\?[{}]|[/:,|'\s]|\"\w*\")+")


def _negative(node):
    if node[0] in ("%", "°"):
        return (node[0], _negative(node[1]))
    return ("num", -node[1], node[2]) if node[0] == "num" else _joined("*", (("num", mpq(-1), 0), node))


def _joined(kind, parts):
    """A sum or a product; of matrices, entry by entry."""
    matrices = [part[3] for part in parts if part[:2] == ("group", "⟦")]
    if len(parts) == 1 or not matrices:
        return (kind, tuple(parts)) if len(parts) > 1 else parts[0]
    if len({*map(len, matrices)}) > 1 or len(matrices) != (len(parts) if kind == "+" else 1):
        raise _Unreadable
    entries = zip(*([part] * len(matrices[0]) if part[:2] != ("group", "⟦") else part[3] for part in parts))
    return ("group", "⟦", "⟧", tuple(_joined(kind, entry) for entry in entries))


class _Parser:
    """Precedence climbing over tokens."""

    def __init__(self, tokens):
        self.tokens, self.at, self.depth = [*tokens, ""], 0, 0

    def next(self):
        self.at += 1
        if self.at == len(self.tokens):
            raise _Unreadable
        return self.tokens[self.at - 1]

    def take(self, token):
        return self.tokens[self.at] == token and self.next()

    def whole(self):
        node = self.expression()
        if self.tokens[self.at]:
            raise _Unreadable
        return ("set", node[1]) if node[0] == "list" else node

    def binds(self):
        """How strongly the next token ties what stands before it and behind it; 0 for not at all."""
        token = self.tokens[self.at]
        return _SIGNS.get(token) or 6 * self.begins_factor(token)

    def begins_factor(self, token):
        before = self.tokens[self.at - 1]
        if token[:1].isdigit() and before[:1].isdigit() or before[:1] == '"':
            return False
        return token in _CLOSING or re.match(r"\\?[A-Za-z]|\d", token) is not None

    def expression(self, level=0):
        start, node = self.at, self.power()
        while (binds := self.binds()) > level:
            name, signs, parts = "".join(self.tokens[start:self.at]), [], [node]
            while self.binds() == binds:
                signs.append(self.next() if self.tokens[self.at] in _SIGNS else "*")
                parts.append(self.expression(binds))
            node = self.tied(signs, parts, _NAME.fullmatch(name) is not None)
        return node

    def tied(self, signs, parts, is_named):
        if signs[0] == "," or signs[0] == r"\cup":
            return ("list" if signs[0] == "," else "set", tuple(parts))
        if signs[0] in _RELATIONS:
            if signs[0] in (">", r"\ge"):
                signs, parts = [_TURNED.get(sign, sign) for sign in reversed(signs)], parts[::-1]
            return ("rel", tuple(signs), tuple(parts), is_named)
        if signs[0] == ":" and len(parts) > 2:
            return ("group", ":", ":", tuple(parts))
        parts = [_negative(part) if sign == "-" else ("inv", part) if sign in "/:" else part
                 for sign, part in zip(["*", *signs], parts)]
        return _joined("+" if signs[0] in "+-" else "*", parts)

    def power(self):
        self.depth += 1
        if self.depth > DEPTH:
            raise _Undecided
        sign = 1
        while self.tokens[self.at] in ("+", "-"):
            sign = -sign if self.next() == "-" else sign
        node = self.primary()
        while self.tokens[self.at] in ("!", "%", "°"):
            mark = self.next()
            node = (mark, node) if mark != "!" else ("fn", "!!" if self.take("!") else "!", (node,))
        node = ("^", node, self.power()) if self.take("^") else node
        self.depth -= 1
        return node if sign > 0 else _negative(node)

    def primary(self):
        token = self.next()
        name, _, index = token.partition("_")
        if token in _CLOSING:
            return self.group(token)
        if token[0].isdigit() or token[0] == "." and len(token) > 1:
            whole, _, decimals = token.partition(".")
            if len(token) > LONGEST:
                raise _Undecided
            return ("num", mpq(int(whole + decimals), 10 ** len(decimals)), len(decimals))
        if name in _ARGUMENTS:
            args = tuple(self.primary() for _ in range(_ARGUMENTS[name]))
            if name == r"\binom":
                return ("fn", "binom", args)
            return ("*", (args[0], ("inv", args[1]))) if name == r"\frac" else (
                "^", args[-1], ("inv", args[0]) if name == r"\root" else _HALF)
        if name[0] == "\\" and name[1:] in _FUNCTIONS:
            return self.function(name[1:], index)
        if not re.match(r"\\?[A-Za-z]|\"", token) or token in _SIGNS:
            raise _Unreadable
        return ("word", token[1:-1]) if token[0] == '"' else ("sym", re.sub("[{}]", "", token))

    def group(self, opening):
        if opening == r"\{" and self.take(r"\}"):
            return ("set", ())
        node = self.expression()
        items, closing = node[1] if node[0] == "list" else (node,), self.next()
        if opening == "⟦" == closing.replace("⟧", "⟦") or opening in "([" and closing in ")]" and (
                len(items) > 1):
            is_matrix = opening == "[" and all(item[:2] == ("group", "[") for item in items)
            if is_matrix:
                items = tuple(("group", "⟦", "⟧", item[3]) for item in items)
            return ("group", "⟦", "⟧", items) if is_matrix else ("group", opening, closing, items)
        if closing != _CLOSING[opening]:
            raise _Unreadable
        return ("set", items) if opening == r"\{" or len(items) > 1 else node

    def function(self, name, index):
        exponent = self.power() if self.take("^") else None
        if self.tokens[self.at] in ("(", "{", "["):
            argument = self.primary()
        else:  # \sin 2x \cos y: the argument is 2x
            factors = [self.power()]
            while (token := self.tokens[self.at]) not in _SIGNS and self.begins_factor(token) and (
                    token not in ("(", "[") and token.partition("_")[0][1:] not in _FUNCTIONS):
                factors.append(self.power())
            argument = _joined("*", factors)
        if exponent == ("num", mpq(-1), 0):
            name, exponent = "arc" + name, None
        node = ("fn", name, argument[-1] if argument[0] in ("group", "set") else (argument,))
        if index and name == "log":
            node = ("*", (node, ("inv", ("fn", name, (_Parser(_tokens(index)).whole(),)))))
        return ("^", node, exponent) if exponent else node


def _readings(text):
    """The trees that the text may stand for; none if it is not mathematics."""
    found, texts = [], [(text, True), (text, False)]
    if re.fullmatch(r"\s*[-+]?(?:\d+,(?:\d\d|\d{4,})|0,\d+)\s*", text):
        texts.append((text.replace(",", "."), True))  # a decimal comma, perhaps
    for each, merge in texts:
        try:
            tree = _Parser(_tokens(_rewritten(each, merge))).whole()
        except (_Unreadable, _Undecided, RecursionError, ValueError):
            continue
        found += [tree] if tree not in found else []
    return found


# ------------------------------------------------------------------------------------------- values


class _Work(threading.local):
    """A thread's own arithmetic (a precision belongs to a context), and the steps it has left."""

    def __init__(self):
        self.low, self.high = MPContext(), MPContext()
        self.low.dps, self.high.dps = LOW, HIGH
        self.left, self.real, self.undecided = 0, False, False

    def spend(self, steps):
        self.left -= steps
        if self.left < 0:
            raise _Undecided


_work = _Work()
# mpmath keeps pi and its like for all threads together, which is not safe when more digits are due.
_all_digits = MPContext()
_all_digits.dps = 8 * HIGH
_KEPT = [+getattr(_all_digits, name) for name in ("pi", "e", "ln2", "ln10", "degree")]
_ON_INTEGERS = {"abs": abs, "max": max, "min": min, "gcd": math.gcd, "lcm": math.lcm, "binom": math.comb,
                "!": math.factorial, "!!": lambda n: math.prod(range(n, 0, -2))}


def _bits(x):
    return sum(part.bit_length() for part in x._mpq_) if isinstance(x, mpq) else 0


def _value(node, at, mp):
    """The node's value at a point {name: rational}: a rational if that is possible, else mpmath's."""
    kind = node[0]
    _work.spend(1)
    if kind == "num":
        return node[1]
    if kind == "sym":
        return at[node[1]] if node[1] in at else +{r"\pi": mp.pi, "e": mp.e, "i": mp.j}[node[1]]
    if kind in ("+", "*"):
        total = _value(node[1][0], at, mp)
        for part in node[1][1:]:
            x = _value(part, at, mp)
            both = total + x if kind == "+" else total * x
            if kind == "+" and x and total and both in (x, total):
                raise _Undecided  # one of them is lost in the digits of the other
            _work.spend(_bits(both) // 500)
            total = both if _bits(both) <= EXACT_BITS else mp.convert(both)
        return total
    if kind in ("%", "°"):
        return _value(node[1], at, mp) * (mpq(1, 100) if kind == "%" else +mp.degree)
    if kind in ("inv", "^"):
        return _power(_value(node[1], at, mp), mpq(-1) if kind == "inv" else _value(node[2], at, mp), mp)
    if kind != "fn":
        raise _Undecided
    return _function(node[1], [_value(x, at, mp) for x in node[2]], mp)


def _power(a, b, mp):
    exact = isinstance(b, mpq)
    p, q = b._mpq_ if exact else (0, 0)
    if not a and not (exact and p > 0):
        raise _Undecided
    if q == 1 and isinstance(a, mpq) and abs(p) * _bits(a) <= EXACT_BITS:
        _work.spend(abs(p) * _bits(a) // 500)
        return a**p
    if q != 1 and isinstance(a, (mpq, mp.mpf)) and a < 0:
        if q % 2:  # the real root: (-8)^(1/3) is -2
            return _power(-a, b, mp) * (-1) ** (p % 2)
        if _work.real:
            raise _Undecided
    if a and mp.mag(b) + math.log2(abs(int(mp.mag(a))) + 1) > 64:
        raise _Undecided
    return mp.power(a, p if q == 1 else b)


def _function(name, args, mp):
    _work.spend(20)
    if name in _ON_INTEGERS and all(_bits(x) < 15 and x._mpq_[1] == 1 for x in args if isinstance(x, mpq)):
        if all(isinstance(x, mpq) for x in args):
            return mpq(_ON_INTEGERS[name](*(x._mpq_[0] for x in args)))
    if any(mp.mag(x) > (60 if name in ("!", "binom") else 300) for x in args) and name != "log" or (
            name == "log" and _work.real and not mp.im(args[0]) and mp.re(args[0]) <= 0):
        raise _Undecided
    if name in ("floor", "ceil"):  # log_2 8 may come out below 3
        args[0] += mp.mpf(10) ** (10 - mp.dps) * (1 if name == "floor" else -1)
    return getattr(mp, _FUNCTIONS[name])(*args)


def _equal_values(a, b, others=0, within=0):
    """Whether two trees have the same value, at several points if there are variables; `within` is
    added to the tolerance, and with `others` the points of b are others than those of a.

    A difference that is only rounding shrinks with the precision, a real one stays.
    """
    names, agreed = _symbols(a) | _symbols(b), 0
    for trial in range(len(_RANGES) if names else 1):
        points = [{name: _coordinate(name, trial + shift) for name in names} for shift in (0, others)]
        _work.real, differences = bool(names), []
        try:
            for mp in (_work.low, _work.high):
                x, y = _value(a, points[0], mp), _value(b, points[1], mp)
                differences.append(abs(mp.convert(x - y)))
                scale = max(abs(mp.convert(x)), abs(mp.convert(y)), differences[0] * mp.mpf(10) ** LOW)
            exact = isinstance(x, mpq) and isinstance(y, mpq) and not within
            if x != y if exact else not differences[1] <= scale * mp.mpf(10) ** (30 - HIGH) + within:
                return False
            agreed += 1
        except (_Undecided, ArithmeticError, ValueError, TypeError, KeyError, mp.NoConvergence):
            continue  # undefined, too large, or not real, at this point
    if agreed < min(3, len(names) * 3 or 1):
        _work.undecided = True
    return agreed >= (3 if names else 1)


_RANGES = [(0, 1), (1, 3), (-2, 0), (0, 1), (2, 9), (1, 3), (-9, -2), (9, 40), (0, 1), (2, 9)]


def _coordinate(name, trial):
    low, high = _RANGES[trial % len(_RANGES)]
    return mpq(random.Random(f"{name} {trial}").randrange(97 * low + 1, 97 * high), 97)


def _symbols(node):
    if node[:1] == ("sym",):
        return {node[1]} - {*_CONSTANTS}
    return set().union(*(_symbols(part) for part in node if isinstance(part, tuple)))


# ----------------------------------------------------------------------------------------- verdicts


def verdict(response, answer):
    """Whether the response's final answer equals the answer; None if that is not decided."""
    found = extract_answer(response)
    if found is None:
        return False
    numbers = _digits(found), _digits(answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    spelled = _spelling(found), _spelling(answer)
    for text, letter in zip((found, answer), reversed(spelled)):  # (B) 12 is B
        choice = re.match(r"\W*(?:text\w*\W*)?([A-Z])\s*[).:}]", text)
        if letter and (letter in spelled[:1] == spelled[1:] or choice and choice[1] == letter):
            return True
    _work.left, _work.undecided = STEPS, max(len(found), len(answer)) > LONGEST
    try:
        pairs = product(_readings(found), _readings(answer))
        return any(_same(a, b) for a, b in pairs) or (None if _work.undecided else False)
    except RecursionError:
        return None


def is_correct(response, answer):
    """Whether the response's final answer equals the answer, beyond doubt."""
    return verdict(response, answer) is True


def is_readable(answer):
    """Whether a gold answer is in order: its brackets are balanced, its $ come in pairs."""
    text = re.sub(r"\\[{}]", "", answer).strip()
    return bool(text.strip(" $")) and text.count("{") == text.count("}") and (
        text.count("$") % 2 == 0 and re.search(r"\$\s+\$", text) is None)


def _digits(text):
    """A plain number of any size, exactly, as (is negative, whole digits, decimals); else None."""
    match = re.fullmatch(
        r"[\s$]*([-+−]?)(\d{1,3}(?:(?:,\\!\s*|\{,\}|,)\d{3})+|\d*)(?:\.(\d*))?[\s$.]*", text)
    if match is None or not match[2] and not match[3]:
        return None
    whole, decimals = re.sub(r"\D", "", match[2]).lstrip("0"), (match[3] or "").rstrip("0")
    return match[1] in ("-", "−") and bool(whole or decimals), whole, decimals


def _spelling(text):
    try:
        spelled = "".join(token.strip('"') for token in _tokens(_rewritten(text)))
    except (_Unreadable, _Undecided, RecursionError):
        spelled = re.sub(r"[\s$]", "", text)
    return spelled.lower() if len(spelled) > 2 else spelled


def _same(a, b):
    """Whether two trees are the same answer."""
    if a[0] == b[0] == "rel" and a != b:
        return _same_relation(a, b)
    a, b = _said(a), _said(b)
    kinds = {a[0], b[0]}
    if a == b or a[0] == b[0] == "set":
        return a == b or all(
            any(_same(x, y) for y in d[1]) for c, d in ((a, b), (b, a)) for x in c[1])
    if kinds == {"group"}:
        if (a[1] == "⟦") != (b[1] == "⟦"):  # a vector is a matrix of one column, or a tuple
            a, b = (("group", "(", ")", sum((row[3] for row in x[3]), ())) if x[1] == "⟦" and all(
                len(row[3]) == 1 for row in x[3]) else x for x in (a, b))
        return len(a[3]) == len(b[3]) and (a[1:3] == b[1:3] or len(a[3]) > 2) and all(
            map(_same, a[3], b[3]))
    if kinds & {"group", "set", "rel", "word"}:
        return False
    if a[0] == b[0] and a[0] in ("%", "°"):
        return _equal_values(a[1], b[1])
    for x, y in ((a, b), (b, a)):  # a long decimal rounds what is not a decimal
        if x[0] == "num" != y[0] and x[2] and abs(x[1]) * 10 ** x[2] >= 10**8 and not _symbols(y):
            return _equal_values(x, y, within=mpq(1, 2 * 10 ** x[2]))
    # 25% may be 25 or 25/100, which is what its node evaluates to; the same with degrees
    meant = [(x, x[1]) if x[0] in ("%", "°") else (x,) for x in (a, b)]
    return any(_equal_values(x, y) for x, y in product(*meant))


def _said(node):
    """What a tree says: of x = 5 the 5, of x > 3 and of unions the intervals, of {5} the 5."""
    if node[0] == "set":
        items = []
        for item in node[1]:
            said = _said(item)
            items += said[1] if said[0] == "set" else (item if "=" in item[1:2] else said,)
        return _said(items[0]) if len(items) == 1 else ("set", tuple(items))
    if node[0] != "rel":
        return node
    _, signs, terms, is_named = node
    if set(signs) <= {"=", r"\in"}:
        return _said(terms[-1]) if is_named or not _symbols(node) else node
    at = [i for i, term in enumerate(terms) if term[0] == "sym" and term not in (_INFINITY, ("sym", "e"))]
    if len(at) != 1 or any(_symbols(term) - {r"\infty"} for term in terms if term != terms[at[0]]):
        return node
    ends = [_negative(_INFINITY), *terms[:at[0]]][-1], [*terms[at[0] + 1:], _INFINITY][0]
    if signs == (r"\ne",):
        bound = terms[1 - at[0]]
        return ("set", (("group", "(", ")", (ends[0], bound)), ("group", "(", ")", (bound, ends[1]))))
    brackets = "[" if r"\le" in signs[:at[0]] else "(", "]" if r"\le" in signs[at[0]:] else ")"
    return ("group", *brackets, ends) if set(signs) <= {"<", r"\le"} and len(terms) < 4 else node


def _same_relation(a, b):
    sides = a[2] + b[2]
    if a[1] == b[1] and len(a[1]) == 1 and _symbols(a) == _symbols(b):
        f, g = (("+", (x[2][0], _negative(x[2][1]))) for x in (a, b))
        # One is a multiple of the other if f / g is constant; the logarithm is undefined for f = 0
        # and g = 0, and for an inequality if the factor is negative.
        quotient = ("fn", "log", (("^", ("*", (f, ("inv", g))), ("num", mpq(2 if a[1] == ("=",) else 1), 0)),))
        if "group" not in (x[0] for x in sides) and _equal_values(quotient, quotient, others=1):
            return True
    names = {re.sub(r"_.*", "", side[1]) for side in sides[::2] if side[0] == "sym"}
    if a[1] == b[1] == ("=",) and len(names) > 1:
        return False  # y = -1 is not x = -1
    said = _said(a), _said(b)
    if said != (a, b):
        return said[0] != a and said[1] != b and _same(*said)
    return a[1] == b[1] and len(a[2]) == len(b[2]) and all(map(_same, a[2], b[2]))
