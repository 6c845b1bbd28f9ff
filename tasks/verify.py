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
from fractions import Fraction
from itertools import product

from mpmath.ctx_mp import MPContext

LONGEST = 4_000  # characters of an answer that is more than one number
DEPTH = 60  # of the parser; two or three frames each
STEPS = 20_000  # of all evaluations for one verdict together: well below a second
EXACT_BITS = 100_000  # larger rationals are approximated
LOW, HIGH = 40, 120  # digits of the two evaluations


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
_DOLLARS = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_RUN = re.compile(r"(?:\\[a-zA-Z]+|[-−+*/^(){}\[\]\d.,%!=√π° ]|\\.)+")
_CHOICE = re.compile(r"(?<![\w'\\])\(?([A-H])\)?(?![\w'])")


def extract_answer(response):
    r"""The text of the final answer, or None.

    The last \boxed{} with something in it, else what follows "the answer is", else "####", else the
    last number or expression. Nothing behind a stop id counts, nor what was only thought.
    """
    text = _STOP.split(response, maxsplit=1)[0].rpartition("</think>")[2].partition("<think>")[0]
    boxed, tail = _last_boxed(text), text[-LONGEST:]
    if boxed is not None:
        marked = _MARKER.search(boxed[:LONGEST])
        return boxed[marked.end():].rstrip("} ") if marked else boxed
    for marked in reversed([*_MARKER.finditer(tail)]):
        sentence = _SENTENCE.split(tail[marked.end():].strip(), maxsplit=1)[0].strip(" *")
        if sentence and _readings(sentence):
            return sentence
        if sentence:
            rest = re.split(r"\b(?:is|are)\b", sentence)[-1]
            runs = [_trimmed(run) for run in _RUN.findall(rest) if re.search(r"\d", run)]
            return [*runs, *_CHOICE.findall(rest), sentence][0]
    hashes = _HASHES.findall(tail)
    return hashes[-1].strip() if hashes else _last_expression(text.strip())


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


def _last_expression(text):
    if len(text) < 200 and _readings(text):
        return text
    text = text[-LONGEST:]
    choice = re.match(r"\(?([A-H])[.:)](?:\s|$)", text)
    found = [(m.end(), -m.start(), m[m.lastindex or 0])
             for pattern in (_RUN, _DOLLARS) for m in pattern.finditer(text)]
    found = [each for each in found if re.search(r"\d|\\begin", each[2])]
    if choice or not found:
        return choice[1] if choice else ([None] + _CHOICE.findall(text))[-1]
    end, start, last = max(found)
    # `4` of `$x \ge 4$ for` ends within a formula: then the formula it is
    around = [each for each in found if each[1] >= start and each[0] >= end]
    return _trimmed(max(around, key=lambda each: each[1])[2])


def _trimmed(run):
    """A run of mathematical characters without the sentence's punctuation and lone brackets."""
    run = run.strip(" *,;:!=/").rstrip(".")
    for opening, closing in ("()", "[]", "{}"):
        if run.count(opening) < run.count(closing):
            run = run.rstrip(closing + " .,")
        elif run.count(opening) > run.count(closing):
            run = run.lstrip(opening + " .,")
    return run.rpartition("=")[2].strip(" *,;:")


# ------------------------------------------------------------------------- one thing, written one way

_SYNONYMS = dict(pair.split(" ") for pair in r"""
** ^;\cdot *;\times *;\ast *;\div /;\colon :;\lt <;\gt >;== =;\equiv =;<= \le;\leq \le;\leqslant \le
>= \ge;\geq \ge;\geqslant \ge;!= \ne;\neq \ne;\lbrace \{;\rbrace \};\lvert |;\rvert |;\vert |
\langle (;\rangle );\dbinom \binom;\tbinom \binom;\dots \ldots;\cdots \ldots;\ln \log;\to \rightarrow
\varnothing \emptyset;\And ,;− -;– -;× *;· *;⋅ *;÷ /;√ \sqrt;π \pi;∞ \infty;≤ \le;≥ \ge;≠ \ne
∪ \cup;∈ \in;± \pm;≈ \approx;∅ \emptyset;θ \theta;ℝ \mathbbR;⌊ \lfloor;⌋ \rfloor;⌈ \lceil;⌉ \rceil
and ,;or ,;percent %;pct %;degrees °;degree °;infinity \infty;inf \infty;pi \pi;sqrt \sqrt;e e
theta \theta;about \approx;approximately \approx;pmatrix pmatrix
""".strip().replace("\n", ";").split(";"))
_FUNCTIONS = {name: name for name in "sin cos tan cot sec csc sinh cosh tanh log max min gcd lcm".split()}
_FUNCTIONS |= dict(arcsin="asin", arccos="acos", arctan="atan", lg="log10", ln="log", exp="exp")
_UNITS = set("mm cm km in ft yd mi mg kg lb lbs oz ml hr hrs min sec ms mph kmh pm am sq".split())
_BASES = "zero one two three four five six seven eight nine ten eleven twelve".split()


def _repeating(match):
    whole, fixed, period = match[1], match[2], match[3]
    return f"(({whole}{fixed}{period}-0{whole}{fixed})/{'9' * len(period)}{'0' * len(fixed)})"


def _in_base(match):
    base = match[2] or match[3]
    try:
        return f" {int(match[1], int(base) if base.isdigit() else _BASES.index(base))} "
    except ValueError:  # a digit that the base does not have, or no base
        raise _Unreadable from None


def _words(match):
    r"""Letters, bare or of a \text{}: "quoted" if they are words, else names, or variables."""
    is_text, text = match[1] is not None, (match[1] or match[0]).strip(" ~.,")
    before, parts = match.string[:match.start()], text.split()
    known = [word.lower() in _SYNONYMS or word.lower() in _FUNCTIONS for word in parts]
    if all(known) or not is_text and len(parts) > 1 and not any(
            len(word) > 3 and not names for word, names in zip(parts, known)):
        if len(parts) > 1:
            return " ".join(_LETTERS.sub(_words, word) for word in parts)
        plain = text.lower() if len(text) > 1 else text
        return f" {_SYNONYMS.get(plain, chr(92) + plain)} "
    is_word = re.search(r"[^\W\d]{2}", text) if is_text else len(text) > 3 or not text.isascii()
    if re.search(r"[\d)}°] *$", before):  # behind a value: perhaps a unit
        is_word = is_word or text in _UNITS or (is_text or before[-1] == " ") and (
            len(text) > 2 or text in "mgshLJNW")
    return '"' + re.sub(r"^(?:an?|the) |\W", "", text.lower()) + '"' if is_word else text


_LETTERS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|math(?:rm|bf|it|sf)|operatorname\*?) *\{([^{}]*)\}"
    r"|(?<![\\A-Za-z])[A-Za-z]+(?: +[A-Za-z]+)*|[^\W\d_A-Za-z°]+")
_REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"\\\\", ";"),  # the rows of a matrix
    (r"(?<=\d)(?:,\\!|\{,\}(?:\\!)?|\\[,;:!])\s*(?=\d{3}(?!\d))", ""),  # thousands, as LaTeX has them
    (r"\\(?:left|right)(?![a-z])\.?|\\pmod *(?:\{[^{}]*\}|\d)|\( *mod[^()]*\)", " "),
    (r"\\[,;:!>\s()\[\]$]|\\q?quad\b|\\[bB]igg?[lrm]?(?![a-z])|[$~€£\"`]", " "),
    (r"\\(?:displaystyle|textstyle|limits|boxed|fbox|phantom *-)(?![a-z])", " "),
    (r"(\d*)\.(\d*)\\(?:overline|dot|bar) *\{?(\d+)\}?", _repeating),
    (r"\\(bar|vec|hat|d?dot|tilde|overline|overrightarrow|mathbb) *\{\\?(\w+)\}", r"\\\1\2 "),
    (r"\\begin *\{(?:[a-z]*matrix\}|array\} *\{[^{}]*\})", "⟦"),
    (r"\\end *\{[a-z]*\}", "⟧"),
    (r"\^ *\{? *\\circ *\}?|\\degree\b", "°"),
    (r"\^ *\{? *\\prime *\}?", "'"),
    (r"\\%", "%"),
    (r"(\d) +x +(?=\d)", r"\1*"),
    (r"(\d)[eE]([-+]?\d+)", r"\1*10^{\2}"),
    (r"(?<![\d.])(\d[\dA-F]*)_(?:\{(?:\\text *\{)?([1-9]\d?|[a-z]+)\}+|([2-9]))", _in_base),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\frac *(\d)", r"\\frac{\1}"),
    (r"(\\frac *\{[^{}]*\}) *(\d)", r"\1{\2}"),
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
    """The text in the plainest writing. With `merge`, 1,000 and 1 000 are one number, but where
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
    exact, approximates, rounded = text.partition(r"\approx")
    if approximates:  # p = 1/3 ≈ 0.33 says 1/3, but p ≈ 0.33 says 0.33
        is_name = re.search(r"(?<!_)(?<!_\{)[\d=]", exact) is None
        text = f"{exact}={rounded}" if is_name and exact.strip() else rounded if is_name else exact
    return text.strip(" ,;.=")


def _tokens(text):
    tokens = (re.sub(r"\s", "", token) for token in _TOKEN.findall(text))
    return [_SYNONYMS.get(token, token) for token in tokens]


# ------------------------------------------------------------------------------------------- parser
#
# The tree: ("num", Fraction, decimal places), ("sym", name), ("word", text), ("+", terms),
# ("*", factors), ("inv", x), ("^", base, exponent), ("fn", name, arguments), ("%" or "°", x), and
# around them ("rel", signs, terms), ("set", items), ("union", parts), ("matrix", rows), and
# ("group", open, close, items) for tuples, intervals, and ratios of more than two.

_RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in")
_LEVELS = {";": 1, ",": 2, **dict.fromkeys(_RELATIONS, 3), r"\cup": 4, ":": 5, "+": 6, "-": 6,
           "*": 7, "/": 7, "!": 8, "%": 8, "°": 8, "^": 9}
_LISTS = {";": "rows", ",": "list", r"\cup": "union", ":": "ratio"}
_ARGUMENT = 7.5  # \sin 2x: juxtaposed factors belong to the argument, what follows a * does not
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_INFINITY = ("sym", r"\infty")
_CONSTANTS = (r"\pi", "e", "i")


def _number(value):
    return ("num", Fraction(value), 0)


def _negative(node):
    if node[0] == "num":
        return ("num", -node[1], node[2])
    return (node[0], _negative(node[1])) if node[0] in ("%", "°") else _join("*", _number(-1), node)


def _join(kind, a, b):
    """a + b or a * b, flat, so that a long sum is no deep tree; of matrices, entry by entry."""
    if b[0] == "matrix" and kind == "*":
        a, b = b, a
    if a[0] == "matrix":
        others = b[1] if b[0] == "matrix" else [[b] * len(row) for row in a[1]]
        if (b[0] == "matrix") != (kind == "+") or [*map(len, a[1])] != [*map(len, others)]:
            raise _Unreadable
        rows = (zip(*pair) for pair in zip(a[1], others))
        return ("matrix", tuple(tuple(_join(kind, *pair) for pair in row) for row in rows))
    return (kind, (a[1] if a[0] == kind else (a,)) + (b,))


class _Parser:
    """Precedence climbing over tokens."""

    def __init__(self, tokens):
        self.tokens, self.at, self.depth, self.bars = [*tokens, ""], 0, 0, False

    def peek(self):
        return self.tokens[self.at]

    def next(self, *expected):
        token = self.tokens[self.at]
        if not token or expected and token not in expected:
            raise _Unreadable
        self.at += 1
        return token

    def take(self, token):
        return self.peek() == token and self.next()

    def whole(self):
        node = self.expression()
        if self.peek():
            raise _Unreadable
        if node[0] == "rows":  # p=5,q=2;p=7,q=2
            items = (("group", "(", ")", part[1]) if part[0] == "list" else part for part in node[1])
            return ("set", tuple(items))
        return ("set", node[1]) if node[0] == "list" else node

    def expression(self, level=0):
        self.depth += 1
        if self.depth > DEPTH:
            raise _Undecided
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.next() == "-" else sign
        # -2x^2 is -(2 x^2); but the exponent of 2^-x y ends where it would without the sign
        node = self.primary() if sign > 0 else _negative(self.expression(max(level, _LEVELS["+"])))
        while True:
            token, binds = self.peek(), _LEVELS.get(self.peek(), 0)
            if not binds and self.begins_factor(token):
                stops = token in "([" or token.partition("_")[0][1:] in _FUNCTIONS
                binds, token = 8 if level == _ARGUMENT and not stops else 7, "juxtaposed"
            if binds <= level:
                self.depth -= 1
                return node
            node = self.infix(token, binds, node)

    def begins_factor(self, token):
        before = self.tokens[self.at - 1]
        if token[:1].isdigit() and before[:1].isdigit() or before[:1] == '"':
            return False
        return token in _CLOSING or token == "⟦" or token == "|" and not self.bars or (
            token not in _CLOSING.values() and re.match(r"\\?[A-Za-z]|\d", token))

    def infix(self, token, binds, node):
        if token != "juxtaposed":
            self.next()
        if token in ("%", "°"):
            return (token, node)
        if token == "!":
            return ("fn", "!!" if self.take("!") else "!", (node,))
        if token == "^":
            return ("^", node, self.primary() if self.peek() == "{" else self.expression(8))
        if token == "," and self.peek() in ("", *_CLOSING.values()):
            return node  # a comma at the end
        parts, signs = [node, self.expression(binds)], [token]
        while token in _LISTS and self.take(token) or token in _RELATIONS and self.peek() in _RELATIONS:
            signs += [self.next()] if token in _RELATIONS else []
            parts.append(self.expression(binds))
        if token in _RELATIONS:
            return ("rel", tuple(signs), tuple(parts))
        if token == ":" and len(parts) > 2:
            return ("group", ":", ":", tuple(parts))
        if token in _LISTS and token != ":":
            return (_LISTS[token], tuple(parts))
        right = _negative(parts[1]) if token == "-" else parts[1]
        return _join("+" if binds == 6 else "*", node, ("inv", right) if token in "/:" else right)

    def primary(self):
        token = self.next()
        if token in _CLOSING:
            return self.group(token)
        if token[0].isdigit() or token[0] == "." and len(token) > 1:
            try:
                return ("num", Fraction(token), len(token.partition(".")[2]))
            except ValueError:  # more digits than int() takes
                raise _Undecided from None
        if token[0] == '"':
            return ("word", token[1:-1])
        if token == "⟦":
            rows = [[self.expression(2)]]
            while (mark := self.next("&", ";", "⟧")) != "⟧" and not self.take("⟧"):
                rows += [[]] if mark == ";" else []
                rows[-1].append(self.expression(2))
            return ("matrix", tuple(map(tuple, rows)))
        if token == "|" and not self.bars:
            self.bars = True
            node = self.expression(2)
            self.bars = False
            self.next("|")
            return ("fn", "abs", (node,))
        if not re.match(r"\\?[A-Za-z]", token) or token in _LEVELS or token in _CLOSING.values():
            raise _Unreadable
        return self.named(token)

    def group(self, opening):
        bars, self.bars = self.bars, False
        if opening == r"\{" and self.take(r"\}"):
            return ("set", ())
        node = self.expression()
        items, closing = node[1] if node[0] == "list" else (node,), self.next(*_CLOSING.values())
        self.bars = bars
        if opening in "([" and closing in ")]" and len(items) > 1:
            if opening == "[" and all(item[:3] == ("group", "[", "]") for item in items):
                return ("matrix", tuple(item[3] for item in items))
            return ("group", opening, closing, items)
        if closing != _CLOSING[opening]:
            raise _Unreadable
        if opening == r"\{" or len(items) > 1:
            return ("set", items)
        rounding = {r"\lfloor": "floor", r"\lceil": "ceil"}.get(opening)
        return ("fn", rounding, items) if rounding else node

    def named(self, token):
        name, _, index = token.partition("_")
        if name in (r"\frac", r"\binom"):
            a, b = self.primary(), self.primary()
            return ("fn", "binom", (a, b)) if name == r"\binom" else _join("*", a, ("inv", b))
        if name == r"\sqrt":
            degree = self.expression(2) if self.take("[") and self.peek() != "]" else _number(2)
            return ("^", self.primary() if degree == _number(2) or self.next("]") else None, ("inv", degree))
        if name[0] != "\\" or name[1:] not in _FUNCTIONS:
            special = {r"\emptyset": ("set", ()), r"\mathbbR": _interval(_negative(_INFINITY), _INFINITY)}
            return special.get(name, ("sym", re.sub("[{}]", "", token)))
        name, exponent = name[1:], None
        if self.take("^"):
            exponent = self.primary() if self.peek() == "{" else self.expression(8)
        node = self.primary() if self.peek() in ("(", "{", "[") else self.expression(_ARGUMENT)
        if exponent == _number(-1):
            name, exponent = "arc" + name, None
        if name == "exp":
            node = ("^", ("sym", "e"), node)
        else:
            node = ("fn", name, node[-1] if node[0] in ("group", "set") else (node,))
        if index and name == "log":
            node = _join("*", node, ("inv", ("fn", name, (_Parser(_tokens(index)).whole(),))))
        return ("^", node, exponent) if exponent else node


def _interval(low, high, opening="(", closing=")"):
    return ("group", opening, closing, (low, high))


def _parse(text, merge=True):
    """The tree of a text. A plus-minus makes a set of what it is with either sign."""
    tokens = _tokens(_rewritten(text, merge))
    if r"\pm" not in tokens and r"\mp" not in tokens:
        return _Parser(tokens).whole()
    both = ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"})
    trees = [_Parser([signs.get(token, token) for token in tokens]).whole() for signs in both]
    return ("set", sum((tree[1] if tree[0] == "set" else (tree,) for tree in trees), ()))


def _readings(text):
    """The trees that the text may stand for; none if it is not mathematics."""
    found = []
    texts = [(text, True), (text, False)]
    if re.fullmatch(r"\s*[-+]?(?:\d+,(?:\d\d|\d{4,})|0,\d+)\s*", text):
        texts.append((text.replace(",", "."), True))  # a decimal comma, perhaps
    for each, merge in texts:
        try:
            tree = _parse(each, merge)
        except (_Unreadable, _Undecided, RecursionError):
            continue
        if tree not in found:
            found.append(tree)
    return found


# ------------------------------------------------------------------------------------------- values


class _Work(threading.local):
    """A thread's own arithmetic (a precision belongs to a context), and the steps it has left."""

    def __init__(self):
        self.low, self.high = MPContext(), MPContext()
        self.low.dps, self.high.dps = LOW, HIGH
        self.left, self.real = 0, False

    def spend(self, steps):
        self.left -= steps
        if self.left < 0:
            raise _Undecided


_work = _Work()
# mpmath keeps pi and its like for all threads together, and is not safe while it needs more digits.
_all_digits = MPContext()
_all_digits.dps = 8 * HIGH
_KEPT = [+getattr(_all_digits, name) for name in ("pi", "e", "ln2", "ln10", "degree")]


def _bits(x):
    return x.numerator.bit_length() + x.denominator.bit_length()


def _inexact(x, mp):
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x


def _value(node, at, mp):
    """The node's value at a point {name: Fraction}: a Fraction if that is possible, else mpmath's."""
    kind = node[0]
    _work.spend(1)
    if kind == "num":
        return node[1]
    if kind == "sym":
        return +{r"\pi": mp.pi, "e": mp.e, "i": mp.j}.get(node[1], at.get(node[1]))
    if kind in ("+", "*"):
        total = _value(node[1][0], at, mp)
        for part in node[1][1:]:
            total = _combined(kind, total, _value(part, at, mp), mp)
        return total
    if kind == "fn":
        return _function(node[1], [_value(x, at, mp) for x in node[2]], mp)
    if kind not in ("inv", "^", "%", "°"):
        raise _Undecided
    x = _value(node[1], at, mp)
    if kind in ("%", "°"):
        return _combined("*", x, Fraction(1, 100) if kind == "%" else +mp.degree, mp)
    return _power(x, Fraction(-1) if kind == "inv" else _value(node[2], at, mp), mp)


def _combined(kind, a, b, mp):
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        _work.spend((_bits(a) + _bits(b)) // 500)
        result = a + b if kind == "+" else a * b
        return result if _bits(result) <= EXACT_BITS else _inexact(result, mp)
    a, b = _inexact(a, mp), _inexact(b, mp)
    if kind == "*":
        return a * b
    if mp is _work.high and a and b and a + b in (a, b):
        raise _Undecided  # one of them is lost in the digits of the other
    return a + b


def _power(a, b, mp):
    exact = isinstance(b, Fraction)
    if exact and isinstance(a, Fraction) and b.denominator == 1 and a:
        bits = abs(b.numerator) * _bits(a)
        if bits <= EXACT_BITS:
            _work.spend(bits // 500)
            return a**b.numerator
    if not a:
        if not exact or b <= 0:
            raise _Undecided
        return Fraction(0)
    is_negative = isinstance(a, (Fraction, mp.mpf)) and a < 0
    if exact and b.denominator > 1:
        if is_negative and b.denominator % 2:  # the real root: (-8)^(1/3) is -2
            return _combined("*", _power(-a, b, mp), Fraction((-1) ** (b.numerator % 2)), mp)
        if isinstance(a, Fraction) and not is_negative and _bits(a) < 300:
            high = _work.high
            parts = [int(high.nint(high.root(x, b.denominator))) for x in (a.numerator, a.denominator)]
            root = Fraction(*parts)
            if b.denominator < 100 and root**b.denominator == a:
                return _power(root, Fraction(b.numerator), mp)
    if is_negative and _work.real and not (exact and b.denominator == 1):
        raise _Undecided
    a, exponent = _inexact(a, mp), _inexact(b, mp)
    if mp.mag(exponent) + math.log2(abs(int(mp.mag(a))) + 1) > 64:
        raise _Undecided
    return mp.power(a, exponent)


_EXACT = {"abs": abs, "floor": math.floor, "ceil": math.ceil, "max": max, "min": min}


def _function(name, args, mp):
    _work.spend(20)
    whole = all(isinstance(x, Fraction) and x.denominator == 1 for x in args)
    if name in _EXACT and all(isinstance(x, Fraction) for x in args):
        return Fraction(_EXACT[name](*args))
    if whole and name in ("!", "!!", "gcd", "lcm", "binom") and all(0 <= x <= 2000 for x in args):
        numbers = [x.numerator for x in args]
        if name == "!!":
            return Fraction(math.prod(range(numbers[0], 0, -2)))
        exact = {"!": math.factorial, "gcd": math.gcd, "lcm": math.lcm, "binom": math.comb}
        return Fraction(exact[name](*numbers))
    args = [_inexact(x, mp) for x in args]
    largest = max(mp.mag(x) for x in args)
    if name == "log" and args[0] and not (_work.real and not mp.im(args[0]) and mp.re(args[0]) < 0):
        return mp.log(args[0])
    if largest > 300 or name in ("log", "!!", "gcd", "lcm") or name in ("!", "binom") and largest > 50:
        raise _Undecided
    if name == "!":
        return mp.gamma(args[0] + 1)
    if name in ("floor", "ceil"):  # log_2 8 may come out below 3
        nudge = mp.mpf(10) ** (10 - mp.dps)
        return mp.floor(args[0] + nudge) if name == "floor" else mp.ceil(args[0] - nudge)
    if name in ("abs", "max", "min"):
        return _EXACT[name](*args)
    return mp.binomial(*args) if name == "binom" else getattr(mp, _FUNCTIONS[name])(*args)


def _agree(a, b, at):
    """Whether two trees have the same value at a point.

    Twice: a difference that is only rounding shrinks with the precision, a real one stays.
    """
    _work.real = bool(at)
    differences, scale = [], 0
    for mp in (_work.low, _work.high):
        try:
            x, y = _value(a, at, mp), _value(b, at, mp)
        except (ArithmeticError, ValueError, TypeError, AttributeError, mp.NoConvergence):
            raise _Undecided from None
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return x == y
        x, y = _inexact(x, mp), _inexact(y, mp)
        differences.append(abs(x - y))
        scale = max(abs(x), abs(y), differences[0] * mp.mpf(10) ** LOW)
    return bool(differences[1] <= scale * _work.high.mpf(10) ** (30 - HIGH))


_RANGES = [(0, 1), (1, 3), (-2, 0), (0, 1), (2, 9), (1, 3), (-9, -2), (9, 40), (0, 1), (2, 9)]


def _equal_values(a, b):
    """True, False or None. Without a variable there is one point, with no coordinates."""
    names = _symbols(a) | _symbols(b)
    agreed = 0
    for trial, (low, high) in enumerate(_RANGES if names else [(0, 0)]):
        at = {name: Fraction(random.Random(f"{name} {trial}").randrange(97 * low + 1, 97 * high), 97)
              for name in names}
        try:
            if not _agree(a, b, at):
                return False
            agreed += 1
        except _Undecided:
            continue  # undefined, or not real, at this point
    return True if agreed >= (3 if names else 1) else None


def _symbols(node):
    if node[:1] == ("sym",):
        return {node[1]} - {*_CONSTANTS}
    return set().union(*(_symbols(part) for part in node if isinstance(part, tuple)))


# ---------------------------------------------------------------------------------------- verdicts


def verdict(response, answer):
    """Whether the response's final answer equals the answer; None if that is not decided."""
    found = extract_answer(response)
    if found is None:
        return False
    _work.left = STEPS
    numbers = _digits(found), _digits(answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    try:
        spelled = _spelling(found), _spelling(answer)
        if spelled[0] == spelled[1] and spelled[0]:
            return True
        for text, letter in zip((found, answer), reversed(spelled)):  # (B) 12 is B
            choice = re.match(r"\W*(?:text\w*\W*)?([A-Z])\s*[).:}]", text)
            if choice and choice[1] == letter:
                return True
        pairs = product(_readings(found), _readings(answer))
        return _any(_same(a, b) for a, b in pairs)
    except (_Undecided, RecursionError):
        return None


def is_correct(response, answer):
    """Whether the response's final answer equals the answer, beyond doubt."""
    return verdict(response, answer) is True


def is_readable(answer):
    """Whether a gold answer is in order: its brackets are balanced, its $ come in pairs."""
    text = re.sub(r"\\[{}]", "", answer)
    return bool(text.strip(" $")) and text.count("{") == text.count("}") and (
        text.count("$") % 2 == 0 and re.search(r"\$\s+\$", text.strip()) is None)


def _digits(text):
    """A plain number of any size, exactly, as (is negative, whole digits, decimals); else None."""
    match = re.fullmatch(
        r"[\s$]*([-+−]?)(\d{1,3}(?:(?:,\\!\s*|\{,\}|,)\d{3})+|\d*)(?:\.(\d*))?[\s$.]*", text)
    if match is None or not match[2] and not match[3]:
        return None
    whole = re.sub(r"\D", "", match[2]).lstrip("0")
    decimals = (match[3] or "").rstrip("0")
    return match[1] in ("-", "−") and bool(whole or decimals), whole, decimals


def _spelling(text):
    try:
        spelled = "".join(token.strip('"') for token in _tokens(_rewritten(text)))
    except (_Unreadable, _Undecided):
        spelled = re.sub(r"[\s$]", "", text)
    return spelled.lower() if len(spelled) > 2 else spelled


def _any(results):
    seen = [*results]
    return True if True in seen else None if None in seen else False


def _all(results):
    seen = [*results]
    return False if False in seen else None if None in seen else True


def _same(a, b):
    """Whether two trees are the same answer: True, False or None."""
    if a[0] == b[0] == "rel" and a != b:
        return _same_relation(a, b)
    a, b = _answer(a), _answer(b)
    kinds = {a[0], b[0]}
    if a == b:
        return True
    if "set" in kinds:
        return len(kinds) == 1 and _all(
            _any(_same(x, y) for y in others[1]) for some, others in ((a, b), (b, a)) for x in some[1])
    if kinds == {"matrix", "group"}:  # a vector, written either way
        a, b = (("group", "(", ")", sum(x[1], ())) if x[0] == "matrix" and (
            1 in (len(x[1]), len(x[1][0]))) else x for x in (a, b))
    if a[0] == b[0] == "group":
        return len(a[3]) == len(b[3]) and (a[1:3] == b[1:3] or len(a[3]) > 2) and _all(
            map(_same, a[3], b[3]))
    if a[0] == b[0] == "matrix":
        return [*map(len, a[1])] == [*map(len, b[1])] and _all(map(_same, sum(a[1], ()), sum(b[1], ())))
    if kinds & {"group", "matrix", "rel", "word"}:
        return False
    if a[0] == b[0] and a[0] in ("%", "°"):
        return _equal_values(a[1], b[1])
    # 25% may be 25 or 25/100, which is what its node evaluates to; the same with degrees
    meant = [(x, x[1]) if x[0] in ("%", "°") else (x,) for x in (a, b)]
    return _any([_equal_values(x, y) for x, y in product(*meant)] + [_rounds(a, b), _rounds(b, a)])


def _rounds(decimal, exact):
    """Whether `decimal` is a literal of nine digits or more, and rounds what has no last digit."""
    if decimal[0] != "num" or not decimal[2] or exact[0] == "num" or _symbols(exact):
        return False
    unit = Fraction(1, 10 ** decimal[2])
    value = _work.high
    try:
        value = _value(exact, {}, _work.high)
    except (_Undecided, ArithmeticError, ValueError, TypeError, AttributeError):
        return False
    if abs(decimal[1]) < unit * 10**8 or isinstance(value, Fraction) and (value / unit).denominator == 1:
        return False
    off = abs(_inexact(value, _work.high) - _inexact(decimal[1], _work.high))
    return bool(off <= _inexact(unit, _work.high))


def _answer(node):
    """What a tree says: of x = 5 the 5, of x > 3 and of unions the intervals, of {5} the 5."""
    if node[0] in ("set", "union"):
        items = []
        for item in node[1]:
            said = _answer(item)
            items += said[1] if said[0] == "set" else (item if item[0] == "rel" and "=" in item[1] else said,)
        return _answer(items[0]) if len(items) == 1 else ("set", tuple(items))
    if node[0] != "rel":
        return node
    signs, terms = _oriented(node)
    if set(signs) <= {"=", r"\in"}:
        return _answer(terms[-1]) if _is_name(terms[0]) or not _symbols(node) else node
    at = [i for i, term in enumerate(terms) if term[0] == "sym" and term[1] not in (*_CONSTANTS, r"\infty")]
    if len(at) != 1 or any(_symbols(t) - {r"\infty"} for t in terms if t != terms[at[0]]):
        return node
    low, high = _negative(_INFINITY), _INFINITY
    if signs == (r"\ne",):
        return ("set", (_interval(low, terms[1 - at[0]]), _interval(terms[1 - at[0]], high)))
    if not set(signs) <= {"<", r"\le"} or len(terms) > 3 or len(terms) == 3 and at[0] != 1:
        return node
    opening = "[" if at[0] and signs[at[0] - 1] == r"\le" else "("
    closing = "]" if at[0] < len(signs) and signs[at[0]] == r"\le" else ")"
    low, high = terms[at[0] - 1] if at[0] else low, terms[at[0] + 1] if at[0] < len(signs) else high
    return _interval(low, high, opening, closing)


def _oriented(node):
    """The signs and terms of a relation, > turned into <."""
    turned = {">": "<", r"\ge": r"\le"}
    if node[1][0] not in turned:
        return node[1:]
    return tuple(turned.get(sign, sign) for sign in reversed(node[1])), node[2][::-1]


def _is_name(node):
    """Whether it only names what is asked for, as in x = 5, f(2) = 5, AB = 5, (x, y) = (1, 2)."""
    kind = node[0]
    if kind == "sym":
        return node[1] not in (*_CONSTANTS, r"\infty")
    if kind == "*":
        anything = node[1][0][0] in ("sym", "^") and node[1][0][1][0] not in "xyzntkm"
        return _is_name(node[1][0]) and all(anything or _is_name(part) for part in node[1])
    if kind == "^":
        return node[2] == _number(-1) and _is_name(node[1])
    if kind == "inv":
        return _is_name(node[1])
    parts = node[2] if kind == "fn" and node[1] != "log" else node[3] if kind == "group" else ()
    return kind == "word" or bool(parts) and all(map(_is_name, parts))


def _same_relation(a, b):
    said = _answer(a), _answer(b)
    (signs, terms), (other_signs, other_terms) = _oriented(a), _oriented(b)
    if signs == other_signs and len(signs) == 1:
        f, g = (_join("+", x, _negative(y)) if x[0] not in ("group", "set") else x
                for x, y in (terms, other_terms))
        if signs != ("=",) and _equal_values(f, g):
            return True
        if signs == ("=",) and _symbols(f) == _symbols(g) != set() and _proportional(f, g):
            return True
    names = [re.sub(r"_.*", "", each[0][1]) for each in (terms, other_terms) if each[0][0] == "sym"]
    if signs == other_signs == ("=",) and len({*names}) > 1:
        return False  # y = -1 is not x = -1
    if said != (a, b):
        return said[0] != a and said[1] != b and _same(*said)
    return signs == other_signs and len(terms) == len(other_terms) and _all(map(_same, terms, other_terms))


def _proportional(f, g):
    """Whether f / g is constant: f(x) g(x') = g(x) f(x') for independent x and x'."""
    zero = _number(0)
    return _equal_values(f, zero) is _equal_values(g, zero) is False and _equal_values(
        _join("*", f, _elsewhere(g)), _join("*", g, _elsewhere(f)))


def _elsewhere(node):
    if node[0] == "sym" and node[1] not in _CONSTANTS:
        return ("sym", node[1] + " elsewhere")
    return tuple(_elsewhere(part) if isinstance(part, tuple) and part else part for part in node)
