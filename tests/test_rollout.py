"""Sampling and scoring: what is sampled is what is scored, and masks come from lengths."""

from types import SimpleNamespace

import pytest
import torch
from conftest import random_model
from transformers import AutoTokenizer, GenerationConfig, GPT2Config, GPT2LMHeadModel

from loss import rollout_metrics
from rollout import (
    load_model,
    make_batch,
    response_text,
    rollout,
    sample,
    score,
    stop_ids,
    stream,
    token_logps,
)
from tasks.countdown import make_tokenizer

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [4, 4]]
HOSTILE = {
    "do_sample": True, "temperature": 0.3, "top_k": 1, "top_p": 0.8, "min_p": 0.5, "typical_p": 0.5,
    "repetition_penalty": 1.5, "no_repeat_ngram_size": 1, "eos_token_id": [1, 2], "pad_token_id": 1,
    "min_new_tokens": 3, "suppress_tokens": [6, 7], "max_length": 4,
}


@pytest.fixture
def hostile(tmp_path):
    """A checkpoint whose generation_config.json reshapes the distribution in every way."""
    # 80 tokens: top_k = 50, what `generate` takes for None, must show
    model, tokenizer = random_model(attention_dropout=0.4, vocab_size=80), make_tokenizer()
    model.generation_config = GenerationConfig(**HOSTILE)
    model.save_pretrained(tmp_path / "hostile")
    tokenizer.save_pretrained(tmp_path / "hostile")
    return tmp_path / "hostile"


def spy_on_generate(model, monkeypatch):
    """Records every generate call's scores (after all processors) and raw logits."""
    calls, generate = [], model.generate

    def spy(*args, **kwargs):
        kwargs |= dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
        calls.append(generate(*args, **kwargs))
        return calls[-1].sequences

    monkeypatch.setattr(model, "generate", spy)
    return calls


def test_a_hostile_generation_config_does_not_reshape_the_distribution(hostile, monkeypatch):
    # `generate` fills in from the checkpoint whatever the caller leaves open: with temperature
    # alone pinned, this one would sample greedily and never repeat a token.
    model, tokenizer = load_model(hostile, "cpu")
    calls = spy_on_generate(model, monkeypatch)
    torch.manual_seed(0)
    new = sample(model, PROMPTS * 4, 9, 0.7, stop_ids(model, tokenizer))
    for scores, logits in zip(calls[0].scores, calls[0].logits, strict=True):
        assert scores.shape[1] == 80
        torch.testing.assert_close(scores * 0.7, logits, rtol=1e-5, atol=1e-5)
    assert max(map(len, new)) == 9  # max_length: 4 did not get through either


def test_the_generation_config_comes_back_and_is_saved(hostile, tmp_path):
    model, tokenizer = load_model(hostile, "cpu")
    sample(model, PROMPTS, 3, 1.0, stop_ids(model, tokenizer))
    model.save_pretrained(tmp_path / "again")
    saved = GenerationConfig.from_pretrained(tmp_path / "again")
    for name, value in HOSTILE.items():
        assert getattr(saved, name) == value, name


def test_what_is_sampled_is_what_is_scored(model, monkeypatch):
    # the log-probs that `generate` drew from, against those that the loss will use; T = 0.6
    calls = spy_on_generate(model, monkeypatch)
    torch.manual_seed(0)
    batch = rollout(model, PROMPTS, [[], [3, 4], [], [5]], 8, 0.6, [1])
    logp, entropy = score(model, batch, 0.6, micro_batch=3)
    starts = [0, 2, 0, 1]
    for i, (start, length) in enumerate(zip(starts, batch.lengths.tolist(), strict=True)):
        for t in range(start):  # a prefix is not drawn: nothing else was possible
            assert calls[0].scores[t][i].softmax(-1)[batch.response_ids[i, t]] == 1
        for t in range(start, length):
            drawn_from = calls[0].scores[t][i].log_softmax(-1)
            token = batch.response_ids[i, t]
            torch.testing.assert_close(logp[i, t], drawn_from[token], rtol=0, atol=1e-5)
            entropy_there = -(drawn_from.exp() * drawn_from).sum()
            torch.testing.assert_close(entropy[i, t], entropy_there, rtol=0, atol=1e-5)


def test_token_logps_by_hand():
    # One row, prompt [3], response [2, 0], then padding with an absurd id. A fake model returns the
    # logits of T = 3 positions: the last prompt token predicts the first response token, and the
    # last response token is not even passed.
    logits = torch.full((1, 3, 4), -torch.inf)
    logits[0, 0, :] = torch.tensor([0.0, 0.0, 2.0, 0.0])  # predicts 2
    logits[0, 1, :2] = 0.0  # predicts 0: one of two
    logits[0, 2, 1] = 0.0
    seen = {}

    def fake(**inputs):
        seen.update(inputs)
        return SimpleNamespace(logits=logits)

    batch = make_batch([[3]], [[2, 0, 1]], [9], "cpu")
    logp, entropy = token_logps(fake, batch, temperature=2.0)
    first = torch.tensor([0.0, 0.0, 1.0, 0.0]).log_softmax(0)  # logits / 2
    expected = [first[2].item(), torch.tensor(0.5).log().item(), 0.0]
    assert logp[0].tolist() == pytest.approx(expected)
    # p log p at p = 0 is 0, not nan
    entropies = [-(first.exp() * first).sum().item(), 0.6931472, 0.0]
    assert entropy[0].tolist() == pytest.approx(entropies)
    assert seen["logits_to_keep"] == 3 and seen["position_ids"].tolist() == [[0, 1, 2]]
    assert seen["input_ids"].tolist() == [[3, 2, 0]]


def gpt2(tmp_path):
    # Positions are learnt and absolute, so a shifted row shows; under RoPE, which is relative, it
    # would not. And its dropouts have other names.
    config = GPT2Config(
        vocab_size=24, n_positions=64, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.4,
        embd_pdrop=0.4, resid_pdrop=0.4, bos_token_id=1, eos_token_id=1, initializer_range=0.3,
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    return load_model(tmp_path, "cpu")[0]


@pytest.mark.parametrize("make", [lambda _: random_model(), gpt2])
def test_a_padded_row_scores_like_the_unpadded_one(make, tmp_path):
    # left padding without position ids from the mask shifts a row's positions
    model = make(tmp_path).train()
    responses = [[3, 1], [7, 8, 9, 10, 11, 1], [2], [14, 15, 1]]
    together = make_batch(PROMPTS, responses, [1], "cpu")
    with torch.no_grad():
        trained_on, _ = token_logps(model, together, 1.0)  # in train mode: no dropout is left
    logp, entropy = score(model, together, 1.0, micro_batch=4)
    torch.testing.assert_close(trained_on[together.mask], logp[together.mask], rtol=0, atol=0)
    for i, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
        # against the model's own logits, with neither padding nor masks
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        alone = logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)]
        torch.testing.assert_close(logp[i, : len(response)], alone, rtol=0, atol=1e-5)
        assert (logp[i, len(response) :] == 0).all() and (entropy[i, len(response) :] == 0).all()
    for micro_batch in (1, 3):
        again, _ = score(model, together, 1.0, micro_batch)
        torch.testing.assert_close(again, logp, rtol=0, atol=1e-5)


def test_masks_come_from_lengths_even_where_pad_is_eos(model):
    # pad and EOS share id 1 here, prompts contain it, and id 0 (what rows are filled with) is an
    # ordinary token. The EOS that was sampled belongs to the row; nothing behind it does.
    torch.manual_seed(0)
    batch = rollout(model, [[1, 5, 1], [1], [0, 0]] * 20, [[]] * 60, 12, 1.0, [1, 3])
    assert len(set(batch.lengths.tolist())) > 4  # rows of many lengths, or nothing is tested
    inner_zeros = 0
    for row, length, mask, ended in zip(
        batch.response_ids.tolist(), batch.lengths.tolist(), batch.mask.tolist(),
        batch.ended.tolist(), strict=True,
    ):
        assert mask == [t < length for t in range(len(row))]
        assert not {1, 3} & set(row[: length - 1])
        assert (row[length - 1] in {1, 3}) == ended
        assert ended or length == 12
        inner_zeros += row[: length - 1].count(0)
    assert inner_zeros > 0
    assert batch.prompt_lengths.tolist() == [3, 1, 2] * 20


def test_every_eos_id_stops_a_row(hostile):
    # chat models end a turn with one id and a text with another; the tokenizer names only one
    model, tokenizer = load_model(hostile, "cpu")
    assert stop_ids(model, tokenizer) == [1, 2]
    model.generation_config.eos_token_id = 7
    assert stop_ids(model, tokenizer) == [1, 7]
    model.generation_config.eos_token_id = None
    assert stop_ids(model, tokenizer) == [1]
    torch.manual_seed(0)
    ends = {row[-1] for row in sample(model, PROMPTS * 20, 30, 1.0, [1, 2, 7]) if row}
    assert ends >= {1, 2, 7}


def test_a_model_without_any_eos_runs_to_the_cap(model):
    assert [len(row) for row in sample(model, PROMPTS, 4, 1.0, [])] == [4] * 4


def test_prefixes_are_kept_as_ids_and_each_row_stops_at_its_own_cap(model):
    # seeded and unseeded rows share one generate call; all end at 10 tokens *in total*
    prefixes = [[3, 4, 5], [], [6] * 9, [7, 8, 9, 10, 11]]
    torch.manual_seed(0)
    batch = rollout(model, PROMPTS, prefixes, 10, 1.0, [])
    assert batch.lengths.tolist() == [10] * 4 and not batch.ended.any()
    for row, prefix in zip(batch.responses(), prefixes, strict=True):
        assert row[: len(prefix)] == prefix


def test_a_finished_prefix_is_a_whole_row_and_is_not_generated_from(model, monkeypatch):
    # `generate` samples on after a given EOS: tokens behind the end of the answer
    calls = spy_on_generate(model, monkeypatch)
    prefixes = [[3, 1], [], [4] * 6, [5]]  # ended by itself; unseeded; fills the cap; open
    torch.manual_seed(0)
    batch = rollout(model, PROMPTS, prefixes, 6, 1.0, [1])
    assert len(calls) == 1 and len(calls[0].sequences) == 2
    assert batch.responses()[0] == [3, 1] and batch.responses()[2] == [4] * 6
    assert batch.ended.tolist()[0] is True and batch.ended.tolist()[2] is False
    lengths = torch.tensor([len(x) for x in prefixes])
    metrics = rollout_metrics(torch.zeros(4), 2, batch.lengths, lengths, batch.ended)
    assert metrics["prefix_finished"] == pytest.approx(2 / 3)
    assert metrics["prefix_length"] == pytest.approx((2 + 6 + 1) / 3)


def test_all_rows_finished_needs_no_generate(model, monkeypatch):
    calls = spy_on_generate(model, monkeypatch)
    batch = rollout(model, PROMPTS[:2], [[1], [2, 1]], 6, 1.0, [1])
    assert calls == [] and batch.lengths.tolist() == [1, 2]


def test_selected_rows_are_trimmed_and_still_the_same_rows(model):
    torch.manual_seed(0)
    batch = rollout(model, PROMPTS * 3, [[3], [], [], []] * 3, 12, 1.0, [1, 3, 5])
    batch.old_logp, _ = score(model, batch, 1.0, 12)
    rows = torch.tensor([7, 1, 4])
    part = batch[rows]
    assert part.response_ids.shape[1] == batch.lengths[rows].max()
    assert part.prompt_ids.shape[1] == batch.prompt_lengths[rows].max()
    assert part.responses() == [batch.responses()[i] for i in rows]
    assert part.snapshot_logp is None
    logp, _ = token_logps(model, part, 1.0)
    mask = part.mask
    torch.testing.assert_close(logp[mask], part.old_logp[mask], rtol=0, atol=1e-5)


def test_there_is_no_dropout_and_sampling_is_in_eval_mode(hostile):
    # with dropout, pi_theta would be another policy at every forward pass
    model, tokenizer = load_model(hostile, "cpu")
    batch = make_batch(PROMPTS, [[3, 1]] * 4, [1], "cpu")
    model.train()
    torch.testing.assert_close(
        token_logps(model, batch, 1.0)[0], token_logps(model, batch, 1.0)[0], rtol=0, atol=0
    )
    modes = []
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    sample(model, PROMPTS, 2, 1.0, [1])
    model.train()
    score(model, batch, 1.0, 2)
    assert modes and not any(modes)


def test_greedy_is_the_argmax(model):
    new = sample(model, PROMPTS, 4, 0, [])
    assert new == sample(model, PROMPTS, 4, 0, [])
    # and what follows a prefix is what would have followed the same tokens in the prompt
    prefixes = [[], [3, 4], [5], []]
    joined = [prompt + x for prompt, x in zip(PROMPTS, prefixes, strict=True)]
    for row, x, other in zip(
            sample(model, PROMPTS, 6, 0, [], prefixes), prefixes, sample(model, joined, 6, 0, [])):
        assert row == (x + other)[:6]
    with torch.no_grad():
        for prompt, row in zip(PROMPTS, new, strict=True):
            for t, token in enumerate(row):
                assert token == model(torch.tensor([prompt + row[:t]])).logits[0, -1].argmax()


def test_reseeding_makes_a_part_of_a_step_repeatable(model):
    def draw(*key):
        torch.manual_seed(stream(*key))
        return sample(model, PROMPTS, 6, 1.0, [])

    assert draw(0, 3, "rollout") == draw(0, 3, "rollout")
    assert draw(0, 3, "rollout") != draw(0, 4, "rollout")
    assert draw(0, 3, "rollout") != draw(1, 3, "rollout")
    assert draw(0, 3, "rollout") != draw(0, 3, "prefixes")


def test_special_tokens_cannot_hide_in_an_answer(tmp_path):
    # skip_special_tokens would turn `3*4<pad>=12` into a right answer
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids, eos, pad = tokenizer("3*4=12")["input_ids"], tokenizer.eos_token_id, tokenizer.pad_token_id
    assert response_text(tokenizer, ids + [eos], [eos]) == "3*4=12"
    assert response_text(tokenizer, ids, [eos]) == "3*4=12"
    assert response_text(tokenizer, ids[:3] + [pad] + ids[3:] + [eos], [eos]) == "3*4<pad>=12"


def test_any_checkpoint_is_trained_and_scored_in_float32(tmp_path):
    # bfloat16 log-probs are off by percents: ratios of rounding, and clipping of it
    random_model().to(torch.bfloat16).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model, _ = load_model(tmp_path, "cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    logits = torch.randn(1, 3, 24).to(torch.bfloat16)
    batch = make_batch([[3]], [[2, 1]], [1], "cpu")
    logp, entropy = token_logps(lambda **_: SimpleNamespace(logits=logits), batch, 0.7)
    exact = (logits[:, :-1].double() / 0.7).log_softmax(-1)[0, [0, 1], [2, 1]]
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp[0].double(), exact, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    # the library fills them with random ones, and says so only in its log
    model = random_model()
    kept = {n: w for n, w in model.state_dict().items() if "layers.1." not in n}
    model.save_pretrained(tmp_path, state_dict=kept)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="layers.1"):
        load_model(tmp_path, "cpu")
