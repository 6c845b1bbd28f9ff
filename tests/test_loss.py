"""The objective against arithmetic done by hand. Padding holds absurd values, so a leak is loud."""

import math

import pytest
import torch

from loss import (
    METHODS,
    REDUCTIONS,
    add_sums,
    group_advantages,
    policy_loss,
    rollout_metrics,
    row_weights,
    summarize,
)

CLIP = (0.2, 0.3)


def tokens(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# ------------------------------------------------------------------------------ advantages


def test_group_advantages_by_hand():
    # group 1: mean 1/4, deviations (3/4, -1/4 x 3), var (9 + 3) / 16 / 3 = 1/4, std 1/2 (ddof 1)
    # group 2: mean 1, deviations (1, -1, 0, 0), var 2/3
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 1.0])
    one, two = 0.5 + 1e-4, math.sqrt(2 / 3) + 1e-4
    expected = [0.75 / one] + [-0.25 / one] * 3 + [1 / two, -1 / two, 0, 0]
    assert group_advantages(rewards, 4).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e6 + 0.1])
def test_equal_rewards_give_exactly_zero(value):
    # 0.1 * 7 / 7 is not 0.1 in float32: its rounding error over 1e-4 would be an advantage
    assert group_advantages(torch.full((14,), value), 7).tolist() == [0.0] * 14


# ------------------------------------------------------------------- the surrogate's gradient


def gradient(method, ratio, advantage, from_snapshot, w=1.0, prefix_clip=CLIP):
    """d loss / d logp of one token whose rho (with w) is `ratio` at weight 1."""
    log_rho = math.log(ratio)
    old = tokens([-1.0])
    behaviour = old - math.log(w)
    logp = (behaviour + log_rho).requires_grad_()
    loss, sums = policy_loss(
        method, logp, old, behaviour, torch.tensor([[from_snapshot]]), torch.tensor([[True]]),
        tokens(advantage)[0:1].reshape(1), tokens(1.0).reshape(1), CLIP, prefix_clip,
        tokens([0.5]),
    )
    loss.backward()
    return logp.grad.item(), summarize(sums)


@pytest.mark.parametrize("from_snapshot", [False, True])
@pytest.mark.parametrize(
    "ratio, advantage, expected, low, high",
    [
        # d/dlogp of -(ratio A) is -ratio A
        (0.5, 1.0, -0.5, 0, 0),  # fell although it was good: pushed up
        (1.5, 1.0, 0.0, 0, 1),  # has risen enough
        (0.5, -1.0, 0.0, 1, 0),  # has fallen enough
        (1.5, -1.0, 1.5, 0, 0),  # rose although it was bad: pushed down, never clipped
        (1.0, 2.0, -2.0, 0, 0),
        (1.25, 1.0, -1.25, 0, 0),  # inside clip_high = 0.3, outside clip_low = 0.2
        (0.75, -1.0, 0.0, 1, 0),  # and the other way round
    ],
)
def test_two_of_the_four_corners_are_clipped(ratio, advantage, expected, low, high, from_snapshot):
    # A public teaching implementation had A < 0 inverted: it kept pushing down what had fallen.
    got, metrics = gradient("thinking_seeds", ratio, advantage, from_snapshot)
    assert got == pytest.approx(expected)
    assert (metrics["clip_frac_low"], metrics["clip_frac_high"]) == (low, high)
    assert metrics["clip_lost"] == low + high  # a single token: all or nothing
    assert metrics["entropy_effective"] == (None if low + high else 0.5)


def test_the_prefix_is_clipped_by_rho_and_the_continuation_by_r():
    # rho = r w = 1.5 with w = 1.5, so r = 1: clipped only where the snapshot wrote the token
    assert gradient("thinking_seeds", 1.5, 1.0, True, w=1.5)[0] == 0.0
    # at a token of the policy's own w must be 1; with w = 1 and r = 1 nothing is clipped
    assert gradient("thinking_seeds", 1.0, 1.0, False)[0] == pytest.approx(-1.0)
    # and rho, not r, weighs the prefix: r = 1, w = 1.2
    assert gradient("thinking_seeds", 1.2, 1.0, True, w=1.2)[0] == pytest.approx(-1.2)


def test_mask_prefix_learns_nothing_from_the_prefix():
    for ratio in (0.5, 1.0, 1.5):
        got, metrics = gradient("mask_prefix", ratio, 1.0, True)
        assert got == 0.0
        assert metrics["clip_frac_high"] == 0 and metrics["entropy_effective"] is None
    assert gradient("mask_prefix", 1.0, 1.0, False)[0] == pytest.approx(-1.0)


@pytest.mark.parametrize("method, A, gradients", [
    # of the objective, at (r, w) = (1, 1), (1, 1.5), (1.5, 1.5), (1.5, 3), (0.5, 1), (0.5, 3);
    # rho = r w:                     1       1.5       2.25        4.5       0.5       1.5
    ("thinking_seeds", 1.0, (1, 0, 0, 0, 0.5, 0)),  # clipped above rho = 1.3
    ("thinking_seeds", -1.0, (-1, -1.5, -2.25, -4.5, 0, -1.5)),  # below 0.8
    ("decoupled", 1.0, (1, 1.5, 0, 0, 0.5, 1)),  # clipped above r = 1.3; w is at most 2
    ("decoupled", -1.0, (-1, -1.5, -2.25, -3, 0, 0)),
    ("unclipped", 1.0, (1, 1.5, 2.25, 4.5, 0.5, 1.5)),
    ("unclipped", -1.0, (-1, -1.5, -2.25, -4.5, -0.5, -1.5)),
    ("truncated", 1.0, (1, 1.5, 2, 2, 0.5, 1.5)),  # rho is at most 2, and the gradient goes on
    ("truncated", -1.0, (-1, -1.5, -2, -2, -0.5, -1.5)),
    ("no_correction", 1.0, (1, 1, 0, 0, 0.5, 0.5)),  # w does not matter
    ("no_correction", -1.0, (-1, -1, -1.5, -1.5, 0, 0)),
    ("mask_prefix", 1.0, (0, 0, 0, 0, 0, 0)),
])
def test_what_each_method_does_with_the_snapshots_tokens(method, A, gradients):
    cases = (1, 1), (1, 1.5), (1.5, 1.5), (1.5, 3), (0.5, 1), (0.5, 3)
    for (r, w), expected in zip(cases, gradients, strict=True):
        got, metrics = gradient(method, r * w, A, True, w)
        assert got == pytest.approx(-expected)
        # where the gradient is gone, it was clipped, and is told of; but for a method without one
        assert (metrics["clip_lost"] == 1) == (expected == 0 and method != "mask_prefix")
        assert (metrics["entropy_effective"] is None) == (expected == 0)


@pytest.mark.parametrize("method, weights", [
    # of (r, w) = (1, 50) and (1.5, 1); rho is 50 and 1.5, and only r = 1.5 is above 1.3
    ("decoupled", (2.0, 1.5)), ("no_correction", (1.0, 1.5)),
])
def test_what_is_lost_is_weighed_as_the_method_weighs_it(method, weights):
    r, w = tokens([1.0, 1.5]), tokens([50.0, 1.0])
    old, both = tokens([-1.0, -1.0]), torch.ones(1, 2, dtype=torch.bool)
    _loss, sums = policy_loss(
        method, old + r.log(), old, old - w.log(), both, both, tokens(1.0).reshape(1),
        tokens(1.0).reshape(1), CLIP, CLIP, old)
    assert summarize(sums)["clip_lost"] == pytest.approx(weights[1] / sum(weights))


def test_the_snapshots_tokens_may_have_clip_bounds_of_their_own():
    assert gradient("thinking_seeds", 1.25, 1.0, True)[0] == pytest.approx(-1.25)
    assert gradient("thinking_seeds", 1.25, 1.0, True, prefix_clip=(0.2, 0.1))[0] == 0
    assert gradient("thinking_seeds", 0.75, -1.0, True)[0] == 0
    assert gradient("thinking_seeds", 0.75, -1.0, True, prefix_clip=(0.5, 0.2))[0] != 0
    for ratio, A in ((1.25, 1.0), (0.75, -1.0)):  # the policy's have those of all
        narrow = gradient("thinking_seeds", ratio, A, False, prefix_clip=(0.0, 0.0))
        assert narrow == gradient("thinking_seeds", ratio, A, False)


def test_without_a_snapshot_all_methods_are_grpo():
    for method in METHODS:
        for ratio in (0.5, 1.1, 1.5):
            for advantage in (1.0, -1.0):
                got = gradient(method, ratio, advantage, False)
                assert got == gradient("grpo", ratio, advantage, False)


# --------------------------------------------------------------- a seeded step, by hand (2 x 6)


def hand_example():
    """Row 0: 2 prefix tokens of 5, A = 1. Row 1: unseeded, 3 tokens, A = -2. Ratios at each token:

        row 0   w   2.0  0.5 | 1    1    1   | pad        row 1   1    1    1   | pad pad pad
                r   1.0  1.0 | 1.1  1.4  0.5 |                    0.9  0.7  1.6 |
                rho 2.0  0.5 | 1.1  1.4  0.5 |                    0.9  0.7  1.6 |

    Row 0, A = 1: obj = min(rho, clip(rho, 0.8, 1.3)):  1.3*  0.5  1.1  1.3*  0.5   sum 4.7
    Row 1, A = -2: obj = min(-2 r, -2 clip(r)):        -1.8  -1.6*  -3.2            sum -6.6
    (* clipped: no gradient). token: Z = 8, loss = -(4.7 - 6.6) / 8 = 0.2375
    """
    r = tokens([1.0, 1.0, 1.1, 1.4, 0.5, 1e30], [0.9, 0.7, 1.6, 1e30, 1e30, 1e30])
    w = tokens([2.0, 0.5, 1.0, 1.0, 1.0, 1e30], [1.0, 1.0, 1.0, 1e30, 1e30, 1e30])
    lengths = torch.tensor([5, 3])
    mask = torch.arange(6) < lengths[:, None]
    from_snapshot = torch.arange(6) < torch.tensor([2, 0])[:, None]
    old = tokens([-0.5, -1.0, -2.0, -0.1, -0.3, 7.0], [-1.0, -0.2, -0.6, 7.0, 7.0, 7.0])
    entropy = tokens([0.1, 0.2, 0.3, 0.4, 0.5, 1e30], [0.6, 0.7, 0.8, 1e30, 1e30, 1e30])
    advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
    logp, behaviour = old + r.log(), old - w.log()
    for bad, x in zip((torch.nan, -torch.inf, 1e30), (logp, old, behaviour), strict=True):
        x[~mask] = bad
    return logp, old, behaviour, from_snapshot, mask, advantages, lengths, entropy


def hand_loss(reduction, method="thinking_seeds", cap=6, **kwargs):
    logp, old, behaviour, from_snapshot, mask, advantages, lengths, entropy = hand_example()
    logp.requires_grad_()
    weights = row_weights(lengths, reduction, cap).double()
    loss, sums = policy_loss(
        method, logp, old, behaviour, from_snapshot, mask, advantages, weights, CLIP, CLIP,
        entropy, **kwargs,
    )
    loss.backward()
    return loss.item(), logp.grad, summarize(sums)


def test_a_seeded_step_by_hand():
    loss, grad, metrics = hand_loss("token")
    assert loss == pytest.approx(0.2375)
    # gradient of -obj / 8: -rho A where it is not clipped, 0 at padding although that holds nan
    expected = [0, -0.5, -1.1, 0, -0.5, 0, 2 * 0.9, 0, 2 * 1.6, 0, 0, 0]
    assert (8 * grad).flatten().tolist() == pytest.approx(expected)
    # prefix: 2 tokens, w = (2, 0.5): ess = 2.5^2 / (2 * 4.25); the clipped one has w = 2, not > 2
    assert metrics["ess"] == pytest.approx(6.25 / 8.5)
    assert metrics["snapshot_share"] == 2 / 8
    assert metrics["clip_frac_high_prefix"] == 1 / 2 and metrics["clip_frac_low_prefix"] == 0
    assert metrics["clip_frac_high"] == 2 / 8 and metrics["clip_frac_low"] == 1 / 8
    assert metrics["clip_frac_low_continuation"] == 1 / 6
    # sum |rho A|: row 0 2 + 0.5 + 1.1 + 1.4 + 0.5 = 5.5, row 1 1.8 + 1.4 + 3.2 = 6.4
    assert metrics["clip_lost"] == pytest.approx((2.0 + 1.4 + 1.4) / 11.9)
    assert metrics["clip_lost_prefix"] == pytest.approx(2.0 / 2.5)
    assert metrics["entropy"] == pytest.approx(3.6 / 8)
    assert metrics["entropy_prefix"] == pytest.approx(0.15)
    assert metrics["entropy_effective"] == pytest.approx((0.2 + 0.3 + 0.5 + 0.6 + 0.8) / 5)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ratio_max_continuation"] == pytest.approx(1.6)
    assert metrics["ratio_mean_prefix"] == pytest.approx(1.25)
    # k3 of KL(behaviour || policy) = rho - 1 - log rho
    k3 = [x - 1 - math.log(x) for x in (2.0, 0.5)]
    assert metrics["kl_behaviour_prefix"] == pytest.approx(sum(k3) / 2)
    assert metrics["capped"] == 0.0 and metrics["capped_prefix"] == 0.0


def test_the_three_reductions_by_hand():
    # row sums of obj: 4.7 over 5 tokens, -6.6 over 3
    assert hand_loss("token")[0] == pytest.approx(-(4.7 - 6.6) / 8)
    assert hand_loss("seq")[0] == pytest.approx(-(4.7 / 5 - 6.6 / 3) / 2)
    assert hand_loss("dr", cap=6)[0] == pytest.approx(-(4.7 - 6.6) / (2 * 6))
    assert hand_loss("dr", cap=10)[0] == pytest.approx(-(4.7 - 6.6) / (2 * 10))
    with pytest.raises(ValueError, match="'mean'.*token, seq, dr"):
        row_weights(torch.tensor([1]), "mean", 6)


def test_masked_tokens_count_in_z():
    # mask_prefix drops 1.3 + 0.5 of row 0, and still divides by all 8 tokens
    loss, grad, metrics = hand_loss("token", "mask_prefix")
    assert loss == pytest.approx(-(4.7 - 1.8 - 6.6) / 8)
    assert grad[0, :2].tolist() == [0.0, 0.0]
    assert metrics["entropy_effective_prefix"] is None
    assert metrics["clip_lost_prefix"] is None
    assert metrics["entropy_prefix"] == pytest.approx(0.15)


def test_kl_term_by_hand_on_the_policys_own_tokens_only():
    logp, _old, _b, from_snapshot, mask, *_ = hand_example()
    # log(ref / pi) = 0.5 on every token: k3 = e^0.5 - 1.5; 6 tokens of the policy's own
    ref = logp + 0.5
    k3 = math.exp(0.5) - 1.5
    loss, grad, metrics = hand_loss("token", ref_logp=ref, kl_coef=0.1)
    assert loss == pytest.approx(0.2375 + 0.1 * 6 * k3 / 8)
    assert metrics["kl_ref"] == pytest.approx(k3)
    # d k3 / d logp = 1 - e^0.5, towards the reference; nothing on the prefix or at padding
    extra = grad - hand_loss("token")[1]
    expected = torch.where(mask & ~from_snapshot, 0.1 * (1 - math.exp(0.5)) / 8, 0.0)
    torch.testing.assert_close(extra, expected.double())
    assert "kl_ref" not in hand_loss("token")[2]


@pytest.mark.parametrize("log_w", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("log_r", [-200.0, 0.1, 200.0])
def test_huge_differences_do_not_overflow(log_r, log_w):
    # a snapshot may give a token e^-60 of the policy's probability: inf * 0 would be nan
    old = tokens([-1.0]).float()
    logp = (old + log_r).requires_grad_()
    loss, sums = policy_loss(
        "thinking_seeds", logp, old, old - log_w, torch.tensor([[True]]),
        torch.tensor([[True]]), torch.tensor([-1.0]), torch.tensor([1.0]), CLIP, CLIP, old,
    )
    loss.backward()
    assert math.isfinite(loss.item()) and math.isfinite(logp.grad.item())
    assert all(v is None or math.isfinite(v) for v in summarize(sums).values())


# ------------------------------------------------------------------- splits, and the metrics


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_split_into_rows_changes_neither_gradient_nor_metrics(method, reduction):
    # metrics of parts, averaged, would be another quantity: rows have 5 and 3 tokens
    logp, old, behaviour, from_snapshot, mask, advantages, lengths, entropy = hand_example()
    weights = row_weights(lengths, reduction, 6).double()
    logp.requires_grad_()
    total = {}
    for i in (1, 0):
        row = slice(i, i + 1)
        loss, sums = policy_loss(
            method, logp[row], old[row], behaviour[row], from_snapshot[row], mask[row],
            advantages[row], weights[row], CLIP, CLIP, entropy[row],
        )
        loss.backward()
        add_sums(total, sums)
    _loss, grad, metrics = hand_loss(reduction, method)
    torch.testing.assert_close(logp.grad, grad, rtol=0, atol=1e-12)
    split = summarize(total)
    assert split.keys() == metrics.keys()
    for key, value in metrics.items():
        assert split[key] == (None if value is None else pytest.approx(value, rel=1e-12)), key


@pytest.mark.parametrize("ratio, w, capped", [
    (2.1, 1.0, 1), (1.0, 2.1, 1), (2.1, 2.1, 1), (1.9, 1.9, 0),
])
def test_a_token_is_capped_where_w_or_rho_is_above_two(ratio, w, capped):
    assert gradient("thinking_seeds", ratio, 1.0, True, w)[1]["capped_prefix"] == capped


def test_metrics_are_none_where_there_is_nothing_to_average():
    logp, old, behaviour, from_snapshot, mask, advantages, lengths, entropy = hand_example()
    none = torch.zeros_like(from_snapshot)
    _loss, sums = policy_loss(
        "grpo", logp, old, old, none, mask, advantages * 0, row_weights(lengths, "token", 6), CLIP,
        CLIP, entropy,
    )
    metrics = summarize(sums)
    for key in ("entropy_prefix", "ratio_max_prefix", "clip_frac_low_prefix", "ess", "clip_lost",
                "entropy_effective"):
        assert metrics[key] is None, key
    assert metrics["entropy_continuation"] == pytest.approx(metrics["entropy"])
    assert metrics["snapshot_share"] == 0


def test_rollout_metrics_by_hand():
    metrics = rollout_metrics(
        rewards=torch.tensor([1.0, torch.nan, 1.0, 1.0]), group_size=2,  # no verdict is worth 0
        lengths=torch.tensor([4, 6, 3, 6]), prefix_lengths=torch.tensor([4, 0, 2, 0]),
        ended=torch.tensor([True, False, True, True]),
    )
    assert metrics == {
        "reward": 0.75, "reward_seeded": 1.0, "reward_unseeded": 0.5, "zero_std_groups": 1,
        "undecided": 0.25, "length": 19 / 4, "cut_off": 0.25, "prefix_length": 3.0,
        "prefix_finished": 0.5, "solved_seeded_only": 1, "solved_unseeded_only": 0,
    }
    unseeded = rollout_metrics(
        torch.ones(2), 2, torch.ones(2), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    )
    assert unseeded["reward_seeded"] is None and unseeded["prefix_length"] is None
    assert unseeded["solved_seeded_only"] is unseeded["solved_unseeded_only"] is None
    other = rollout_metrics(  # solved by a row of either kind, by the unseeded alone, by none
        torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.9]), 2, torch.ones(6),
        torch.tensor([1, 0, 1, 0, 1, 0]), torch.ones(6, dtype=torch.bool))
    assert (other["solved_seeded_only"], other["solved_unseeded_only"]) == (0, 1)
