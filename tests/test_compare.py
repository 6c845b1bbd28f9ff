"""experiments/compare.py: is one evaluation better than another, on the same problems?"""

import json
from pathlib import Path

import pytest

from eval import bootstrap_interval, pass_at_k
from experiments import compare


def write(path, right):
    """A samples.jsonl from {(task, prompt): rewards}."""
    with open(path, "w") as file:
        for (task, prompt), rewards in right.items():
            for reward in rewards:
                row = {"task": task, "problem": prompt, "prompt": prompt, "reward": reward}
                file.write(json.dumps(row) + "\n")
    return str(path)


A = {("t", "p"): [1.0, 0.0, 0.5], ("t", "q"): [0.0, 0.0, 0.0], ("t", "r"): [1.0, 1.0, 1.0],
     ("u", "p"): [0.0, 0.0, 0.0]}
B = {("t", "r"): [1.0, 1.0, 1.0, 0.0], ("t", "p"): [0.0] * 4, ("t", "q"): [0.0, 0.0, 1.0, 1.0],
     ("t", "new"): [1.0] * 4, ("u", "p"): [1.0, 0.0, 0.0, 0.0]}


def test_the_difference_is_paired(tmp_path):
    a, b = (compare.read(write(tmp_path / name, x)) for name, x in (("a", A), ("b", B)))
    assert a["t", "p", 0] == [True, False, False]  # a partial reward is not right
    del a["u", "p", 0], b["u", "p", 0]
    rows = compare.compare(a, b, [1, 3])
    for row in rows:  # p, q and r are in both; the samples may differ in number
        k = row["k"]
        before = [pass_at_k(3, c, k) for c in (1, 0, 3)]
        after = [pass_at_k(4, c, k) for c in (0, 2, 3)]
        differences = [y - x for x, y in zip(before, after)]
        assert row["a"] == pytest.approx(sum(before) / 3)
        assert row["b"] == pytest.approx(sum(after) / 3)
        assert row["difference"] == pytest.approx(sum(differences) / 3)
        assert [row["low"], row["high"]] == bootstrap_interval(differences)
    assert [row["k"] for row in compare.compare(a, b)] == [1, 3]  # up to the fewest samples
    same = compare.compare(a, a)
    assert all(row["difference"] == row["low"] == row["high"] == 0 for row in same)


def test_main_prints_the_flips(tmp_path, capsys):
    compare.main([write(tmp_path / "a", A), write(tmp_path / "b", B), "--k", "1"])
    text = capsys.readouterr().out
    t, u = text.split("u: ")
    assert t.startswith("t: 3 problems, 1 more in one file only\n")
    assert "b - a -0.028 [" in t and "b - a +0.250 [+0.250, +0.250]" in u
    assert "solved by b alone: 1\n    2 of 4  q\n" in t
    assert "solved by a alone: 1\n    1 of 3  p\n" in t
    assert "solved by b alone: 1\n    1 of 4  p\n" in u and "solved by a alone: 0\n" in u


@pytest.mark.parametrize("text, named", [
    ('{"task": "t", "problem": 0, "prompt": "p", "reward": 1}\n{"task"\n[]\n', "line 2"),
    ('{"step": 0, "prompt": "p", "reward": 1}\n', "line 1"),  # train.py's samples
    ("[]\n", "line 1"),
    ("", "no problem"),
])
def test_other_files_are_refused_in_a_line(text, named, tmp_path, capsys):
    (tmp_path / "b").write_text(text)
    with pytest.raises(SystemExit):
        compare.main([write(tmp_path / "a", A), str(tmp_path / "b")])
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


def test_an_evaluation_that_was_stopped(tmp_path, capsys):
    """kill -9 in the middle of a line: what is whole can be compared."""
    path = Path(write(tmp_path / "a", A))
    whole = compare.read(path)
    more = json.dumps({"task": "u", "problem": "last", "prompt": "last", "reward": 1})
    path.write_bytes(path.read_bytes() + more.encode() + b'\n{"task": "t", "prob')
    assert compare.read(path) == whole
    err = capsys.readouterr().err
    assert "cut off" in err and "1 samples only" in err


def test_two_problems_may_ask_the_same(tmp_path):
    rows = [{"task": "t", "problem": i, "prompt": "p", "reward": r} for i, r in ((0, 1), (7, 0))]
    (tmp_path / "a").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compare.read(tmp_path / "a") == {("t", "p", 0): [True], ("t", "p", 1): [False]}


def test_k_beyond_the_samples_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        compare.main([write(tmp_path / "a", A), write(tmp_path / "b", B), "--k", "4"])
    assert "--k 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path / "a"), str(tmp_path / "missing")])
    assert "missing" in capsys.readouterr().err
