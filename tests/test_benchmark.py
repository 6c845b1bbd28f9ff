"""experiments/benchmark.py runs, at sizes of no meaning."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "experiments" / "benchmark.py"


def test_the_contenders_do_their_steps(tmp_path):
    """One that died would be told of, and would end it with another code."""
    small = "--models wide --prompts 2 --group 2 --cap 3 --micro-batch 2 --repeats 2 --warm-up 1"
    flags = f"--parts overhead sampling memory --caps 2 --rows 2 --threads 1 {small}".split()
    done = subprocess.run(
        [sys.executable, SCRIPT, *flags, "--out", tmp_path / "all.jsonl"], capture_output=True,
        text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    for name in ("grpo", "thinking_seeds", "bare", "sample"):
        steps = [row for row in rows if row.get("contender") == name]
        assert [row["step"] for row in steps] == [-1, 0, 1]
        assert all(row["seconds"] > 0 and row["tokens"] == 12 for row in steps)
    prefixes = {name: [row["parts"][0] for row in rows if row.get("contender") == name]
                for name in ("grpo", "thinking_seeds")}
    assert min(prefixes["thinking_seeds"]) > max(prefixes["grpo"])
    rings = {row["ring"]: row["bytes"] / row["policy_bytes"] for row in rows if "ring" in row}
    assert rings == {1: 1, 2: 2, 4: 4, 8: 8}
    assert done.stdout.count("of a policy") == 4
