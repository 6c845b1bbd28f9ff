"""Real math from end to end: any causal language model, any set of problems, the two scripts."""

import json

import pytest
import torch
import torch.utils.checkpoint as checkpointing
import transformers
from conftest import random_model
from test_problems import CHAT, byte_tokenizer, jsonl
from transformers import AutoModelForCausalLM

import eval as evaluation
import runs
import train
from rollout import load_model, make_batch, score, stop_ids, token_logps
from train import collect, parse_args, update

TRAIN = [{"question": f"What is {i} + {i}?", "answer": f"We add.\n#### {2 * i}"} for i in range(9)]
TEST = [{"problem": f"What is {i} - 1?", "answer": str(i - 1), "level": 1} for i in range(5)]
SMALL = (
    "--steps 2 --prompts-per-step 2 --group-size 4 --minibatches 1 --micro-batch 4 --min-lag 1 "
    "--snapshot-every 1 --eval-problems 3 --eval-samples 2 --threads 1 --max-new-tokens 6 "
    "--learning-rate 1e-2"
).split()
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 300,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
         "max_position_embeddings": 256}


def save(folder, family, config, special, eos):
    """A random model of a family with its tokenizer, as from_pretrained wants them."""
    torch.manual_seed(0)
    settings = {**SHAPE, "bos_token_id": None, "eos_token_id": eos, "pad_token_id": None, **config}
    config = getattr(transformers, f"{family}Config")(**settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer(**special).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def sets(tmp_path):
    """(--task, --eval-task): files with problems to train and to evaluate on."""
    return (str(jsonl(tmp_path / "adds.jsonl", TRAIN)), str(jsonl(tmp_path / "subs.jsonl", TEST)))


@pytest.mark.parametrize("family, config, special, eos", [
    ("Qwen2", {"tie_word_embeddings": True}, {"eos_token": "a", "chat_template": CHAT}, [64, 65]),
    ("Qwen3", {"tie_word_embeddings": False}, {"eos_token": "a", "pad_token": "a"}, 64),
    ("Llama", {"vocab_size": 320}, {"pad_token": "b"}, None),  # more rows than there are tokens
    ("Mistral", {}, {"eos_token": "a", "bos_token": "c", "chat_template": CHAT}, 64),
    ("Gemma3Text", {"pad_token_id": 0}, {"eos_token": "a"}, [1, 64]),
    ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}, {}, 64),
], ids=lambda x: x if isinstance(x, str) else "")
def test_any_model_trains_and_evaluates(
    family, config, special, eos, sets, tmp_path, monkeypatch, capsys
):
    """Tied or not, padding absent or an EOS of its own, several EOS, a padded vocabulary."""
    model = save(tmp_path / "model", family, config, special, eos)
    monkeypatch.setattr(train, "reward", lambda text, row: len(text) % 3 / 2)
    run = tmp_path / "run"
    assert train.main([*SMALL, "--model", model, "--task", sets[0], "--eval-task", sets[1],
                       "--out", str(run)]) == 0
    before, after = (AutoModelForCausalLM.from_pretrained(x).state_dict() for x in
                     (model, run / "model"))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["eval", "train", "train", "eval"]
    assert rows[2]["snapshot_lag"] == 1 and rows[2]["ratio_mean_prefix"] == pytest.approx(1, abs=.9)
    # at the only update of a step the policy is still the one that sampled
    assert rows[1]["ratio_max_continuation"] == pytest.approx(1, abs=1e-4)
    prompts = [row["prompt"] for row in map(json.loads, open(run / "samples.jsonl"))]
    assert {*prompts} <= {row["question"] for row in TRAIN}
    evaluation.main(["--model", str(run / "model"), "--task", sets[1], sets[0], "--samples", "2",
                     "--max-new-tokens", "6", "--threads", "1", "--out", str(tmp_path / "eval")])
    assert capsys.readouterr().out.count("adds.jsonl") == 1
    samples = [json.loads(line) for line in open(tmp_path / "eval" / "samples.jsonl")]
    assert [sample["task"] for sample in samples] == [sets[1]] * 10 + [sets[0]] * 18
    metrics = [json.loads(line) for line in open(tmp_path / "eval" / "metrics.jsonl")]
    assert [(row["task"], row["problems"]) for row in metrics] == [(sets[1], 5), (sets[0], 9)]


def test_a_file_alone_is_not_evaluated_on(sets, tmp_path, capsys):
    """Training problems as a benchmark: the one mistake that makes every figure worthless."""
    with pytest.raises(SystemExit):
        train.main([*SMALL, "--model", "none", "--task", sets[0], "--out", str(tmp_path / "run")])
    err = capsys.readouterr().err
    assert "--eval-task" in err and err.count("\n") == 1


def test_a_run_with_all_that_is_special(sets, tmp_path, monkeypatch, capsys):
    """bfloat16, checkpointing, a grader without a verdict, a problem beyond the context."""
    model = save(tmp_path / "model", "Qwen2", {"max_position_embeddings": 128}, {}, 64)
    with open(sets[1], "a") as file:
        file.write(json.dumps({"problem": "long " * 50, "answer": "1"}) + "\n")
    monkeypatch.setattr(
        train, "reward", lambda text, row: torch.nan if len(text) % 2 else len(text) % 3 / 2)
    seen, recomputed, step = [], [], train.token_logps
    original = checkpointing._checkpoint_without_reentrant_generator
    monkeypatch.setattr(checkpointing, "_checkpoint_without_reentrant_generator",
                        lambda *a, **kw: recomputed.append(1) or original(*a, **kw))
    monkeypatch.setattr(train, "token_logps", lambda *a: seen.append(
        (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))) or step(*a))
    run = tmp_path / "run"
    assert train.main([
        *SMALL, "--model", model, "--task", sets[0], "--eval-task", sets[1], "--out", str(run),
        "--eval-problems", "9", "--dtype", "bfloat16", "--gradient-checkpointing"]) == 0
    assert {*seen} == {(True, torch.bfloat16)} and recomputed
    rows = [json.loads(line) for line in open(run / "metrics.jsonl")]
    assert [row["problems"] for row in rows if row["kind"] == "eval"] == [5, 5]
    assert "1 of 6 problems are left out" in capsys.readouterr().err
    assert all(0 < row["undecided"] < 1 and row["grad_norm"] > 0 for row in rows[1:3])
    assert json.loads((run / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_end_of_a_turn_stops_a_base_model():
    """A base model's own EOS is another than that of the chat template it is asked by."""
    chat = CHAT.replace("</>", "<|end|>")
    tokenizer = byte_tokenizer(eos_token="a", chat_template=chat)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    end, eos = (tokenizer.convert_tokens_to_ids(x) for x in ("<|end|>", "a"))
    model = random_model(vocab_size=300)
    model.generation_config.eos_token_id = eos
    assert stop_ids(model, tokenizer) == sorted([end, eos])
    tokenizer.chat_template = CHAT  # which ends a turn by a word that is no special token
    assert stop_ids(model, tokenizer) == [eos]
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert stop_ids(model, tokenizer) == [eos]


@pytest.mark.parametrize("tokenizer, named", [
    (None, "tokenizer"), (byte_tokenizer(), "more tokens than the model knows")])
def test_a_model_needs_its_tokenizer(tokenizer, named, tmp_path, capsys):
    random_model(vocab_size=100).save_pretrained(tmp_path / "model")
    if tokenizer is not None:
        tokenizer.save_pretrained(tmp_path / "model")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        evaluation.main(["--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: --model") and named in error


def test_an_evaluation_has_its_dtype(sets, tmp_path, monkeypatch):
    model, seen, original = save(tmp_path / "m", "Qwen2", {}, {}, 64), [], evaluation.sample
    monkeypatch.setattr(evaluation, "sample", lambda *a: seen.append(
        torch.is_autocast_enabled("cpu")) or original(*a))
    for dtype in ("float32", "bfloat16"):
        evaluation.main(["--model", model, "--task", sets[1], "--samples", "1", "--dtype", dtype,
                         "--max-new-tokens", "2", "--out", str(tmp_path / dtype)])
    assert seen == [False, True]


def test_a_pickle_is_never_loaded(tmp_path):
    """It may run what it likes when it is opened; and here it would."""
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "run by a pickle"), "w"))

    model = random_model()
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({**model.state_dict(), "bomb": Bomb()}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load_model(str(tmp_path / "model"), "cpu")
    assert not (tmp_path / "run by a pickle").exists()


# ------------------------------------------------------------------------------- memory and speed


def one_step(*flags):
    """Gradients of one update on a batch that does not depend on the flags, and its sums."""
    words = "--learning-rate 0 --max-grad-norm 1e9 --seed-fraction 0".split()
    args = parse_args([*SMALL, *words, *flags])
    model, tokenizer = random_model(vocab_size=300), byte_tokenizer(eos_token="a")
    problems = [{"prompt": "1 + 1?", "task": "countdown"}, {"prompt": "2", "task": "countdown"}]
    batch = collect(args, 0, problems, model, tokenizer, None, None, None)[0]
    batch.advantages = torch.tensor([1.0, -1.0, 0.5, -0.5] * 2)
    if args.gradient_checkpointing:
        model.activation_checkpointing_enable()
    optimizer, gradients = torch.optim.SGD(model.parameters(), 0.0), []
    optimizer.zero_grad = lambda: gradients.append([p.grad.clone() for p in model.parameters()])
    with runs.precision(args):
        batch.old_logp, _ = score(model, batch, 1.0, 4)
        batch.snapshot_logp = batch.old_logp
        sums, _norm = update(args, model, optimizer, batch)
    return gradients[0], sums


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(train, "reward", lambda text, row: 0.0)
    return one_step()


def test_gradient_checkpointing_changes_nothing_but_memory(plain, monkeypatch):
    recomputed, original = [], checkpointing._checkpoint_without_reentrant_generator
    monkeypatch.setattr(
        checkpointing, "_checkpoint_without_reentrant_generator",
        lambda *a, **kw: recomputed.append(1) or original(*a, **kw))
    gradients, sums = one_step("--gradient-checkpointing")
    assert recomputed  # it is silently off in eval mode
    for got, expected in zip(gradients, plain[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


def test_bfloat16_is_of_the_products_alone(plain):
    """The gradient is that of float32 but for bfloat16's three digits, and float32 itself."""
    gradients, sums = one_step("--dtype", "bfloat16")
    assert {g.dtype for g in gradients} == {torch.float32}
    differences = [(g - e).norm() / e.norm() for g, e in zip(gradients, plain[0]) if e.norm() > 0]
    assert 1e-6 < max(differences) < 0.1
    # the same function scores and trains: at theta = old every ratio is 1, in bfloat16 too
    assert sums["ratio_max"] == pytest.approx(1.0, abs=1e-6)


def test_an_optimizer_step_is_seen_under_bfloat16():
    """autocast keeps copies of the weights in bfloat16, by default beyond the optimizer's step."""
    model = random_model(vocab_size=300)
    batch = make_batch([[3, 4]], [[5, 6, 7]], [1], "cpu")
    with runs.precision(parse_args(["--dtype", "bfloat16", "--device", "cpu"])):
        before, _ = token_logps(model, batch, 1.0)
        before.sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        after, _ = token_logps(model, batch, 1.0)
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("flags, dtype", [([], "float32"), (["--dtype", "bfloat16"], "bfloat16")])
def test_the_dtype_is_resolved(flags, dtype):
    for module in (train, evaluation):
        assert module.parse_args(["--device", "cpu", *flags]).dtype == dtype
    assert runs.usual_dtype("cuda:1") == "bfloat16"


def test_what_a_response_may_be_long_depends_on_the_task():
    tasks = "countdown", "countdown4", "gsm8k"
    caps = [parse_args(["--task", task]).max_new_tokens for task in tasks]
    assert caps == [20, 28, 1024]
    assert parse_args(["--max-new-tokens", "7"]).max_new_tokens == 7
    assert parse_args(["--eval-task", "gsm8k"]).max_new_tokens == 1024  # what either needs
