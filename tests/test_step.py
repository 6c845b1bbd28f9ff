"""One whole step, against the method written down a second time, row by row, token by token.

The parts have tests of their own; here it is the wiring between them that may be wrong: a flag that
does not arrive, a row that is rewarded by another row's problem, a snapshot that is taken too late.
"""

import copy
import json

import pytest
import torch
from conftest import random_model

import train
from loss import METHODS
from rollout import make_batch
from seeds import Ring
from tasks.countdown import make_tokenizer, split_of
from train import collect, parse_args, update

FLAGS = (
    "--method {} --temperature 0.7 --prompts-per-step 3 --group-size 4 --minibatches 1 "
    "--micro-batch 5 --max-new-tokens 9 --prefix-min 0.2 --prefix-max 0.5 --clip-low 0.1 "
    "--clip-high 0.3 --prefix-clip-low 0.05 --prefix-clip-high 0.15 "
    "--kl-coef 0.05 --loss-reduction {} --max-grad-norm 1e9 --rng-seed 7"
)
PROBLEMS = [{"prompt": text, "task": "countdown"} for text in ("1 2>3:", "14 5 6>9:", "7>7:")]


def nudged(model, seed):
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return model


def row_logps(model, prompt, response, temperature):
    """[T] log-probs of one row without padding, masks or batches."""
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[range(len(response)), response]


def by_hand(policy, snapshot, reference, prompts, responses, from_snapshot, rewards, args):
    """The loss of a step at theta = old, straight from its definition."""
    total, tokens = 0.0, sum(map(len, responses))
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        group = rewards[i // 4 * 4 : i // 4 * 4 + 4]
        mean = sum(group) / 4
        std = (sum((x - mean) ** 2 for x in group) / 3) ** 0.5
        A = (rewards[i] - mean) / (std + 1e-4)
        logp = row_logps(policy, prompt, response, 0.7)
        old, past, start = (
            row_logps(m, prompt, response, 0.7).detach() for m in (policy, snapshot, reference))
        row = 0.0
        for t in range(len(response)):
            r, rho = (logp[t] - old[t]).exp(), (logp[t] - past[t]).exp()
            w = (old[t] - past[t]).exp().item()
            if from_snapshot[i][t]:
                row += {
                    "thinking_seeds": lambda: min(rho * A, rho.clamp(0.95, 1.15) * A),
                    "decoupled": lambda: min(w, 2.0) * min(r * A, r.clamp(0.95, 1.15) * A),
                    "unclipped": lambda: rho * A,
                    "truncated": lambda: min(rho.item(), 2.0) * A * logp[t],
                    "mask_prefix": lambda: 0.0,
                    "no_correction": lambda: min(r * A, r.clamp(0.95, 1.15) * A),
                }[{"sequence_mix": "thinking_seeds", "suffix": "thinking_seeds"}.get(
                    args.method, args.method)]()
            else:
                difference = start[t] - logp[t]
                row += min(r * A, r.clamp(0.9, 1.3) * A)
                row -= 0.05 * (difference.exp() - 1 - difference)
        scale = {"token": tokens, "seq": 12 * len(response), "dr": 12 * 9}[args.loss_reduction]
        total = total - row / scale
    return total


@pytest.mark.parametrize("reduction", ["token", "seq", "dr"])
@pytest.mark.parametrize("method", [method for method in METHODS if method != "grpo"])
def test_a_step_is_what_the_method_says(method, reduction, monkeypatch):
    args = parse_args(FLAGS.format(method, reduction).split())
    start, tokenizer = random_model(), make_tokenizer()
    snapshot, policy = nudged(start, 1), nudged(start, 2)
    ring = Ring(1, 1, 0)
    ring.keep(3, snapshot)
    asked, keys = [], []
    monkeypatch.setattr(
        train, "reward", lambda text, row: asked.append((text, row)) or len(text) % 3 / 2)
    original = train.stream
    monkeypatch.setattr(train, "stream", lambda *key: keys.append(key) or original(*key))
    temperatures = []
    for name, at in (("rollout", 4), ("draw_prefixes", 7)):
        function = getattr(train, name)
        monkeypatch.setattr(
            train, name, lambda *a, f=function, at=at: temperatures.append(a[at]) or f(*a))
    bounds = (9, 9) if method == "sequence_mix" else (2, 4)
    batch, seeds, rewards, seconds = collect(
        args, 3, PROBLEMS, policy, tokenizer, ring, bounds, start)

    # every draw is a function of (rng seed, step, part), at the temperature that is scored
    assert keys == [(7, 3, "snapshot"), (7, 3, "prefixes", 0), (7, 3, "rollout", 0)]
    assert temperatures == [0.7, 0.7]
    # rows are consecutive in groups, each rewarded once, by its own problem, as a whole
    prompts = [tokenizer(row["prompt"])["input_ids"] for row in PROBLEMS for _ in range(4)]
    responses = batch.responses()
    for i, (text, row) in enumerate(asked):
        assert row is PROBLEMS[i // 4]
        assert text == tokenizer.decode(responses[i]).removesuffix("<eos>")
    assert len(asked) == 12 and rewards.tolist() == [len(text) % 3 / 2 for text, _ in asked]
    assert seeds.step == 3 and len(seconds) == 3
    written = batch.from_snapshot.tolist()
    for row, is_seeded in zip(written, [True, True, False, False] * 3):
        # with `suffix` the policy may be done before the snapshot's turn
        assert any(row) == is_seeded or method == "suffix" and not any(row)
    assert sum(map(any, written)) >= 3
    # the snapshot's log-probs on the prefix; the policy's own on all, but for the first minibatch,
    # whose update begins with it
    first = 12 // args.minibatches if args.minibatches < 3 else 4
    for i, response in enumerate(responses):
        old, past = (row_logps(m, prompts[i], response, 0.7) for m in (policy, snapshot))
        for t in range(len(response)):
            writer = past[t].item() if written[i][t] else 0
            assert batch.snapshot_logp[i, t].item() == pytest.approx(writer, abs=1e-5)
            own = old[t].item() if i >= first else 0
            assert batch.old_logp[i, t].item() == pytest.approx(own, abs=1e-5)

    gradients = []

    class Note(torch.optim.SGD):
        def step(self):
            gradients.append([p.grad.clone() for p in policy.parameters()])

    update(args, policy, Note(policy.parameters(), 0.0), batch)
    loss = by_hand(policy, snapshot, start, prompts, responses, written, rewards.tolist(), args)
    expected = torch.autograd.grad(loss, list(policy.parameters()))
    assert max(g.abs().max() for g in expected) > 0.01
    for got, by in zip(gradients[0], expected, strict=True):
        torch.testing.assert_close(got, by, rtol=1e-4, atol=1e-5)


def test_the_loop_hands_on_its_flags(tmp_path, monkeypatch):
    # held-out problems are the test split's unless told; the evaluation samples as training does
    random_model().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    splits, seen, original = [], [], train.load_problems
    monkeypatch.setattr(
        train, "load_problems", lambda task, split, *a, **kw: splits.append(split)
        or original(task, split, *a, **kw))
    asked, original_collect = [], train.collect
    monkeypatch.setattr(
        train, "collect", lambda args, step, problems, *a: asked.append(problems)
        or original_collect(args, step, problems, *a))
    evaluate = train.evaluate
    monkeypatch.setattr(train, "evaluate", lambda *a: seen.append(a) or evaluate(*a))
    small = (
        "--steps 7 --prompts-per-step 2 --group-size 2 --minibatches 1 --eval-problems 3 "
        "--eval-samples 2 --max-new-tokens 6 --temperature 0.8 --snapshot-every 2 --min-lag 1 "
        "--split tune"
    ).split()
    prompts = {}
    for rng_seed in ("5", "6"):
        out = tmp_path / rng_seed
        argv = ["--model", str(tmp_path / "model"), "--out", str(out), "--rng-seed", rng_seed]
        train.main([*small, *argv])
        rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
        prompts[rng_seed] = [row["prompt"] for row in rows]
        # with --min-lag 1, step 2's own snapshot is not yet old enough, and step 3's choice has two
        assert [row["snapshot_step"] for row in rows[:6]] == [None, None, 0, None, 0, None]
        lags = {row["snapshot_step"] for row in rows[6:] if row["prefix"]}
        assert lags <= {0, 2, 4} and lags & {2, 4}
    assert prompts["5"] != prompts["6"]
    assert len(asked) == 14 and all(len({row["prompt"] for row in rows}) == 2 for rows in asked)
    assert splits == ["test", "tune"] * 2
    assert all(split_of(row["numbers"]) == "tune" for rows in asked for row in rows)
    for _policy, _tokenizer, rows, samples, cap, temperature, *_ in seen:
        assert (len(rows), samples, cap, temperature) == (3, 2, 6, 0.8)
    assert [key for *_, key, ks in seen] == [
        (seed, step, "evaluation") for seed in (5, 6) for step in (0, 7)]


def test_a_batch_knows_which_rows_ended():
    batch = make_batch([[5], [6]], [[3, 1], [3, 4]], [1], "cpu")
    assert batch.ended.tolist() == [True, False]
