"""experiments/trl_seeds.py: inside TRL's trainer a step is the step of train.py."""

import copy

import pytest
import torch
from conftest import easy_reward_of
from transformers import TrainerCallback

import train
from loss import row_weights
from rollout import score
from seeds import Ring, prefix_bounds
from tasks import problems

pytest.importorskip("trl", reason="TRL is no dependency of ours: pip install trl==1.16.0")
from experiments import trl_seeds  # noqa: E402

SMALL = (
    "--prompts-per-step 4 --group-size 4 --micro-batch 4 --steps 4 --learning-rate 1e-3 "
    "--snapshot-every 1 --min-lag 1 --max-grad-norm 1e9 --threads 1 --device cpu --temperature 0.9"
)


@pytest.fixture(scope="module")
def model(base):
    return base


@pytest.fixture(autouse=True)
def easy_reward(monkeypatch):
    monkeypatch.setattr(problems.TASKS["countdown"], "reward", easy_reward_of)


class ThePlainStep(TrainerCallback):
    """Does what train.py would do from the same policy, before each optimizer step of TRL's."""

    def __init__(self, args, policy, tokenizer):
        self.args, self.tokenizer, self.twin = args, tokenizer, copy.deepcopy(policy)
        self.ring = Ring(4, 1, 1) if args.seeded_rows else None
        self.bounds = prefix_bounds(args.method, 0.05, 0.5, args.max_new_tokens)
        self.batches, self.gradients = [], []

    def on_pre_optimizer_step(self, _args, state, control, model=None, **kwargs):
        args, step = self.args, state.global_step
        self.twin.load_state_dict(model.state_dict())
        if self.ring is not None:
            self.ring.keep(step, self.twin)
        rows = problems.problems_of_step("countdown", [], args.prompts_per_step, step, 0)
        batch, *_ = train.collect(
            args, step, rows, self.twin, self.tokenizer, self.ring, self.bounds, None)
        batch.weights = row_weights(batch.lengths, "token", args.max_new_tokens)
        self.twin.train()
        train.gradient(args, self.twin, batch, torch.arange(len(batch.lengths)), True)
        self.batches.append(batch)
        flat = [torch.cat([p.grad.flatten() for p in each.parameters()])
                for each in (self.twin, model)]
        self.gradients.append(flat)


def run(monkeypatch, tmp_path, model, words, plain_words=None):
    """(the plain steps, [(Batch, arguments of policy_loss)] of each forward of TRL's)."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    flags = f"{SMALL} --model {model} --out {tmp_path / 'run'} "
    trainer = trl_seeds.make_trainer(trl_seeds.parse_args((flags + words).split()))
    args = train.parse_args((flags + (plain_words or words)).split())
    policy, tokenizer = problems.open_model(args, "countdown")
    plain, seen = ThePlainStep(args, policy, tokenizer), []
    if args.minibatches == 1:
        trainer.add_callback(plain)
    batch_of, policy_loss = trl_seeds.batch_of, trl_seeds.policy_loss

    def see_batch(inputs):
        seen.append([batch_of(inputs)])
        return seen[-1][0]

    def see_loss(*given):
        seen[-1].append(given)
        return policy_loss(*given)

    monkeypatch.setattr(trl_seeds, "batch_of", see_batch)
    monkeypatch.setattr(trl_seeds, "policy_loss", see_loss)
    trainer.train()
    return plain, seen


def rows_of(batch, behaviour_logp):
    """Per row its prompt, its response, where the snapshot's tokens begin, and their log-probs."""
    prompts = [ids[-n:] for ids, n in zip(batch.prompt_ids.tolist(), batch.prompt_lengths)]
    which = batch.from_snapshot.tolist()
    starts = [row.index(True) if any(row) else 0 for row in which]
    logp = [[value for value, its in zip(*row) if its]
            for row in zip(behaviour_logp.tolist(), which)]
    return [*zip(prompts, batch.responses(), starts, logp)]


@pytest.mark.parametrize("words, plain_words", [
    ("--method thinking_seeds --minibatches 1", None),
    ("--method mask_prefix --minibatches 1", None),
    ("--method sequence_mix --minibatches 1 --micro-batch 16", None),
    ("--method suffix --minibatches 1 --snapshot-choice oldest --prefix-clip-high 0.05", None),
    ("--method thinking_seeds --seed-fraction 0 --minibatches 1", "--method grpo --minibatches 1"),
])
def test_the_step_is_that_of_train(model, monkeypatch, tmp_path, words, plain_words):
    plain, seen = run(monkeypatch, tmp_path, model, words, plain_words)
    forwards = 1 if "--micro-batch 16" in words else 4
    assert len(plain.batches) == 4 and len(seen) == 4 * forwards
    for step, (batch, (expected, found)) in enumerate(zip(plain.batches, plain.gradients)):
        assert expected.norm() > 1e-3
        assert (found - expected).norm() < 1e-6 * expected.norm()
        # What reached the loss is what was recorded, to the last bit, whichever way TRL turned it.
        parts = seen[forwards * step : forwards * (step + 1)]
        arrived = [row for part, given in parts for row in rows_of(part, given[3])]
        recorded = rows_of(batch, batch.snapshot_logp)
        assert sorted(arrived) == sorted(recorded) and arrived != recorded
        assert batch.from_snapshot.any() == ("fraction" not in words and step > 0)


def test_several_updates_of_one_rollout(model, monkeypatch, tmp_path):
    _plain, seen = run(monkeypatch, tmp_path, model, "--minibatches 2")
    assert len(seen) == 4 * 4
    policy, _tokenizer = problems.open_model(train.parse_args(["--model", model]), "countdown")
    tokens = sum(part.lengths.sum().item() for part, _given in seen[:4])
    for number, (part, given) in enumerate(seen[:4]):  # the first rollout: no seeds, known policy
        _method, logp, old_logp, behaviour_logp, from_snapshot, mask, _A, weights, *_ = given
        recorded, _entropy = score(policy, part, 0.9, 4)
        assert torch.allclose(old_logp[mask], recorded[mask], atol=1e-5)
        assert torch.equal(behaviour_logp[mask], old_logp[mask]) and not from_snapshot.any()
        moved = (logp - old_logp)[mask].abs().max()
        assert moved < 1e-5 if number < 2 else moved > 1e-3
        assert torch.allclose(weights, torch.tensor(2 / tokens))  # tokens / 2 of the average update


@pytest.mark.parametrize("words, named", [
    ("--kl-coef 0.1", "--kl-coef 0.1"), ("--loss-reduction seq", "--loss-reduction seq"),
    ("--micro-batch 3", "16 rows"),
])
def test_what_is_refused(capsys, words, named):
    with pytest.raises(SystemExit):
        trl_seeds.parse_args(f"{SMALL} {words}".split())
    assert named in capsys.readouterr().err
