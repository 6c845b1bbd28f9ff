"""What the estimator is an estimate of: exact sums over all responses of tabular policies.

V = 3 tokens, T = 5, one row of free logits per state (a state is everything written so far), so
expectations are sums over 3^5 = 243 responses and gradients are exact. The snapshot is another such
policy, held fixed; advantages are the rewards themselves.
"""

import itertools

import pytest
import torch

from loss import policy_loss, summarize

V, T = 3, 5
RESPONSES = list(itertools.product(range(V), repeat=T))
STATES = {y[:t]: None for y in RESPONSES for t in range(T)}
STATES = {state: i for i, state in enumerate(STATES)}
INDEX = torch.tensor([[STATES[y[:t]] for t in range(T)] for y in RESPONSES])  # [243, T]
TOKENS = torch.tensor(RESPONSES)  # [243, T]
UNCLIPPED = (1.0, 1e9)  # no positive ratio is below 0 or above 1e9


@pytest.fixture
def world():
    torch.manual_seed(0)
    theta = torch.randn(len(STATES), V, dtype=torch.float64, requires_grad=True)
    snapshot = theta.detach() + 0.7 * torch.randn(len(STATES), V, dtype=torch.float64)
    rewards = torch.randn(len(RESPONSES), dtype=torch.float64)
    return theta, snapshot, rewards


def logps(table):
    return table.log_softmax(-1)[INDEX, TOKENS]  # [243, T]


def expected_gradient(method, theta, snapshot, rewards, k, clip=UNCLIPPED, extra=1.0):
    """E[estimator] at theta = old: the rows are all responses, their weights the probabilities of
    being sampled (prefix of k from the snapshot, rest from the policy). Sign turned: an ascent."""
    logp, snapshot_logp = logps(theta), logps(snapshot)
    from_snapshot = (torch.arange(T) < k).expand(len(RESPONSES), T)
    behaviour = torch.where(from_snapshot, snapshot_logp, logp.detach())
    probability = behaviour.sum(1).exp()
    torch.testing.assert_close(probability.sum().item(), 1.0)
    loss, _sums = policy_loss(
        method, logp, logp.detach(), behaviour, from_snapshot, torch.ones_like(from_snapshot),
        rewards, probability * extra, clip, clip, torch.zeros_like(behaviour),
    )
    return -torch.autograd.grad(loss, theta)[0]


def objective_gradient(theta, snapshot, rewards, k):
    """d/dtheta of E[R] where the snapshot writes the first k tokens: the mixed objective; k = 0 is
    the on-policy one."""
    logp = torch.cat([logps(snapshot)[:, :k], logps(theta)[:, k:]], dim=1)
    return torch.autograd.grad((logp.sum(1).exp() * rewards).sum(), theta)[0]


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_fact_1_the_policys_own_terms_are_the_gradient_of_the_mixed_objective(world, k):
    got = expected_gradient("mask_prefix", *world, k)
    torch.testing.assert_close(got, objective_gradient(*world, k), rtol=0, atol=1e-12)
    if k:  # and that is another objective than the on-policy one
        assert (got - objective_gradient(*world, 0)).abs().max() > 1e-3


def on_policy_gradient_of_the_first(theta, rewards, k):
    """The on-policy policy gradient's terms of the tokens t <= k."""
    logp = logps(theta)
    surrogate = logp.sum(1).exp().detach() * rewards * logp[:, :k].sum(1)
    return torch.autograd.grad(surrogate.sum(), theta)[0]


def test_fact_2_the_unclipped_prefix_term_is_exact_for_one_token_only(world):
    theta, snapshot, rewards = world
    error = {}
    for k in (1, 2, 3):
        prefix_term = expected_gradient("unclipped", *world, k)
        prefix_term = prefix_term - expected_gradient("mask_prefix", *world, k)
        exact = on_policy_gradient_of_the_first(theta, rewards, k)
        error[k] = ((prefix_term - exact).norm() / exact.norm()).item()
    assert error[1] < 1e-12
    # at k = 2 the state y_1 comes from the snapshot, and after y_1 it still writes y_2
    assert error[2] > 0.05 and error[3] > 0.05


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fact_2_the_product_of_the_prefix_ratios_is_exact_for_every_k(world, k):
    theta, snapshot, rewards = world
    log_w = (logps(theta).detach() - logps(snapshot))[:, :k]
    weighted = expected_gradient("mask_prefix", *world, k, extra=log_w.sum(1).exp())
    # the policy's own terms, so weighted, plus the prefix's are the on-policy gradient
    rest = on_policy_gradient_of_the_first(theta, rewards, T)
    rest = rest - on_policy_gradient_of_the_first(theta, rewards, k)
    torch.testing.assert_close(weighted, rest, rtol=0, atol=1e-12)
    # on the snapshot's tokens too (`no_correction` has no weight of its own), it is all of it
    everything = expected_gradient("no_correction", *world, k, extra=log_w.sum(1).exp())
    exact = objective_gradient(theta, snapshot, rewards, 0)
    torch.testing.assert_close(everything, exact, rtol=0, atol=1e-12)
    # its variance is what forbids it: E[w^2] grows with k
    second_moment = [
        ((logps(theta) - logps(snapshot))[:, :j].sum(1) * 2 + logps(snapshot).sum(1)).exp().sum()
        for j in (1, 2, 3)
    ]
    assert second_moment[0] < second_moment[1] < second_moment[2]


@pytest.mark.parametrize("k", [1, 3])
def test_fact_3_a_baseline_of_other_rows_adds_no_bias_and_the_groups_mean_scales(world, k):
    theta, snapshot, rewards = world
    exact = expected_gradient("unclipped", *world, k)
    other = expected_gradient("unclipped", theta, snapshot, rewards - 3.7, k)
    torch.testing.assert_close(other, exact, rtol=0, atol=1e-12)
    # A group of two, both seeded: A = R_i - (R_i + R_j) / 2, summed over all pairs of responses
    probability = torch.cat([logps(snapshot)[:, :k], logps(theta)[:, k:]], dim=1).sum(1).exp()
    total = torch.zeros_like(exact)
    for j in range(len(RESPONSES)):
        A = rewards - (rewards + rewards[j]) / 2
        part = expected_gradient("unclipped", theta, snapshot, A, k)
        total += probability[j].detach() * part
    torch.testing.assert_close(total, exact / 2, rtol=0, atol=1e-12)  # (G - 1) / G


def kl_from_snapshot(theta, snapshot, k):
    """KL(snapshot || policy) of the first k tokens."""
    past = logps(snapshot)[:, :k].sum(1)
    weight = logps(snapshot).sum(1).exp()  # of all responses that begin like this: sums to past's
    return (weight * (past - logps(theta)[:, :k].sum(1))).sum()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fact_3_no_correction_pushes_away_from_a_weaker_snapshot(world, k):
    # Unseeded rows are right, seeded ones wrong, whatever their prefix says: A = -1 on all of them.
    theta, snapshot, rewards = world
    all_wrong = theta, snapshot, torch.full_like(rewards, -1.0)
    rest = expected_gradient("mask_prefix", *all_wrong, k)
    away = torch.autograd.grad(kl_from_snapshot(theta, snapshot, k), theta)[0]
    push = expected_gradient("no_correction", *all_wrong, k) - rest
    torch.testing.assert_close(push, away, rtol=0, atol=1e-12)
    assert push.norm() > 0.1
    none = expected_gradient("unclipped", *all_wrong, k) - rest
    torch.testing.assert_close(none, torch.zeros_like(none), rtol=0, atol=1e-12)


def learnt(seed):
    """A policy that has learnt since its snapshot: three large steps up the on-policy gradient."""
    torch.manual_seed(seed)
    snapshot = torch.randn(len(STATES), V, dtype=torch.float64)
    rewards = (torch.rand(len(RESPONSES), dtype=torch.float64) < 0.3).double()
    theta = snapshot.clone().requires_grad_()
    for _ in range(3):
        gradient = objective_gradient(theta, snapshot, rewards, 0)
        theta = (theta + 4 * gradient).detach().requires_grad_()
    return theta, snapshot, rewards


@pytest.mark.parametrize("seed", range(4))
def test_fact_4_clipping_around_the_snapshot_pulls_back_to_it(seed):
    theta, snapshot, rewards = learnt(seed)
    k, bias, pull, narrowing = 3, {}, {}, {}
    mixed = torch.cat([logps(snapshot)[:, :k], logps(theta)[:, k:]], dim=1).sum(1).exp()
    A = rewards - (mixed * rewards).sum().detach()
    exact = objective_gradient(theta, snapshot, rewards, 0)
    away = torch.autograd.grad(kl_from_snapshot(theta, snapshot, k), theta)[0]
    entropy = -(logps(theta).sum(1).exp() * logps(theta).sum(1)).sum()  # of whole responses
    entropy = torch.autograd.grad(entropy, theta)[0]
    for method in ("thinking_seeds", "unclipped", "truncated", "decoupled"):
        got = expected_gradient(method, theta, snapshot, A, k, clip=(0.2, 0.2))
        bias[method] = ((got - exact).norm() / exact.norm()).item()
        pull[method] = (got * away).sum().item()
        narrowing[method] = (got * entropy).sum().abs().item()
    for method in ("unclipped", "truncated", "decoupled"):
        assert bias["thinking_seeds"] > 2 * bias[method]
        # the others leave the snapshot further behind, this one does so less, or returns to it
        assert pull["thinking_seeds"] < 0.5 * pull[method]
        # and whichever way the entropy goes, it goes there more slowly
        assert narrowing["thinking_seeds"] < narrowing[method]
    assert (exact * away).sum() > 0


def test_fact_5_fewer_clipped_tokens_than_sequence_mix_follow_from_fewer_of_the_snapshot():
    share = dict.fromkeys((0, 2, T), 0.0)  # k = T is sequence_mix
    for seed in range(4):
        theta, snapshot, rewards = learnt(seed)
        for k in share:
            mixed = torch.cat([logps(snapshot)[:, :k], logps(theta)[:, k:]], dim=1)
            probability = mixed.sum(1).exp()
            A = rewards - (probability * rewards).sum()
            from_snapshot = (torch.arange(T) < k).expand(len(RESPONSES), T)
            method = "sequence_mix" if k == T else "thinking_seeds"
            for i, row in enumerate(probability.tolist()):
                one = slice(i, i + 1)
                _loss, sums = policy_loss(
                    method, logps(theta)[one], logps(theta)[one], mixed[one], from_snapshot[one],
                    torch.ones(1, T, dtype=torch.bool), A[one], torch.ones(1), (0.2, 0.2),
                    (0.2, 0.2), torch.zeros(1, T))
                metrics = summarize(sums)
                share[k] += row / 4 * (metrics["clip_frac_low"] + metrics["clip_frac_high"])
    assert share[0] == 0 < share[2] < 0.7 * share[T]
    # and yet, of the snapshot's own tokens no smaller part is clipped
    assert share[2] / (2 / T) > share[T]


def test_a_prefix_shared_by_a_group_learns_exactly_nothing(world):
    # Why every row draws its own prefix: group-centred advantages sum to zero on a shared one.
    theta, snapshot, _rewards = world
    rows = [i for i, y in enumerate(RESPONSES) if y[:2] == (1, 2)][:4]
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64)
    from_snapshot = (torch.arange(T) < 2).expand(4, T)
    gradients = []
    for method in ("unclipped", "mask_prefix"):
        logp = logps(theta)[rows]
        behaviour = torch.where(from_snapshot, logps(snapshot)[rows], logp.detach())
        loss, _sums = policy_loss(
            method, logp, logp.detach(), behaviour, from_snapshot, torch.ones_like(from_snapshot),
            advantages, torch.ones(4, dtype=torch.float64), UNCLIPPED, UNCLIPPED,
            torch.zeros_like(behaviour),
        )
        gradients.append(torch.autograd.grad(loss, theta)[0])
    assert gradients[1].abs().max() > 0.1
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-15)
