"""experiments/drift.py: how far a policy is from its snapshots."""

import json
import math

import pytest
import torch

import train
from experiments import drift


def test_the_measures_by_hand():
    # ratios 1, 2, 0.5 and, at padding, an absurd one
    log_w = torch.tensor([[0.0, math.log(2), math.log(0.5), 1e4]])
    kl, ess, outside = drift.measures(log_w, torch.tensor([[True, True, True, False]]))
    assert kl == pytest.approx((0 + (2 - 1 - math.log(2)) + (0.5 - 1 - math.log(0.5))) / 3)
    assert ess == pytest.approx(3.5 ** 2 / (3 * 5.25)) and outside == pytest.approx(2 / 3)
    assert drift.measures(log_w, torch.zeros(1, 4, dtype=torch.bool)) is None


def test_older_snapshots_are_farther_away(base, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "reward", lambda text, row: float("=" in text[:4]))
    flags = (f"--model {base} --steps 4 --learning-rate 3e-3 --ring-size 4 --snapshot-every 1 "
             "--method grpo --prompts-per-step 2 --minibatches 1 --eval-problems 1 "
             f"--eval-samples 1 --max-new-tokens 8 --threads 1 --out {tmp_path / 'run'}")
    train.main([*flags.split(), *"--min-lag 1 --eval-task countdown4 --eval-split tune".split()])
    capsys.readouterr()
    asked, load = [], drift.load_problems
    monkeypatch.setattr(drift, "load_problems", lambda *args: asked.append(args[:3]) or load(*args))
    drift.main([str(tmp_path / "run"), "--problems", "20", "--samples", "8"])
    assert asked == [("countdown4", "tune", 20)]
    header, _rule, *lines = capsys.readouterr().out.splitlines()
    assert header == "| lag | all tokens | tokens 1 to 4 | tokens 5 to 8 |"
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert [int(each[0]) for each in cells] == [4, 3, 2, 1]
    distances = [float(each[1].split(",")[0]) for each in cells]
    assert distances[0] > distances[2] > distances[3] > 0
    with pytest.raises(SystemExit):
        drift.main([str(tmp_path / "nothing")])
    assert "nothing" in capsys.readouterr().err


def test_a_set_of_math_problems_is_read_by_the_runs_own_flags(base, tmp_path, capsys):
    for name in ("train", "test"):
        rows = [{"ask": f"{name} {i}", "problem": "", "answer": "5"} for i in range(3)]
        (tmp_path / f"own_{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train.main((f"--model {base} --task own --data-dir {tmp_path} --problem-column ask --steps 2 "
                "--ring-size 2 --snapshot-every 1 --min-lag 1 --method grpo --prompts-per-step 2 "
                "--group-size 2 --minibatches 1 --eval-samples 1 --eval-problems 3 --threads 1 "
                f"--max-new-tokens 4 --out {tmp_path}/run").split())
    capsys.readouterr()
    drift.main([f"{tmp_path}/run", "--samples", "2"])
    assert [line[:4] for line in capsys.readouterr().out.splitlines()[2:]] == ["| 2 ", "| 1 "]
