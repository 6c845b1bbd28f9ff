"""Several processes are as one: their gradients add up to its, and their weights never part."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import random_model
from test_train import ROOT, SMALL, lines, rows_of
from test_update import MIXED, Still, seeded_batch, settings

import runs
import train
from loss import METHODS, REDUCTIONS, summarize
from tasks import countdown


def start(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)


def recorded():
    """Rollouts of four groups of four, the same in every process, and the policy they are of."""
    policy = random_model()
    return policy, seeded_batch(policy, [*MIXED, 0, 0, 1, 1], [[3, 9, 9, 4]] * 4)


def one_update(method, reduction, minibatches, rows=None):
    """The gradients before each optimizer step, and the sums, of all rows or some."""
    policy, batch = recorded()
    still = Still(policy.parameters())
    args = settings(
        method=method, loss_reduction=reduction, minibatches=minibatches, micro_batch=3)
    sums, norms = train.update(args, policy, still, batch if rows is None else batch[rows])
    return [[g.clone() for g in step] for step in still.seen], sums, norms


CASES = [(method, reduction, minibatches) for method in METHODS for reduction in REDUCTIONS
         for minibatches in (1, 2)]


def share_the_rollouts(rank, folder):
    start(rank, folder)
    groups = torch.arange(16).view(4, 4)[rank::2].flatten()  # as the loop shares prompts
    done = {}
    for case in CASES:
        gradients, sums, norms = one_update(*case, rows=groups)
        every = runs.gather(sums)
        total = {}
        for part in every:
            train.add_sums(total, part)
        done[case] = gradients, summarize(total), norms
    torch.save(done, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_have_the_gradient_of_one(tmp_path):
    mp.spawn(share_the_rollouts, (tmp_path,), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for case in CASES:
        gradients, sums, norms = one_update(*case)
        metrics = summarize(sums)
        for of_rank, metrics_of_rank, norms_of_rank in (rank[case] for rank in ranks):
            assert len(of_rank) == len(gradients) == case[2]
            for ours, whole in zip(of_rank, gradients, strict=True):
                assert max(g.abs().max() for g in whole) > 1e-3
                for one, two in zip(ours, whole, strict=True):
                    assert (one - two).abs().max() < 1e-6, case
            assert norms_of_rank == pytest.approx(norms, rel=1e-5)
            for key, value in metrics.items():
                close = None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)
                assert metrics_of_rank[key] == close, key
        for one, two in zip(ranks[0][case][0], ranks[1][case][0], strict=True):
            assert all(map(torch.equal, one, two))


def two_real_steps(rank, folder):
    """The loop itself, whose evaluation records the weights of each rank."""
    start(rank, folder)
    os.environ |= {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    token_logps, left = train.token_logps, [rank]

    def short_of_memory(*args):  # once, on one of them
        if left[0]:
            left[0] = 0
            raise torch.OutOfMemoryError
        return token_logps(*args)

    train.token_logps = short_of_memory
    train.reward = lambda text, row: sum(map(ord, text)) % 7 / 6  # such a policy solves nothing
    seen, evaluate, rollout = {}, train.evaluate, train.rollout

    def look(policy, *rest):
        metrics = evaluate(policy, *rest)
        seen[f"weights {rest[6][1]}"] = {n: w.clone() for n, w in policy.state_dict().items()}
        seen[f"metrics {rest[6][1]}"] = {k: v for k, v in metrics.items() if k != "seconds"}
        return metrics

    def note(*args):
        batch = rollout(*args)
        seen.setdefault("responses", []).append(batch.responses())
        return batch

    train.evaluate, train.rollout = look, note
    train.main([*SMALL.split(), "--steps", "2", "--learning-rate", "1e-3", "--minibatches", "1",
                "--model", str(folder / "base"), "--out", str(folder / "out")])
    torch.save(seen, folder / f"{rank}.pt")


def test_two_ranks_hold_the_same_weights(tmp_path):
    for part in countdown.warm_up(2, 3):
        part.save_pretrained(tmp_path / "base")
    mp.spawn(two_real_steps, (tmp_path,), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["responses"] != two["responses"]  # each has prompts and draws of its own
    for step in ("weights 0", "weights 2"):
        assert all(torch.equal(one[step][name], two[step][name]) for name in one[step])
    assert any(not torch.equal(w, one["weights 0"][n]) for n, w in one["weights 2"].items())
    assert one["metrics 2"] == two["metrics 2"] and one["metrics 2"]["problems"] == 4
    # and they agree on the rows of a forward, on which hangs who evaluates what
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "state.json").read_text())
    assert state["micro_batch"] == 2
    rows = lines(tmp_path / "out" / "metrics.jsonl")  # only one of them writes
    assert [(r["kind"], r["step"]) for r in rows] == [
        ("eval", 0), ("train", 0), ("train", 1), ("eval", 2)]
    assert rows[1]["length"] * 8 == sum(len(x) for seen in (one, two) for x in seen["responses"][0])


def test_an_evaluation_does_not_depend_on_the_ranks(tmp_path):
    """Its draws are those of its calls, which the ranks share."""
    for part in countdown.warm_up(2, 3):
        part.save_pretrained(tmp_path / "base")
    flags = [*SMALL.split(), "--steps", "1", "--micro-batch", "1", "--minibatches", "1",
             "--model", tmp_path / "base"]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    for launch, out in (torchrun, "two"), ([], "one"):
        done = subprocess.run(
            [sys.executable, *launch, ROOT / "train.py", *flags, "--out", tmp_path / out],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("pass@1") == 1
    one, two = (rows_of(tmp_path / out, "eval") for out in ("one", "two"))
    assert one[0] == two[0]
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    assert config["ranks"] == 2


def test_prompts_that_cannot_be_shared_are_a_line(monkeypatch, capsys):
    """A rank with a group more than another would wait for it forever."""
    assert train.parse_args([]).ranks == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train.parse_args([]).ranks == 1  # other launchers may set it, too
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    for flags in ("--prompts-per-step 5 --minibatches 1", "--prompts-per-step 6 --minibatches 4"):
        with pytest.raises(SystemExit):
            train.parse_args(flags.split())
        line = capsys.readouterr().err
        assert " ".join(flags.split()[:2]) in line and "number of processes, 2" in line
    assert train.parse_args("--prompts-per-step 6 --minibatches 3".split()).minibatches == 3
