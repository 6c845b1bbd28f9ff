"""The update on a real, tiny model: what moves, what does not, and what may not matter."""

from types import SimpleNamespace

import pytest
import torch
from conftest import random_model

from loss import METHODS, group_advantages, summarize
from rollout import rollout, score
from seeds import Ring, by_snapshot, draw_prefixes
from train import update

PROMPTS = [[5, 6, 7]] * 4 + [[8]] * 4 + [[3, 9]] * 4


class Still(torch.optim.SGD):
    """An optimizer that only notes the gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.0)
        self.seen = []

    def step(self, closure=None):
        self.seen.append([p.grad.clone() for g in self.param_groups for p in g["params"]])


def settings(**changes):
    given = dict(
        method="thinking_seeds", group_size=4, minibatches=1, micro_batch=12, max_grad_norm=1e9,
        loss_reduction="token", max_new_tokens=8, temperature=0.9, clip_low=0.2, clip_high=0.2,
        prefix_clip_low=0.2, prefix_clip_high=0.2, kl_coef=0.0,
    )
    return SimpleNamespace(**{**given, **changes})


def seeded_batch(policy, rewards, more=()):
    ring = Ring(1, 1, 0)
    ring.keep(0, random_model())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    torch.manual_seed(1)
    prompts = [*PROMPTS, *more]
    drawn = draw_prefixes(ring, policy, 0, prompts, 4, 2, (1, 5), 0.9, [1, 2, 3], 12)
    batch = rollout(policy, prompts, drawn.ids, 8, 0.9, [1, 2, 3])
    batch.old_logp, _ = score(policy, batch, 0.9, 12)
    batch.from_snapshot, batch.snapshot_logp = by_snapshot(drawn, batch)
    batch.advantages = group_advantages(torch.tensor(rewards), 4)
    return batch


MIXED = [1.0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("reduction", ["token", "seq", "dr"])
@pytest.mark.parametrize("method", METHODS)
def test_the_split_into_micro_batches_changes_nothing(model, method, reduction):
    batch = seeded_batch(model, MIXED)
    assert len(set(batch.lengths.tolist())) > 2
    results = {}
    for micro_batch in (12, 5, 1):
        still = Still(model.parameters())
        args = settings(method=method, loss_reduction=reduction, micro_batch=micro_batch)
        results[micro_batch] = still.seen, summarize(update(args, model, still, batch)[0])
    for micro_batch in (5, 1):
        for whole, split in zip(results[12][0][0], results[micro_batch][0][0], strict=True):
            assert (whole - split).abs().max() < 1e-6
        for key, value in results[12][1].items():
            close = None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)
            assert results[micro_batch][1][key] == close, key
    assert max(g.abs().max() for g in results[12][0][0]) > 1e-3


def test_minibatches_are_whole_groups_and_every_row_is_used_once(model, monkeypatch):
    import train

    batch, lengths = seeded_batch(model, MIXED), []
    original = train.row_weights
    monkeypatch.setattr(
        train, "row_weights", lambda n, *rest: (lengths.append(n.tolist()), original(n, *rest))[1]
    )
    still = Still(model.parameters())
    update(settings(minibatches=2, micro_batch=3), model, still, batch)
    # 3 groups in 2 minibatches: 8 rows and 4 rows; Z is over the minibatch, not the micro-batch
    assert [len(n) for n in lengths] == [8, 4] and len(still.seen) == 2
    assert sum(lengths, []) == batch.lengths.tolist()


def test_mixed_rewards_move_every_parameter_and_equal_rewards_none():
    for rewards, moves in ((MIXED, True), ([1.0] * 12, False), ([0.1] * 8 + [0.3] * 4, False)):
        policy = random_model()
        batch = seeded_batch(policy, rewards)
        before = {n: p.detach().clone() for n, p in policy.named_parameters()}
        optimizer = torch.optim.AdamW(policy.parameters(), 1e-3, weight_decay=0.0)
        sums, norms = update(settings(minibatches=3), policy, optimizer, batch)
        changed = {n: not torch.equal(p, before[n]) for n, p in policy.named_parameters()}
        assert all(c == moves for c in changed.values()), changed
        assert len(norms) == 3 and (max(norms) > 0) == moves


def test_the_update_raises_what_was_good(model):
    batch = seeded_batch(model, MIXED)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    update(settings(), model, optimizer, batch)
    logp, _ = score(model, batch, 0.9, 12)
    change = ((logp - batch.old_logp) * batch.mask).sum(1)
    assert (change * batch.advantages).sum() > 0


def test_the_update_is_in_train_mode(model):
    # gradient checkpointing is silently off under eval()
    modes = []
    batch = seeded_batch(model, MIXED)
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    update(settings(), model, Still(model.parameters()), batch)
    assert modes and all(modes)


def test_the_first_update_of_a_step_sees_ratio_one(model):
    batch = seeded_batch(model, MIXED)
    sums, _ = update(settings(), model, Still(model.parameters()), batch)
    metrics = summarize(sums)
    assert metrics["ratio_max_continuation"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_frac_high_continuation"] == 0
    assert metrics["ratio_max_prefix"] > 1.05  # the policy has moved away from the snapshot


def test_long_gradients_are_scaled_down(model):
    batch = seeded_batch(model, MIXED)
    free, bound = Still(model.parameters()), Still(model.parameters())
    _sums, (norm,) = update(settings(), model, free, batch)
    _sums, (same,) = update(settings(max_grad_norm=norm / 2), model, bound, batch)
    assert same == pytest.approx(norm)  # the metric is the norm before scaling
    for whole, scaled in zip(free.seen[0], bound.seen[0], strict=True):
        torch.testing.assert_close(scaled, whole / 2, rtol=1e-4, atol=1e-7)


# ------------------------------------------------------------------------------ what it costs


def spy_on_forwards(model, monkeypatch):
    """Notes (has it a gradient, ids [b, P + T - 1]) of every forward pass but those of generate."""
    seen, original = [], type(model).forward

    def forward(self, *args, **kwargs):
        if not kwargs.get("use_cache"):
            seen.append((torch.is_grad_enabled(), kwargs["input_ids"]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", forward)
    return seen


def test_rows_without_advantage_have_no_backward_pass(model, monkeypatch):
    """Their gradient is zero: two groups of three have equal rewards here."""
    batch = seeded_batch(model, [1.0] * 4 + MIXED[4:8] + [0.0] * 4)
    still, whole = Still(model.parameters()), Still(model.parameters())
    seen = spy_on_forwards(model, monkeypatch)
    sums, _ = update(settings(), model, still, batch)
    assert [(grad, len(ids)) for grad, ids in seen] == [(True, 4), (False, 8)]
    monkeypatch.setattr(torch, "set_grad_enabled", lambda _: torch.enable_grad())
    other, _ = update(settings(), model, whole, batch)
    for one, two in zip(still.seen[0], whole.seen[0], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-7)
    assert summarize(sums)["entropy"] == pytest.approx(summarize(other)["entropy"], abs=1e-6)
    assert sums["entropy"][1] == batch.lengths.sum()  # and still all tokens are in the metrics


def test_with_a_kl_term_every_row_has_a_gradient(model, monkeypatch):
    batch = seeded_batch(model, [1.0] * 12)
    batch.ref_logp = batch.old_logp - 0.1
    seen = spy_on_forwards(model, monkeypatch)
    still = Still(model.parameters())
    update(settings(kl_coef=0.5), model, still, batch)
    assert [grad for grad, _ids in seen] == [True]
    assert max(g.abs().max() for g in still.seen[0]) > 1e-4


def test_the_first_minibatch_needs_no_log_probs_of_before(model):
    """The policy has not moved; for the others it has, and theirs count."""
    batch = seeded_batch(model, MIXED)
    results = []
    for spoil in (slice(0, 0), slice(0, 8), slice(8, 12)):
        batch_ = batch[torch.arange(12)]
        batch_.old_logp = batch_.old_logp.clone()
        batch_.old_logp[spoil] = -5.0
        still = Still(model.parameters())
        update(settings(minibatches=2), model, still, batch_)
        results.append(still.seen)
    first, second = (
        [max((a - b).abs().max() for a, b in zip(results[0][i], other[i])) for i in (0, 1)]
        for other in results[1:])
    assert first == [0, 0] and second[0] == 0 and second[1] > 1e-3


def test_micro_batches_hold_rows_of_like_length(model, monkeypatch):
    """Nothing of them is padding but what the lengths within one differ by."""
    batch = seeded_batch(model, MIXED)
    seen = spy_on_forwards(model, monkeypatch)
    update(settings(micro_batch=3), model, Still(model.parameters()), batch)
    lengths = (batch.prompt_lengths + batch.lengths).sort().values.view(4, 3)
    assert [len(ids) for _grad, ids in seen] == [3] * 4
    taken = [rows.tolist() for rows in batch.micro_batches(torch.arange(12), 3)]
    assert sorted(sum(taken, [])) == [*range(12)]
    for rows, expected in zip(taken, lengths):
        assert sorted((batch.prompt_lengths + batch.lengths)[rows].tolist()) == expected.tolist()
    assert sum(ids.numel() for _grad, ids in seen) < 12 * (
        batch.prompt_ids.shape[1] + batch.response_ids.shape[1] - 1)
