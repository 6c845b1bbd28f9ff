"""Sums of two numbers as JSONL: problems that a small pretrained model sometimes solves.

    python experiments/sums.py data/sums

writes data/sums/sums_train.jsonl, of 2,000 problems, and data/sums/sums_test.jsonl, of 200; they
share none.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402

SIZES = {"train": 2000, "test": 200}


def problems(rng, count):
    """`count` of the sums of two numbers from 2 to 60, {"problem", "answer"}, in random order."""
    pairs = rng.sample([(a, b) for a in range(2, 61) for b in range(2, 61)], count)
    return [{"problem": f"{a} + {b}", "answer": str(a + b)} for a, b in pairs]


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.error = runs.fail
    p.add_argument("out", type=Path, help="folder to write to; files that are there stay")
    args = p.parse_args(argv)
    rows = problems(random.Random(0), sum(SIZES.values()))
    with runs.writing(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
    paths = {name: args.out / f"sums_{name}.jsonl" for name in SIZES}
    for path in paths.values():
        if path.exists():
            runs.fail(f"{path} exists already: give another folder, or remove it")
    for name, path in paths.items():
        part, rows = rows[: SIZES[name]], rows[SIZES[name] :]
        with runs.writing(path):
            path.write_text("".join(json.dumps(row) + "\n" for row in part))


if __name__ == "__main__":
    runs.main(main)
