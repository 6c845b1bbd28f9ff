"""experiments/sums.py: problems of the second setting."""

import json

import pytest

from experiments import sums
from tasks.problems import reward


def test_the_sums_are_right_and_the_two_sets_share_none(tmp_path, capsys):
    out = tmp_path / "new" / "sums"
    sums.main([str(out)])
    rows = {name: [*map(json.loads, (out / f"sums_{name}.jsonl").read_text().splitlines())]
            for name in sums.SIZES}
    assert {name: len(part) for name, part in rows.items()} == sums.SIZES
    for row in rows["train"] + rows["test"]:
        a, b = map(int, row["problem"].split(" + "))
        assert row["answer"] == str(a + b) and 2 <= min(a, b) and max(a, b) <= 60
    problems = [row["problem"] for row in rows["train"] + rows["test"]]
    assert len({*problems}) == len(problems)
    row = {"task": str(out / "sums_train.jsonl"), "answer": "95"}
    assert reward(" 95\n\nProblem", row) == 1 and reward(" 94\n\n", row) == 0
    before = (out / "sums_train.jsonl").read_text()
    with pytest.raises(SystemExit):  # the same ones again, but nothing is written over
        sums.main([str(out)])
    assert "exists already" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        sums.main([str(out / "sums_train.jsonl")])  # a file
    assert "sums_train.jsonl" in capsys.readouterr().err
    sums.main([str(tmp_path / "again")])
    assert (tmp_path / "again/sums_train.jsonl").read_text() == before
