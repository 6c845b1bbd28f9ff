"""experiments/kill_test.py, in small: a training that is killed is the one that is not."""

import random

from experiments import kill_test


def test_killed_and_resumed_is_bit_for_bit_the_same(base, tmp_path):
    """Of the kills the first meets the first save, which leaves no whole checkpoint, and the last
    one a save that has a checkpoint before it."""
    flags = f"--model {base} --steps 6 --eval-every 3 --eval-problems 4".split()
    checks = kill_test.kill_test(
        kill_test.TRAIN, kill_test.SMALL + flags, tmp_path, ["save", "step", "save"],
        random.Random(3))
    assert len(checks) > 8 and [what for what, is_true in checks if not is_true] == []
