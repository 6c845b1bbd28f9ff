"""How good is the grader, and how fast?

    python experiments/grade.py tests/grading_own.jsonl       pairs: gold, response, equal, kind
    python experiments/grade.py --gold DATA/math500.jsonl     is each answer equal to itself?

A pair that is marked `disputed` (people disagree about it) is counted apart.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402
from tasks.verify import is_correct, is_readable, verdict  # noqa: E402


def read(path):
    """The rows of a JSONL file. ValueError for what is none, or has not all that is needed."""
    rows = [json.loads(line) for line in Path(path).read_text("utf-8-sig").splitlines()]
    needed = {"answer"} if args.gold else {"gold", "response", "equal", "kind"}
    if not rows or not all(needed <= row.keys() for row in rows):
        raise ValueError(f"{path}: each row must have {', '.join(sorted(needed))}")
    return rows


def grade(pairs):
    """Prints the share of right verdicts by kind, the seconds a verdict takes, and the errors."""
    kinds, seconds, undecided, wrong = {}, [], 0, []
    for pair in pairs:
        started = time.perf_counter()
        found = verdict(pair["response"], pair["gold"])
        seconds.append(time.perf_counter() - started)
        undecided += found is None
        is_right = (found is True) == pair["equal"]
        kind = "(disputed)" if pair.get("disputed") else pair["kind"]
        kinds.setdefault(kind, []).append(is_right)
        if not is_right and kind != "(disputed)":
            wrong.append(pair)
    undisputed = [right for kind, each in kinds.items() if kind != "(disputed)" for right in each]
    for kind, right in sorted(kinds.items()) + [("all but disputed", undisputed)]:
        print(f"{kind:20} {sum(right):4} of {len(right):4}  {sum(right) / len(right):.3f}")
    ordered = [1000 * x for x in sorted(seconds)]
    print(f"a verdict takes {sum(ordered) / len(ordered):.2f} ms, in 99 of 100 cases at most "
          f"{ordered[math.ceil(0.99 * len(ordered)) - 1]:.2f}, at worst {ordered[-1]:.2f}; "
          f"{undecided} undecided")
    for pair in wrong:
        print(f"wrong: {pair['gold'][:60]!r}, {pair['response'][-90:]!r}, equal: {pair['equal']}")


def compare_with_itself(path):
    """Prints which answers of a set are not equal to themselves, in a box."""
    rows = runs.or_fail(read, path)
    odd = [f"{number}{'' if is_readable(row['answer']) else ' (reported as broken)'}"
           for number, row in enumerate(rows, 1)
           if not is_correct(rf"So the answer is \boxed{{{row['answer']}}}.", f"{row['answer']}")]
    print(f"{Path(path).name:24} {len(rows) - len(odd):5} of {len(rows):5} equal to themselves"
          + (f"; not row {', '.join(odd)}" if odd else ""))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description="Measures tasks/verify.py.")
    p.add_argument("files", nargs="+", help="JSONL: pairs, or sets of problems with --gold")
    p.add_argument("--gold", action="store_true", help="compare each answer of a set with itself")
    args = p.parse_args()
    if args.gold:
        for each in args.files:
            compare_with_itself(each)
    else:
        grade([pair for each in args.files for pair in runs.or_fail(read, each)])
