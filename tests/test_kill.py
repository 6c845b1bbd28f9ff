"""experiments/kill_test.py, in small: a training that is killed is the one that is not."""

import json
import random
from pathlib import Path
from statistics import median

import train
from experiments import kill_test

ROOT = Path(__file__).parent.parent


def test_killed_and_resumed_is_bit_for_bit_the_same(base, tmp_path):
    """Of the kills the first meets the first save, which leaves no whole checkpoint, and the last
    one a save that has a checkpoint before it."""
    flags = f"--model {base} --steps 6 --eval-every 3 --eval-problems 4".split()
    checks = kill_test.kill_test(
        kill_test.TRAIN, kill_test.SMALL + flags, tmp_path, ["save", "step", "save"],
        random.Random(3))
    assert len(checks) > 8 and [what for what, is_true in checks if not is_true] == []


def test_the_soak_in_the_readme_is_that_of_the_results():
    rows = [json.loads(line) for line in
            (ROOT / "experiments/results/soak.jsonl").read_text().splitlines()]
    flags = train.parse_args(kill_test.LONG)
    parts = kill_test.quarters(kill_test.steady(rows, vars(flags)))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for i, part in enumerate(parts):
        anon, resident = ([row[key] for row in part] for key in ("anon_mib", "rss_mib"))
        count = len({row["process"] for row in part})
        assert (f"| {i + 1} | {count} | {median(anon):.1f} | {max(anon):.0f} | "
                f"{median(resident):.1f} |") in readme
