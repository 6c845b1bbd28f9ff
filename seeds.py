"""Seeds: prefixes of responses, written by the policy's own past.

On-policy RL forgets. As the policy's entropy falls, ways to begin an answer that it once tried are
no longer sampled, so nothing more is learnt about them. Its past checkpoints still know them.
Thinking Seeds (arXiv 2601.21476) lets a checkpoint write the *prefix* of a response (its first k
tokens: the seed) and the current policy the *continuation*:

    prompt | y_1 .............. y_k | y_k+1 ................. y_T
           | written by a snapshot  | written by the policy
           | rho = pi / pi_snapshot | r = pi / pi_old                     (see loss.py)

The first tokens decide which solution is tried: that is where the old diversity comes in. The rest
is on-policy, so the reward tells what the *current* policy makes of such a start, and most tokens
of the row are as near to the policy as in GRPO. In a whole old trajectory (`sequence_mix`) none is.

The Ring below keeps the past, draw_prefixes samples from it. Three decisions in it fail silently
if made the other way:

1. *A prefix a row*, each with a length of its own, not a prefix a group. A shared one would be
   judged by its rows against the unseeded ones alone, never against another start; and if all rows
   of the group shared it, their advantages, which sum to zero, would cancel on it exactly.
2. *Log-probs at once.* They are scored while the snapshot is loaded, by the function that scores
   the policy, at the temperature of sampling. Later the instance may hold another snapshot.
3. *Another instance.* A snapshot is loaded into a second model, never into the policy and back:
   the weights that the optimizer is working on stay where they are.
"""

import copy
from collections import deque
from dataclasses import dataclass

import torch

from rollout import make_batch, sample, score


CHOICES = ("uniform", "oldest", "newest")


class Ring:
    """The last `size` snapshots, one every `every` steps; those at least `min_lag` steps old serve.

    A snapshot is taken at the start of a step, before its update; that of step 0 is the first. Its
    age is the current step minus its own. Snapshots lie on the CPU: whatever the ring's size, the
    device holds one more model, the instance that a snapshot is loaded into.
    ValueError if some steps could never have a snapshot that is old enough.
    """

    def __init__(self, size, every, min_lag):
        needed = 1 + -(-min_lag // every)  # the newest may have been taken just now
        if size < needed:
            raise ValueError(
                f"--ring-size {size}: it takes {needed} or more, with a snapshot every {every} "
                f"steps (--snapshot-every), to have one --min-lag {min_lag} steps old at any step")
        self.every, self.min_lag = every, min_lag
        self.snapshots = deque(maxlen=size)  # (step, weights), oldest first; a full one drops it
        self._model = None  # the second instance, made when first needed

    def keep(self, step, policy):
        """Takes a snapshot of the policy if one is due at this step."""
        if step % self.every == 0:
            # copy=True: for a tensor that is on the CPU already, .cpu() hands back the live one,
            # and every snapshot would be the current policy. The dtype stays: rounded weights are
            # another policy than the one that is to be remembered.
            weights = {n: w.to("cpu", copy=True) for n, w in weights_of(policy).items()}
            self.snapshots.append((step, weights))

    def eligible(self, step):
        """The steps of the snapshots that are old enough at this step."""
        return [taken for taken, _ in self.snapshots if step - taken >= self.min_lag]

    def choose(self, step, choice="uniform"):
        """One of the eligible steps, or None: the oldest, the newest, or (uniform) each as likely.
        Draws from torch's global generator: reseed first."""
        eligible = self.eligible(step)
        drawn = torch.randint(max(1, len(eligible)), ()).item()
        return eligible[{"oldest": 0, "newest": -1, "uniform": drawn}[choice]] if eligible else None

    @torch.no_grad()
    def load(self, taken, policy):
        """The snapshot of step `taken` as a model on the policy's device. KeyError if not kept.

        The policy lends its architecture, the first time; its weights are never written to.
        """
        weights = dict(self.snapshots)[taken]
        if self._model is None:
            self._model = copy.deepcopy(policy).requires_grad_(False)
        for name, tensor in weights_of(self._model).items():
            tensor.copy_(weights[name])
        return self._model.eval()


def weights_of(model):
    """A state_dict in which tied weights stand once: named_parameters gives each its first name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


@dataclass
class Seeds:
    """What the snapshot wrote for the B rows of a step; an unseeded row has empty lists."""

    ids: list  # B lists of up to k token ids: shorter where the snapshot ended its answer
    starts: list  # B ints, the first of them that the snapshot wrote: 0, except for `suffix`
    logp: list  # B lists of floats, the snapshot's log-probs of those from there on
    step: int | None = None  # the snapshot's; None where no row is seeded
    generated: int = 0  # tokens that were drawn to have these, the rest is thrown away


def no_seeds(rows):
    """A step without a past: plain on-policy GRPO."""
    return Seeds([[] for _ in range(rows)], [0] * rows, [[] for _ in range(rows)])


def seeded_rows(fraction, group_size):
    """How many rows of a group are seeded. ValueError if a positive fraction rounds to none."""
    rows = round(fraction * group_size)
    if fraction > 0 and rows == 0:
        raise ValueError(f"--seed-fraction {fraction} of --group-size {group_size} rounds to no "
                         f"row; give {1 / group_size:.3g} or more, or 0 for no seeds")
    return rows


def prefix_bounds(method, low, high, cap):
    """(shortest, longest) prefix in tokens, from fractions of the cap on response tokens.

    ValueError if they are crossed, or the longest rounds to no token, whatever the method.
    """
    if low > high:
        raise ValueError(f"--prefix-min {low} is above --prefix-max {high}")
    longest = round(high * cap)
    if longest == 0:
        raise ValueError(f"--prefix-max {high} of --max-new-tokens {cap} rounds to no token")
    if method == "sequence_mix":  # what the paper argues against: whole old trajectories
        return cap, cap
    return min(max(1, round(low * cap)), longest), longest


def draw_prefixes(
    ring, policy, taken, prompts, group_size, seeded, bounds, temperature, stop, micro_batch,
    suffix_cap=None,
):
    """Seeds for a step's rows, all from the snapshot of step `taken` (see Ring.choose).

    prompts: B id lists in groups of `group_size`, of which the first `seeded` rows get a prefix
    (rows of a group are exchangeable: which ones makes no difference). Each draws its own k
    uniformly from bounds = (shortest, longest). Draws from torch's global generator: reseed first.

    suffix_cap: the cap on response tokens, to have whole rows of which the policy writes the
    beginning and the snapshot the end, k tokens in a row of usual length (method `suffix`).
    """
    seeds, snapshot = no_seeds(len(prompts)), ring.load(taken, policy)
    seeds.step = taken
    rows = [i for i in range(len(prompts)) if i % group_size < seeded]
    k = torch.randint(bounds[0], bounds[1] + 1, (len(rows),)).tolist()
    asked = [prompts[i] for i in rows]
    starts = [0] * len(rows)
    if suffix_cap is None:
        ids = sample(snapshot, asked, max(k), temperature, stop)
        seeds.generated = sum(map(len, ids))
        ids = [x[:length] for x, length in zip(ids, k, strict=True)]
    else:
        drafts = sample(policy, asked, suffix_cap, temperature, stop)
        # From the usual end, not from the draft's own: that would choose beginnings by their ends.
        usual = round(sum(map(len, drafts)) / len(drafts))
        begun = [x[: max(1, usual - length)] for x, length in zip(drafts, k, strict=True)]
        starts = [len(x) for x in begun]
        ids = sample(snapshot, asked, suffix_cap, temperature, stop, begun)
        seeds.generated = sum(map(len, drafts)) + sum(map(len, ids)) - sum(starts)
    batch = make_batch(asked, ids, stop, policy.device)
    logp, _entropy = score(snapshot, batch, temperature, micro_batch)
    for i, x, start, values in zip(rows, ids, starts, logp.tolist(), strict=True):
        seeds.ids[i], seeds.starts[i], seeds.logp[i] = x, start, values[start : len(x)]
    return seeds


def by_snapshot(seeds, batch):
    """Which tokens [B, T] the snapshot wrote, and its log-probs of them, 0 of all others."""
    is_its = torch.zeros(batch.response_ids.shape, dtype=torch.bool)
    logp = torch.zeros(batch.response_ids.shape)
    for i, (start, values) in enumerate(zip(seeds.starts, seeds.logp, strict=True)):
        is_its[i, start : start + len(values)] = True
        logp[i, start : start + len(values)] = torch.tensor(values)
    device = batch.response_ids.device
    return is_its.to(device), logp.to(device)
