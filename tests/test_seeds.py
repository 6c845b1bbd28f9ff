"""The ring keeps what was, and prefixes come from it with the log-probs of whoever wrote them."""

import copy

import pytest
import torch
from conftest import random_model

import seeds
from rollout import make_batch, rollout, sample, score, stream
from seeds import CHOICES, Ring, by_snapshot, draw_prefixes, no_seeds, prefix_bounds, seeded_rows

PROMPTS = [[5, 6, 7]] * 4 + [[8]] * 4


def move(model, amount=0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn_like(parameter))


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def draw(ring, policy, step, prompts=PROMPTS, seeded=2, bounds=(2, 5), temperature=1.0, stop=(1,)):
    torch.manual_seed(stream(0, step, "prefixes"))
    return draw_prefixes(
        ring, policy, ring.choose(step), prompts, 4, seeded, bounds, temperature, list(stop), 3)


# ---------------------------------------------------------------------------------- the ring


def test_a_snapshot_is_what_the_policy_was(model):
    # .cpu() does not copy what is on the CPU: all "snapshots" would be the current policy
    ring, before = Ring(3, 1, 1), state(model)
    ring.keep(0, model)
    move(model)
    assert equal(state(ring.load(0, model)), before)
    assert not equal(state(model), before)


def test_loading_a_snapshot_touches_neither_policy_nor_optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.tensor([[3, 4]])).logits.sum().backward()
    optimizer.step()
    ring = Ring(3, 1, 1)
    ring.keep(0, model)
    move(model)
    before, moments = state(model), copy.deepcopy(optimizer.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    loaded = ring.load(0, model)
    sample(loaded, PROMPTS, 3, 1.0, [1])
    assert loaded is not model and equal(state(model), before)
    for old, new in zip(
        moments["state"].values(), optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, model.parameters(), strict=True))
    assert not any(p.requires_grad for p in loaded.parameters()) and not loaded.training


def test_every_kept_snapshot_can_be_loaded_into_one_instance(model):
    ring, states = Ring(3, 1, 0), []
    for step in range(3):
        ring.keep(step, model)
        states.append(state(model))
        move(model)
    instance = ring.load(0, model)
    for step in (2, 0, 1):
        assert ring.load(step, model) is instance  # one more model on the device, not three
        assert equal(state(instance), states[step])


def test_capacity_interval_eviction_and_lag(model):
    ring = Ring(3, every=10, min_lag=15)
    for step in range(45):
        ring.keep(step, model)
    assert [step for step, _ in ring.snapshots] == [20, 30, 40]  # 0 and 10 went first
    assert ring.eligible(44) == [20] and ring.eligible(45) == [20, 30]
    with pytest.raises(KeyError):
        ring.load(10, model)
    fresh = Ring(3, 10, 15)
    fresh.keep(0, model)  # step 0 is the first snapshot
    assert fresh.eligible(14) == [] and fresh.eligible(15) == [0]


def test_a_ring_that_is_never_old_enough_is_refused():
    Ring(4, 10, 30)
    for size, lag, needed in ((4, 31, 5), (1, 1, 2), (0, 10, 2), (0, 0, 1)):
        line = f"--ring-size {size}: it takes {needed} .*--min-lag {lag} steps old"
        with pytest.raises(ValueError, match=line):
            Ring(size, 10, lag)
        Ring(needed, 10, lag)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_stored_once_and_the_dtype_is_kept(tied):
    model = random_model(tie_word_embeddings=tied).to(torch.bfloat16)
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    weights = ring.snapshots[0][1]
    parameters = sum(p.numel() for p in model.parameters())  # parameters() counts a tied one once
    buffers = sum(b.numel() for b in model.buffers())
    assert sum(w.numel() for w in weights.values()) == parameters + buffers
    assert ("lm_head.weight" in weights) != tied
    before = state(model)
    move(model)
    loaded = ring.load(0, model)
    assert equal(state(loaded), before)
    # weights in another dtype would be another policy
    assert {w.dtype for w in loaded.parameters()} == {torch.bfloat16}


# ------------------------------------------------------------------------------------ prefixes


def test_with_policy_equal_to_snapshot_rho_is_one(model):
    # sampled by one function, scored by one function, at one temperature: T = 0.7
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    drawn = draw(ring, model, 0, temperature=0.7)
    batch = rollout(model, PROMPTS, drawn.ids, 9, 0.7, [1])
    batch.old_logp, _ = score(model, batch, 0.7, 5)
    batch.from_snapshot, past = by_snapshot(drawn, batch)
    assert batch.from_snapshot.sum() > 5
    assert (past - batch.old_logp)[batch.from_snapshot].abs().max() < 1e-5


def test_the_log_probs_of_the_prefix_are_the_snapshots(model):
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    before = copy.deepcopy(model)
    move(model)
    drawn = draw(ring, model, 0)
    ring.snapshots.clear()  # evicted: its log-probs were recorded while it was loaded
    batch = rollout(model, PROMPTS, drawn.ids, 9, 1.0, [1])
    old_logp, _ = score(model, batch, 1.0, 8)
    from_snapshot, past = by_snapshot(drawn, batch)
    expected = score(before, batch, 1.0, 8)[0].masked_fill(~from_snapshot, 0.0)
    torch.testing.assert_close(past, expected, rtol=0, atol=1e-5)
    assert (expected - old_logp)[from_snapshot].abs().max() > 0.1


def test_the_snapshot_and_not_the_policy_writes_the_prefix(model):
    # the snapshot never writes an odd id, the policy never an even one
    def only(parity, model, inputs, output):
        output.logits[..., torch.arange(output.logits.shape[-1]) % 2 != parity] = -1e4

    policy = copy.deepcopy(model)
    model.register_forward_hook(lambda *args: only(0, *args))
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    ring.load(0, model)  # the second instance is made from the even one
    policy.register_forward_hook(lambda *args: only(1, *args))
    drawn = draw(ring, policy, 0, stop=())
    batch = rollout(policy, PROMPTS, drawn.ids, 9, 1.0, [])
    even, (from_snapshot, _logp) = batch.response_ids % 2 == 0, by_snapshot(drawn, batch)
    assert torch.equal(even[batch.mask], from_snapshot[batch.mask])
    assert 0 < from_snapshot.sum() < batch.mask.sum()
    lengths = [len(x) for x in drawn.ids]
    assert from_snapshot.int().argmin(1).tolist() == lengths == from_snapshot.sum(1).tolist()

    # and with `suffix` the end of a row: the policy writes at least a token, the snapshot the rest
    torch.manual_seed(0)
    drawn = draw_prefixes(ring, policy, 0, PROMPTS, 4, 2, (2, 5), 1.0, [], 3, suffix_cap=9)
    batch = rollout(policy, PROMPTS, drawn.ids, 9, 1.0, [])
    even, (from_snapshot, _logp) = batch.response_ids % 2 == 0, by_snapshot(drawn, batch)
    assert torch.equal(even, from_snapshot)
    assert all(2 <= n <= 5 for n in from_snapshot.sum(1)[::4])  # of 9, the usual length and the cap
    assert drawn.starts == [9 - n if n else 0 for n in from_snapshot.sum(1).tolist()]
    assert drawn.generated == 4 * 9 + from_snapshot.sum()  # whole drafts, and what replaces an end


def test_an_end_is_counted_from_the_usual_one(model, monkeypatch):
    # from each draft's own: a beginning would be kept for how its draft ended
    drafts = [[3] * n for n in (2, 2, 14, 14)]  # 8 is usual
    monkeypatch.setattr(seeds, "sample", lambda *args: [[*x, 4, 4] for x in args[5]]
                        if args[5:] else drafts)
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    drawn = draw_prefixes(ring, model, 0, PROMPTS[:4], 4, 4, (3, 3), 1.0, [1], 3, suffix_cap=16)
    assert drawn.starts == [2, 2, 5, 5] and [len(x) for x in drawn.logp] == [2] * 4
    assert drawn.generated == 32 + 8


def test_the_ends_of_suffix_have_the_snapshots_log_probs(model):
    ring, before, stop = Ring(1, 1, 0), copy.deepcopy(model), list(range(4))
    ring.keep(0, model)
    move(model)
    torch.manual_seed(0)
    prompts = [[5, 6]] * 80
    drawn = draw_prefixes(ring, model, 0, prompts, 4, 2, (2, 5), 1.0, stop, 32, suffix_cap=9)
    batch = rollout(model, prompts, drawn.ids, 9, 1.0, stop)
    from_snapshot, past = by_snapshot(drawn, batch)
    assert [*from_snapshot.sum(1)] == [len(x) for x in drawn.logp]
    expected = score(before, batch, 1.0, 80)[0].masked_fill(~from_snapshot, 0.0)
    torch.testing.assert_close(past, expected, rtol=0, atol=1e-5)
    ended_early = 0
    for ids, start in zip(drawn.ids, drawn.starts):
        assert not set(ids[:-1]) & set(stop)  # nothing behind a stop id
        assert not ids or ids[-1] in stop or len(ids) == 9  # a whole row
        ended_early += 0 < start == len(ids)  # all of it the policy's
    assert 0 < ended_early < 40 and not any(drawn.starts[i] for i in range(80) if i % 4 > 1)


def test_which_rows_and_which_lengths(model):
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    prompts = [[5, 6]] * 4000  # groups of 4
    lengths = [len(x) for x in draw(ring, model, 0, prompts, 3, (2, 5), stop=()).ids]
    assert all(length == 0 for length in lengths[3::4])
    seeded = torch.tensor([length for i, length in enumerate(lengths) if i % 4 < 3])
    assert len(seeded) == 3000 and set(seeded.tolist()) == {2, 3, 4, 5}
    # uniform: each a quarter of 3000, +- 4.5 standard deviations of 23.7 (odds of 3e-5 by luck)
    assert (seeded.bincount()[2:] - 750).abs().max() < 107
    drawn = draw(ring, model, 0, stop=())
    lengths = [len(x) for x in drawn.ids]
    assert drawn.generated == 4 * max(lengths) > sum(lengths)  # all as long as the longest, and cut
    fixed = [len(x) for x in draw(ring, model, 0, PROMPTS, 2, (3, 3), stop=()).ids]
    assert fixed == [3, 3, 0, 0, 3, 3, 0, 0]


def test_rows_of_a_group_have_prefixes_of_their_own(model):
    # a prefix shared by the group would learn nothing: see test_enumeration
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    ids = draw(ring, model, 0, [[5, 6]] * 8, seeded=4, bounds=(5, 5), stop=()).ids
    assert len({tuple(x) for x in ids}) == 8


def test_one_snapshot_a_step_uniform_over_those_old_enough(model):
    ring = Ring(4, 1, 2)
    for step in range(6):
        ring.keep(step, model)
    assert ring.eligible(6) == [2, 3, 4]
    counts = dict.fromkeys([2, 3, 4], 0)
    for trial in range(120):
        torch.manual_seed(trial)
        counts[ring.choose(6)] += 1
    assert draw(ring, model, 6).step in counts
    assert (ring.choose(6, "oldest"), ring.choose(6, "newest")) == (2, 4)
    # 40 each, standard deviation 5.2; a miss of 24 has odds below 1e-5
    assert all(16 < count < 64 for count in counts.values())


def test_before_the_first_snapshot_is_old_enough_there_are_no_seeds(model):
    ring = Ring(4, 1, 3)
    ring.keep(0, model)
    ring.keep(1, model)
    for choice in CHOICES:
        assert ring.choose(2, choice) is None and ring.choose(3, choice) == 0
    assert no_seeds(8).step is None


def test_a_prefix_may_end_its_answer(model):
    # half the vocabulary ends an answer: some prefixes are shorter than their k, none goes on
    ring, stop = Ring(1, 1, 0), list(range(12))
    ring.keep(0, model)
    drawn = draw(ring, model, 0, [[13, 14]] * 80, seeded=4, bounds=(6, 6), stop=stop)
    lengths = [len(x) for x in drawn.ids]
    assert min(lengths) < 6
    for x, values in zip(drawn.ids, drawn.logp, strict=True):
        assert len(x) == len(values) and not set(x[:-1]) & set(stop)
        assert len(x) == 6 or x[-1] in stop


def test_the_prefix_log_probs_do_not_depend_on_the_micro_batch(model):
    ring = Ring(1, 1, 0)
    ring.keep(0, model)
    drawn = draw(ring, model, 0)
    batch = make_batch(PROMPTS[:2], drawn.ids[:2], [1], "cpu")
    alone, _ = score(model, batch, 1.0, 1)
    for row, values in zip(alone, drawn.logp[:2], strict=True):
        assert row[: len(values)].tolist() == pytest.approx(values, abs=1e-5)


def test_bounds_from_fractions():
    assert prefix_bounds("thinking_seeds", 0.05, 0.5, 20) == (1, 10)
    assert prefix_bounds("thinking_seeds", 0.0, 0.5, 20) == (1, 10)  # a prefix has a token
    assert prefix_bounds("mask_prefix", 0.25, 0.25, 20) == (5, 5)
    assert prefix_bounds("thinking_seeds", 1.0, 1.0, 7) == (7, 7)
    assert prefix_bounds("sequence_mix", 0.05, 0.5, 20) == (20, 20)  # whole old trajectories
    for low, high in ((0.6, 0.5), (0.0, 0.01)):
        for method in ("thinking_seeds", "sequence_mix"):  # eval.py --seed-from may ask for them
            with pytest.raises(ValueError):
                prefix_bounds(method, low, high, 20)


def test_seeded_rows_of_a_group():
    assert [seeded_rows(f, 16) for f in (0.0, 0.5, 1.0)] == [0, 8, 16]
    with pytest.raises(ValueError, match="0.01 of --group-size 16"):
        seeded_rows(0.01, 16)
