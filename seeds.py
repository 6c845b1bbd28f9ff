"""Seeds: prefixes of responses, written by the policy's own past.

On-policy RL forgets. As the entropy of the policy falls, ways of starting an answer that it once
tried are no longer sampled, so nothing is learnt about them any more. The policy's past checkpoints
still know them. Thinking Seeds (arXiv 2601.21476) lets a checkpoint write the *prefix* of a response
(its first k tokens, the seed) and the current policy the *continuation*:

    prompt | y_1 ......... y_k | y_k+1 ............. y_T
           |  the snapshot     |  the current policy
           |  rho = pi / pi_snapshot, see loss.py

The early tokens decide which solution is tried, and there the old diversity comes in. The rest is
on-policy, so the reward tells what the *current* policy makes of that start, and most of the row's
tokens are as near to the policy as in plain GRPO. A whole old trajectory (`sequence_mix`) is not.

This file has two parts: the Ring keeps the past, draw_prefixes samples from it. Three decisions, each
of which goes wrong silently when made the other way:

1. *One prefix per row*, each with its own length, not one per group. If all rows of a group shared a
   prefix, their advantages, which sum to zero over the group, would multiply the same gradient: the
   prefix would learn exactly nothing.
2. *Log-probs now.* The prefix's behaviour log-probs are scored while the snapshot is loaded, by the
   function that scores the policy, at the sampling temperature. Later the snapshot may be evicted.
3. *Another instance.* A snapshot is loaded into a second model, never into the policy and back: that
   would cost the policy a rounding step in the best case, and its optimizer's sense in the worst.
"""

import copy
from collections import deque
from dataclasses import dataclass

import torch

from rollout import make_batch, sample, score


class Ring:
    """The last `size` snapshots, one every `every` steps, of which those `min_lag` steps old serve.

    A snapshot is taken at the start of a step, before its update; that of step 0 is the first, and a
    snapshot's age is the current step minus its own. It lies on the CPU, so the ring costs no memory
    on the GPU but for the one second instance that a snapshot is loaded into.
    """

    def __init__(self, size, every, min_lag):
        self.every, self.min_lag = every, min_lag
        self.snapshots = deque(maxlen=size)  # (step, weights), oldest first; a full deque drops the oldest
        self._model = None  # the second instance, made when it is first needed

    def keep(self, step, policy):
        """Takes a snapshot of the policy if one is due at this step."""
        if step % self.every == 0:
            # copy=True, because .cpu() hands back the live tensor where that is on the CPU already,
            # and every snapshot would then be the current policy. The dtype stays: rounded weights
            # are another policy than the one that the log-probs are asked of.
            weights = {n: t.to("cpu", copy=True) for n, t in _weights(policy).items()}
            self.snapshots.append((step, weights))

    def eligible(self, step):
        """The steps of the snapshots that are old enough at this step."""
        return [kept for kept, _ in self.snapshots if step - kept >= self.min_lag]

    @torch.no_grad()
    def load(self, kept, policy):
        """The second instance with the weights of the snapshot of step `kept`, on the policy's device.

        The policy only lends its architecture, the first time. KeyError if that step is not kept.
        """
        weights = dict(self.snapshots)[kept]
        if self._model is None:
            self._model = copy.deepcopy(policy).requires_grad_(False)
        for name, tensor in _weights(self._model).items():
            tensor.copy_(weights[name])
        return self._model.eval()


def _weights(model):
    """A state_dict in which tied weights stand once: parameters under their first name, and buffers."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


@dataclass
class Seeds:
    """What the snapshot wrote for a step's B rows; an unseeded row has empty lists."""

    ids: list  # B lists of at most k token ids: shorter where the snapshot ended its answer
    logp: list  # B lists of as many floats: the snapshot's log-probs of these tokens
    step: int | None = None  # the snapshot's step; None where no row is seeded


def no_seeds(rows):
    """A step without a past: plain on-policy GRPO."""
    return Seeds([[] for _ in range(rows)], [[] for _ in range(rows)])


def draw_prefixes(
    ring, policy, step, prompts, group_size, fraction, lengths, temperature, stop, micro_batch
):
    """Seeds for the step: one snapshot, drawn uniformly from those old enough, serves all its rows.

    prompts: B id lists in groups of `group_size`. In each group the first round(fraction * group_size)
    rows are seeded; rows of a group are exchangeable, so which ones does not matter. Each draws its own
    k uniformly from lengths = (shortest, longest), in tokens; equal bounds are a fixed length.
    Draws from torch's global generator. Before the first snapshot is old enough: no_seeds.
    """
    seeds = no_seeds(len(prompts))
    eligible = ring.eligible(step)
    if not eligible:
        return seeds
    seeds.step = eligible[torch.randint(len(eligible), ()).item()]
    snapshot = ring.load(seeds.step, policy)

    rows = [i for i in range(len(prompts)) if i % group_size < round(fraction * group_size)]
    shortest, longest = lengths
    k = torch.randint(shortest, longest + 1, (len(rows),)).tolist()
    asked = [prompts[i] for i in rows]
    ids = sample(snapshot, asked, k, temperature, stop)
    # All of it is prefix here, so the batch's own prefix lengths do not matter.
    batch = make_batch(asked, ids, [0] * len(rows), stop, policy.device)
    logp, _entropy = score(snapshot, batch, temperature, micro_batch)
    for i, row, values in zip(rows, ids, logp.tolist(), strict=True):
        seeds.ids[i], seeds.logp[i] = row, values[: len(row)]
    return seeds


def behaviour_logp(seeds, old_logp):
    """[B, T] log-probs of whoever wrote each token: the snapshot's on the prefix, else the old policy's."""
    out = old_logp.clone()
    for row, values in zip(out, seeds.logp, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=out.dtype, device=out.device)
    return out
