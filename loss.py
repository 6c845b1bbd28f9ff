"""The objective: group advantages, token-level importance ratios, and what to do on the prefix.

Four policies meet here, and they are easily mixed up:

    the policy      pi_theta, being updated
    the old policy  the same, frozen at the moment it sampled this batch
    the snapshot    a past checkpoint: it wrote the prefix of the seeded rows
    the reference   the policy that training started from; only with a KL term

*Behaviour* is whichever of the old policy and the snapshot wrote the token. Per token, in float32:

    r   = pi_theta / pi_old        moves with every update; 1 before the first one
    w   = pi_old / pi_behaviour    a constant of the rollout; 1 where the policy wrote the token
    rho = r w = pi_theta / pi_behaviour

    loss = - sum_it weight_i obj_it  (+ kl_coef weight_i k3_it, on the policy's own tokens only)

    the policy wrote token t     obj = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
    the snapshot wrote token t   obj = PREFIX_TERMS[method](...): only here do methods differ

Everything in this file is a pure function of tensors. Shapes: B rows, G rows per prompt (a group),
T response tokens.
"""

import torch

C = 2.0  # the cap of `decoupled` and `truncated`; above it, a token is `capped` in the metrics


def group_advantages(rewards, group_size):
    """A = (R - mean) / (std + 1e-4) within each group of `group_size` consecutive rows (GRPO,
    arXiv 2402.03300); ddof 1. rewards [B] -> [B].

    Exactly 0 where all rewards of a group are equal: the mean's rounding error over a std of zero
    would otherwise be a small gradient out of nothing.
    """
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    advantages = centred / (groups.std(dim=1, keepdim=True) + 1e-4)
    flat = groups.amax(dim=1, keepdim=True) == groups.amin(dim=1, keepdim=True)
    return advantages.masked_fill(flat, 0.0).view(-1)


def row_weights(lengths, reduction, cap):
    """weight_i [B] of every token of row i, over *all* rows of one optimizer step (lengths [B]).

    token: 1 / Z, Z the step's response tokens, masked ones included (DAPO, arXiv 2503.14476)
    seq:   the mean over each row, then over rows: a token of a short row counts more (GRPO)
    dr:    1 / (rows * cap): a constant, no bias towards either length (Dr. GRPO, arXiv 2503.20783)

    Made before the step is split into micro-batches, so that the split cannot change the gradient.
    """
    lengths = lengths.float()
    if reduction == "token":
        return (1 / lengths.sum()).expand_as(lengths)
    if reduction == "seq":
        return 1 / (len(lengths) * lengths)
    if reduction == "dr":
        return torch.full_like(lengths, 1 / (len(lengths) * cap))
    raise ValueError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")


REDUCTIONS = ("token", "seq", "dr")


# ----------------------------------------------------------- what a method does with the prefix
#
# A prefix term gets r, w, A (all [B, T]) and the clip bounds, and returns the objective and where
# its gradient is clipped away (bool, or False for nowhere). It is called on every token and used on
# the snapshot's.
# What is said of bias holds at theta = old, for the on-policy objective; tests/test_enumeration.py
# has it as exact sums.


def clipped(ratio, A, clip):
    """PPO's surrogate (arXiv 1707.06347): min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    It gives up the gradient in two corners of four, A > 0 with ratio > 1 + clip_high and A < 0 with
    ratio < 1 - clip_low: the token has moved far enough the right way. A < 0 with a large ratio is
    *not* clipped.
    """
    low, high = 1 - clip[0], 1 + clip[1]
    objective = torch.minimum(ratio * A, ratio.clamp(low, high) * A)
    return objective, ((A > 0) & (ratio > high)) | ((A < 0) & (ratio < low))


def anchored_at_snapshot(r, w, A, clip):
    """min(rho A, clip(rho) A): the reading closest to the abstract of arXiv 2601.21476.

    Bias: that of `unclipped`, and the clip is centred on the snapshot: before any update it already
    drops the tokens that the policy has moved the right way since, and what is left pulls it back
    towards its past.
    """
    return clipped(r * w, A, clip)


def decoupled(r, w, A, clip):
    """min(w, C) min(r A, clip(r) A): w weighs the token, and the clip is centred on the old policy
    (decoupled PPO, arXiv 2110.00641; the cap on w as in V-trace, arXiv 1802.01561).

    Bias: that of `unclipped`, and where w > C the token counts for less than it should. No pull
    towards the snapshot: before the first update nothing is clipped.
    """
    objective, is_clipped = clipped(r, A, clip)
    return w.clamp(max=C) * objective, is_clipped


def unclipped(r, w, A, clip):
    """rho A: importance sampling of each token for itself, the token form with the least bias.

    Bias: rho corrects the choice of each token, but neither the distribution of the states before
    it nor the reward-to-go, in which the snapshot still finishes the prefix; for k = 1 alone this
    term is exact. (The policy's own tokens after it follow the mixed objective under any method.)
    """
    return r * w * A, False


def truncated(r, w, A, clip):
    """stop_grad(min(rho, C)) A log pi_theta (CISPO, arXiv 2506.13585): the weight is bounded, and
    still no token loses its gradient, however far it has moved.

    Bias: that of `unclipped`, and where rho > C the token counts for less than it should.
    """
    # r / r.detach() is 1, and its gradient that of log pi_theta
    return (r * w).clamp(max=C).detach() * A * (r / r.detach()), False


def uncorrected(r, w, A, clip):
    """min(r A, clip(r) A): as if the old policy had written the snapshot's tokens.

    Bias: it follows the snapshot's choices, not the policy's; and with a baseline that rows of both
    share, a snapshot that is weaker than the policy is pushed away from, whatever its tokens do.
    """
    return clipped(r, A, clip)


def masked(r, w, A, clip):
    """0: the snapshot only chooses where the policy's own tokens start.

    Bias: none for the mixed objective (prefix from the snapshot, rest from the policy), where the
    prefix does not depend on theta; but nothing is learnt about the first k tokens of those rows.
    """
    return torch.zeros_like(A), False


PREFIX_TERMS = {
    "grpo": masked,  # no row has a prefix
    "thinking_seeds": anchored_at_snapshot,
    "decoupled": decoupled,
    "unclipped": unclipped,
    "truncated": truncated,
    "mask_prefix": masked,
    "no_correction": uncorrected,
    "sequence_mix": anchored_at_snapshot,  # the snapshot writes whole rows: see seeds.py
    "suffix": anchored_at_snapshot,  # the snapshot writes the ends of rows: see seeds.py
}
METHODS = tuple(PREFIX_TERMS)


# ------------------------------------------------------------------------------------- the loss


def policy_loss(
    method, logp, old_logp, behaviour_logp, from_snapshot, mask, advantages, weights, clip,
    prefix_clip, entropy, ref_logp=None, kl_coef=0.0,
):
    """The loss of some rows (a scalar, to call backward on) and their sums for `summarize`.

    logp [B, T] has the gradient; old_logp, behaviour_logp, ref_logp and entropy (for the metrics)
    are [B, T] constants; from_snapshot and mask [B, T] bool; advantages and weights (row_weights)
    [B]; clip = (clip_low, clip_high), and prefix_clip the same for the snapshot's tokens. Over a
    partition of the rows of an optimizer step, losses and sums add up to those of the step.
    """
    # Padding may hold anything, -inf and nan included; multiplying by a mask would keep the nan.
    logp, old_logp, behaviour_logp = (
        x.masked_fill(~mask, 0.0) for x in (logp, old_logp, behaviour_logp))
    # The clamp keeps exp from overflowing; it is no trust region.
    log_r = (logp - old_logp).clamp(-20, 20)
    log_w = (old_logp - behaviour_logp).clamp(-20, 20)
    r, w = log_r.exp(), log_w.exp()
    A = advantages.unsqueeze(1).expand_as(logp)

    objective, is_clipped = clipped(r, A, clip)
    prefix_objective, prefix_clipped = PREFIX_TERMS[method](r, w, A, prefix_clip)
    objective = torch.where(from_snapshot, prefix_objective, objective)
    is_clipped = torch.where(from_snapshot, prefix_clipped, is_clipped)

    per_token = -objective
    with torch.no_grad():  # what would count if nothing were clipped
        unclipped, _nowhere = PREFIX_TERMS[method](r, w, A, (1.0, torch.inf))
        unclipped = torch.where(from_snapshot, unclipped, r * A).abs()
    sums = _sums(unclipped, is_clipped, log_r + log_w, w, A, entropy, from_snapshot, mask)
    if ref_logp is not None:
        # k3, low variance and never negative (http://joschu.net/blog/kl-approx.html). It estimates
        # KL(policy || reference) on the policy's own samples, so the prefix has no part in it.
        log_ratio = (ref_logp.masked_fill(~mask, 0.0) - logp).clamp(-20, 20)
        k3 = (log_ratio.expm1() - log_ratio).masked_fill(from_snapshot, 0.0)
        per_token = per_token + kl_coef * k3
        sums["kl_ref"] = _pair(k3[mask].sum(), (mask & ~from_snapshot).sum())
    return (weights.unsqueeze(1) * per_token.masked_fill(~mask, 0.0)).sum(), sums


# ---------------------------------------------------------------------------------- the metrics
#
# A metric is a ratio of sums. Sums are added over micro-batches and optimizer steps, and divided
# once, at the end: a mean of means, or the last micro-batch's value, is another quantity.


@torch.no_grad()
def _sums(unclipped, is_clipped, log_rho, w, A, entropy, from_snapshot, mask):
    rho = log_rho.exp()
    # unclipped: a token's weight in the gradient of log pi, as its method has it (rho |A|, for the
    # policy's own r |A|, for `decoupled` min(w, C) r |A|, ...); 0 where A is, and where a method
    # masks. effective: tokens with a policy gradient. clip_lost: the share that is clipped away.
    effective = ~is_clipped & (unclipped != 0)
    per_token = {
        "entropy": entropy,
        "clip_frac_low": is_clipped & (A < 0),
        "clip_frac_high": is_clipped & (A > 0),
        "capped": (w > C) | (rho > C),
        "ratio_mean": rho,
        # k3 of KL(behaviour || policy), on behaviour's own samples
        "kl_behaviour": log_rho.expm1() - log_rho,  # rho - 1 - log rho, less the cancellation
    }
    prefix = mask & from_snapshot
    sums = {}
    for name, region in ("", mask), ("_prefix", prefix), ("_continuation", mask & ~from_snapshot):
        for key, value in per_token.items():
            sums[key + name] = _pair(value[region].sum(), region.sum())
        of_use = region & effective
        sums["entropy_effective" + name] = _pair(entropy[of_use].sum(), of_use.sum())
        sums["clip_lost" + name] = _pair(
            unclipped[region & is_clipped].sum(), unclipped[region].sum())
        sums["ratio_max" + name] = rho.masked_fill(~region, -torch.inf).max()
    wp = w[prefix].double()
    sums["ess"] = torch.stack([wp.sum(), wp.square().sum(), prefix.sum().double()])
    sums["snapshot_share"] = _pair(prefix.sum(), mask.sum())
    return sums


def _pair(numerator, denominator):
    return torch.stack([numerator.detach().double(), denominator.detach().double()])


def add_sums(total, sums):
    """Adds the sums of some more rows to `total`, in place ({} to begin with)."""
    for name, value in sums.items():
        if name not in total:
            total[name] = value
        elif name.startswith("ratio_max"):
            total[name] = torch.maximum(total[name], value)
        else:
            total[name] = total[name] + value


def summarize(total):
    """Sums -> {metric: float, or None where there was nothing to average or it is not finite}."""
    metrics = {}
    for name, value in total.items():
        if not value.isfinite().all():  # ratio_max of no token is -inf
            metrics[name] = None
        elif name.startswith("ratio_max"):
            metrics[name] = value.item()
        elif name == "ess":  # Kish's effective share of the prefix tokens: (sum w)^2 / (N sum w^2)
            s, s2, n = value.tolist()
            metrics[name] = s * s / (n * s2) if n else None
        else:
            numerator, denominator = value.tolist()
            metrics[name] = numerator / denominator if denominator else None
    return metrics


def rollout_metrics(rewards, group_size, lengths, prefix_lengths, ended):
    """What the rollout itself tells, before any update; all arguments but group_size are [B].

    A reward is nan where the grader came to no verdict; it is counted, and worth 0.
    """

    def mean(values, where=None):
        values = values.double() if where is None else values[where].double()
        return values.mean().item() if len(values) else None

    seeded, undecided = prefix_lengths > 0, mean(rewards.isnan())
    rewards = rewards.nan_to_num(0.0)
    groups = rewards.view(-1, group_size)
    by_seed, alone = ((where & (rewards >= 1)).view(-1, group_size).any(1)
                      for where in (seeded, ~seeded))
    return {
        "reward": mean(rewards),
        "reward_seeded": mean(rewards, seeded),
        "reward_unseeded": mean(rewards, ~seeded),
        "undecided": undecided,
        "zero_std_groups": (groups.amax(1) == groups.amin(1)).sum().item(),
        # groups that one kind of row solved and the other did not: a fair pair at half of each
        "solved_seeded_only": (by_seed & ~alone).sum().item() if seeded.any() else None,
        "solved_unseeded_only": (alone & ~by_seed).sum().item() if seeded.any() else None,
        "length": mean(lengths),
        "cut_off": mean(~ended),
        "prefix_length": mean(prefix_lengths, seeded),
        "prefix_finished": mean(prefix_lengths == lengths, seeded),
    }
