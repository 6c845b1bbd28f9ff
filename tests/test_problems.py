"""Where problems come from: sets of math problems good and bad, and how they are asked."""

import argparse
import itertools
import json
import math

import datasets
import pytest
from conftest import random_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tasks import problems
from tasks.countdown import make_tokenizer
from tasks.problems import askable, load_problems, merged, prompt_ids, reward
from tasks.problems import warn_of_overlap
from tasks.sets import add_flags, final_answer

ROWS = [
    {"problem": "What is 1 + 1?", "answer": "2"},
    {"problem": "What is a half?", "answer": "\\frac{1}{2}"},
    {"problem": "What is 3 - 3?", "answer": "0"},
]
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def flags(*argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--task")
    add_flags(parser)
    return parser.parse_args(argv)


def load(task, *argv, split="test", count=None):
    return load_problems(str(task), split, count, seed=0, args=flags("--task", str(task), *argv))


def asked(rows):
    return [(row["prompt"], row["answer"]) for row in rows]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def byte_tokenizer(**special):
    """A token a byte, which can write any text, as those of Qwen and Llama can."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


# ---------------------------------------------------------------------------------- sets as files


def write_json(path):
    path.with_suffix(".json").write_text(json.dumps(ROWS))
    return path.with_suffix(".json")


def write_csv(path):
    datasets.Dataset.from_list(ROWS).to_csv(path.with_suffix(".csv"))
    return path.with_suffix(".csv")


def write_parquet(path):
    datasets.Dataset.from_list(ROWS).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_saved(path):
    datasets.Dataset.from_list(ROWS).save_to_disk(path)
    return path


def write_saved_splits(path):
    other = datasets.Dataset.from_list([{"problem": "Another?", "answer": "1"}])
    both = {"train": other, "test": datasets.Dataset.from_list(ROWS)}
    datasets.DatasetDict(both).save_to_disk(path)
    return path


@pytest.mark.parametrize("write", [
    lambda path: jsonl(path.with_suffix(".jsonl"), ROWS),
    write_json, write_csv, write_parquet, write_saved, write_saved_splits,
])
def test_every_format_gives_the_same_rows(write, tmp_path):
    rows = load(write(tmp_path / "set"))
    assert asked(rows) == [(row["problem"], row["answer"]) for row in ROWS]
    assert reward("so it is \\boxed{0.5}", rows[1]) == 1.0 and reward("\\boxed{0.6}", rows[1]) == 0


def test_a_link_keeps_its_name(tmp_path, monkeypatch):
    """In the Hub's cache what a link leads to has no suffix."""
    jsonl(tmp_path / "blob", ROWS)
    (tmp_path / "set.jsonl").symlink_to("blob")
    monkeypatch.chdir(tmp_path)
    assert problems.local("set.jsonl") == str(tmp_path / "set.jsonl")
    assert len(load(problems.local("set.jsonl"))) == 3


def test_a_folder_is_told_from_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("set", "gsm8k", "countdown"):
        write_saved(tmp_path / name)
    write_saved_splits(tmp_path / "splits")
    for name in ("math", "countdown4"):
        (tmp_path / name).write_text("")
    (tmp_path / "amc").mkdir()  # which --data-dir may have
    for name in ("set", "splits"):
        assert problems.local(name) == str(tmp_path / name)
        assert len(load(problems.local(name))) == 3
    for name in ("gsm8k", "countdown", "math", "countdown4", "amc", "owner/name", ""):
        assert problems.local(name) == name


def test_a_file_with_the_name_of_a_set_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").write_text("")
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "gsm8k.jsonl", ROWS)
    assert len(load("gsm8k", "--data-dir", "data")) == 3


@pytest.mark.parametrize("problem", ["problem", "question", "prompt"])
@pytest.mark.parametrize("answer", ["answer", "final_answer", "solution"])
def test_columns_are_found_by_their_usual_names(problem, answer, tmp_path):
    path = jsonl(tmp_path / "x.jsonl", [{"id": 7, answer: "\\boxed{5}", problem: "2 + 3?"}])
    assert asked(load(path)) == [("2 + 3?", "5")]


def test_columns_that_are_named_win(tmp_path, capsys):
    row = {"problem": "no", "answer": "no", "q": "2 + 3?", "a": "5"}
    path = jsonl(tmp_path / "x.jsonl", [row])
    assert asked(load(path, "--problem-column", "q", "--answer-column", "a")) == [("2 + 3?", "5")]
    # of two sets one may have it, the other the usual one, which is told
    other = jsonl(tmp_path / "y.jsonl", [{"question": "3 + 3?", "a": "6"}])
    assert asked(load(other, "--problem-column", "q", "--answer-column", "a")) == [("3 + 3?", "6")]
    assert "no column q" in capsys.readouterr().err


def test_the_next_column_is_read_where_one_is_empty(tmp_path):
    path = jsonl(tmp_path / "x.jsonl", [
        {"problem": "2?", "answer": None, "solution": "It is \\boxed{2}."},
        {"problem": "3?", "answer": "3", "solution": "It is \\boxed{4}."},
        {"question": 12, "answer": "12"}])
    assert asked(load(path)) == [("2?", "2"), ("3?", "3"), ("12", "12")]


@pytest.mark.parametrize("cell, answer", [
    ("She has 2 * 21 = <<2*21=42>>42 left.\n#### 42", "42"),
    ("The answer is 7 at first.\n#### 1,234", "1,234"),
    ("So \\boxed{1}, or rather \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
    ("x = 5", "x = 5"),
    (42, "42"),
    (2.5, "2.5"),
    (["3", "5"], "3, 5"),
    (None, ""),
    (math.nan, ""),
    ({"value": 3}, ""),
    ([["3"], ["5"]], ""),
    (["3", None], ""),
    ("  ", ""),
    ("####", ""),
])
def test_the_final_answer_of_a_cell(cell, answer):
    assert final_answer(cell, is_solution=False) == answer


def test_a_whole_solution_is_no_answer():
    assert final_answer("First we add, then we are done.", is_solution=True) == ""
    assert final_answer("We add: \\boxed{3}", is_solution=True) == "3"
    # some benchmarks call the bare answer so
    for cell, answer in ((27.0, "27.0"), ("3\\sqrt{2}", "3\\sqrt{2}"), ("x = 5", "x = 5")):
        assert final_answer(cell, is_solution=True) == answer


def test_numbers_keep_their_digits(tmp_path):
    """A gap in a column, or 0.5, would make floats of integers that have more than 16 digits."""
    path = tmp_path / "x.csv"
    path.write_text("\ufeffproblem,answer\r\na,12345678901234567\r\nb,\r\nc,007\r\nd,0.50\r\n")
    assert asked(load(path)) == [("a", "12345678901234567"), ("c", "007"), ("d", "0.50")]
    cells = ["1/2", 2, "A", 10**30, 0.5, "2020-01-01"]
    mixed = jsonl(tmp_path / "y.jsonl", [{"problem": "a", "answer": x} for x in cells])
    assert [answer for _, answer in asked(load(mixed))] == [str(x) for x in cells]


def test_a_count_is_a_sample_that_stays(tmp_path):
    rows = [{"problem": f"{i}?", "answer": str(i)} for i in range(50)]
    path = jsonl(tmp_path / "x.jsonl", rows)
    some = load(path, count=10)
    assert len(some) == 10 and some == load(path, count=10)
    numbers = [int(row["answer"]) for row in some]
    assert numbers == sorted(set(numbers)) and numbers != list(range(10))
    assert len(load(path, count=0)) == len(load(path, count=99)) == 50


# ----------------------------------------------------------------------------- --data-dir, the Hub


def test_data_dir_holds_train_and_test_files(tmp_path):
    def one(name, text):
        jsonl(tmp_path / name, [{"problem": text, "answer": "1"}])

    for name in ("gsm8k_test", "gsm8k_train_2000", "gsm8k_train_b", "math500", "minerva_math"):
        one(f"{name}.jsonl", name)
    named = "--data-dir", str(tmp_path)
    prompts = {
        (task, split): [row["prompt"] for row in load(task, *named, split=split)]
        for task, split in (("gsm8k", "test"), ("gsm8k", "train"), ("math500", "test"),
                            ("minerva", "test"), ("minerva_math", "test"))
    }
    assert list(prompts.values()) == [
        ["gsm8k_test"], ["gsm8k_train_2000", "gsm8k_train_b"], ["math500"], ["minerva_math"],
        ["minerva_math"]]
    # no other file will do: a typing error must not train on what is to be evaluated on
    for task, split in (("aime24", "test"), ("math500", "train"), ("math", "test"), ("*", "test"),
                        ("gsm8k", "te"), ("gsm8k", ""), ("gsm8k", "t*")):
        with pytest.raises(ValueError, match="has no .*gsm8k_test.jsonl"):
            load(task, *named, split=split)
    one("gsm8k.jsonl", "first")
    assert [row["prompt"] for row in load("gsm8k", *named)] == ["first"]  # and not both


@pytest.mark.parametrize("task, split, argv, expected", [
    ("gsm8k", "train", [], ("openai/gsm8k", "main", "train")),
    ("gsm8k", "test", [], ("openai/gsm8k", "main", "test")),
    ("math500", "test", [], ("HuggingFaceH4/MATH-500", None, "test")),
    ("aime24", "test", [], ("HuggingFaceH4/aime_2024", None, "train")),  # all that it has
    ("aime25", "test", [], ("math-ai/aime25", None, "test")),
    ("amc23", "test", [], ("math-ai/amc23", None, "test")),
    ("minerva", "test", [], ("math-ai/minervamath", None, "test")),
    ("olympiadbench", "test", [], ("math-ai/olympiadbench", None, "test")),
    ("math", "train", [], ("DigitalLearningGmbH/MATH-lighteval", None, "train")),
    ("a/b-1.5", "validation", ["--dataset-config", "c"], ("a/b-1.5", "c", "validation")),
])
def test_names_become_hub_ids(task, split, argv, expected, monkeypatch):
    calls = []

    def load_dataset(path, name, split):
        calls.append((path, name, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load(task, *argv, split=split)) == 3 and calls == [expected]


def test_a_benchmark_is_not_trained_on(monkeypatch):
    """aime24 has but one split, and it is called train."""
    monkeypatch.setattr(datasets, "load_dataset", None)
    assert "benchmark" in refused("aime24", split="train")


# --------------------------------------------------------------------------------------- bad data


def refused(task, *argv, **kwargs):
    with pytest.raises(ValueError) as error:
        load(task, *argv, **kwargs)
    return str(error.value)


def test_what_is_not_there_is_named(tmp_path):
    for task in ("chess", str(tmp_path / "no.jsonl"), "data/a/no.csv", ""):
        line = refused(task)
        assert task in line and "gsm8k" in line and "countdown" in line
    (tmp_path / "x.txt").write_text("1")
    assert ".parquet" in refused(tmp_path / "x.txt")
    assert "chess" in refused("chess", "--data-dir", str(tmp_path / "no folder"))
    (tmp_path / "folder").mkdir()
    assert str(tmp_path / "folder") in refused(tmp_path / "folder")
    saved = write_saved_splits(tmp_path / "saved")
    line = refused(saved, split="validation")
    assert "validation" in line and "train, test" in line
    with pytest.raises(ValueError, match="train, tune and test"):
        load_problems("countdown", "validation", 1, 0)


def test_a_missing_column_names_those_that_are_there(tmp_path):
    path = jsonl(tmp_path / "x.jsonl", [{"text": "1 + 1?", "gold": "2"}])
    line = refused(path)
    assert all(word in line for word in ("problem", "question", "text, gold", "--problem-column"))
    line = refused(path, "--problem-column", "text")
    assert all(word in line for word in ("final_answer", "text, gold", "--answer-column"))
    line = refused(path, "--problem-column", "txt")
    assert "txt" in line and "text, gold" in line


@pytest.mark.parametrize("text, named", [
    ('{"problem": "a", "answer": "1"}\n{"problem": "b" "answer": "2"}\n', "line 2"),
    ('{"problem": "a", "answer": "1"}\n\n{"problem": "b", "ans', "line 3"),
    ("", "at least one"),
    ("[1, 2]", "objects"),
])
def test_broken_json_is_named_by_its_line(text, named, tmp_path):
    (tmp_path / "x.jsonl").write_text(text)
    assert named in refused(tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.parquet", "y.jsonl", "z.json"])
def test_broken_files_of_all_kinds_are_told(name, tmp_path):
    content = {"y": b'{"problem": "\xe9"}', "z": b""}.get(name[0], b"\x00\xff[{broken")
    (tmp_path / name).write_bytes(content)
    assert name in refused(tmp_path / name)


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path, capsys):
    bad = [{"problem": "a", "answer": ""}, {"problem": "", "answer": "1"}, {"problem": "b"},
           {"problem": None, "answer": "3"}]
    path = jsonl(tmp_path / "x.jsonl", ROWS + bad)
    assert len(load(path)) == 3
    assert "4 of 7 rows" in capsys.readouterr().err
    path = jsonl(tmp_path / "y.jsonl", bad)
    assert "y.jsonl" in refused(path)


def test_a_broken_answer_is_reported_with_its_row(tmp_path, capsys):
    path = jsonl(tmp_path / "x.jsonl", [*ROWS, {"problem": "x?", "answer": "$221,$8$"}])
    assert len(load(path)) == 4
    assert "row 4" in capsys.readouterr().err


def test_training_on_evaluation_problems_is_counted(capsys):
    pool = [{"prompt": "What is\n1 + 1?"}, {"prompt": "other"}]
    warn_of_overlap(pool, [{"prompt": "What is 1  + 1?"}, {"prompt": "new"}])
    assert "1 of 2" in capsys.readouterr().err
    warn_of_overlap(pool, [{"prompt": "new"}])
    warn_of_overlap([], [{"prompt": "new"}])
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="--eval-task"):
        warn_of_overlap(pool, pool)


# ------------------------------------------------------------------------------- asking the model


def row(prompt, chat=True, system="Think."):
    return {"prompt": prompt, "answer": "2", "task": "gsm8k", "system_prompt": system, "chat": chat}


def test_how_a_problem_is_asked():
    plain, chat = byte_tokenizer(), byte_tokenizer(chat_template=CHAT)

    def text(tokenizer, *args):
        return tokenizer.decode(prompt_ids(tokenizer, row(*args)))

    assert text(chat, "1 + 1?") == "<system>Think.</><user>1 + 1?</><assistant>"
    assert text(chat, "1 + 1?", True, "") == "<user>1 + 1?</><assistant>"
    for tokenizer, with_chat in ((chat, False), (plain, True), (plain, False)):
        assert text(tokenizer, "1?", with_chat) == "Think.\n\nProblem: 1?\n\nSolution:"
        assert text(tokenizer, "1?", with_chat, "") == "Problem: 1?\n\nSolution:"
    # a task of one's own writes its prompts itself
    assert chat.decode(prompt_ids(chat, {"prompt": "3 4>7:", "task": "countdown"})) == "3 4>7:"


@pytest.mark.parametrize("ignoring", [
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT,
    CHAT.replace("{% for m in messages %}", "{% for m in messages if m['role'] == 'user' %}"),
])
def test_a_template_without_a_system_role(ignoring):
    """Gemma's and Mistral's first templates raise; the instruction then goes with the problem."""
    tokenizer = byte_tokenizer(chat_template=ignoring)
    ids = prompt_ids(tokenizer, row("1 + 1?"))
    assert tokenizer.decode(ids) == "<user>Think.\n\n1 + 1?</><assistant>"


@pytest.mark.parametrize("template", [
    "{{ raise_exception('never') }}", "{% if %}", "{{ messages[9]['content'] }}", "nothing"])
def test_a_template_that_fails_is_a_line(template):
    """Or worse: one that leaves the problem out, and everything else looks as it should."""
    with pytest.raises(ValueError, match="--no-chat-template"):
        prompt_ids(byte_tokenizer(chat_template=template), row("1 + 1?"))
    assert prompt_ids(byte_tokenizer(chat_template=template), row("1 + 1?", chat=False))


def test_special_tokens_are_written_once():
    """The template writes its own BOS; a tokenizer that adds another would shift everything."""
    tokenizer = byte_tokenizer(bos_token="<s>", chat_template="{{ bos_token }}" + CHAT)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)])
    assert prompt_ids(tokenizer, row("1?", chat=False)).count(tokenizer.bos_token_id) == 1
    ids = prompt_ids(tokenizer, row("1?"))
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


def test_problems_beyond_the_context_are_left_out(capsys):
    model, tokenizer = random_model(vocab_size=300, max_position_embeddings=64), byte_tokenizer()
    short, long = row("1?", system=""), row("1?" * 40, system="")
    room = 64 - len(prompt_ids(tokenizer, short))
    assert askable(model, tokenizer, room, [short, long]) == [short]
    assert "1 of 2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="64"):
        askable(model, tokenizer, room + 1, [short])
    assert askable(model, tokenizer, 1, []) == []


def test_characters_that_cannot_be_written_are_counted(capsys):
    rows = [{"prompt": text, "task": "countdown"} for text in ("1 2", "4\t5", "½?")]
    askable(random_model(), make_tokenizer(), 1, rows)
    err = capsys.readouterr().err
    assert "1 of 3" in err and err.count("\n") == 1
    askable(random_model(vocab_size=300), byte_tokenizer(), 1, rows)
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------------------------- verdicts


def test_equal_answers_are_one():
    keys = ["1/2", "0.5", None, "2", "\\frac{1}{2}", "0.5"]
    right = [True, True, False, False, True, True]
    assert merged(keys, right, row("?")) == ["1/2", "1/2", None, "2", "1/2", "1/2"]
    assert merged(["1+1", "2"], [True, True], {"task": "countdown"}) == ["1+1", "2"]
    # 25% equals both 25 and 0.25: what is right and what is wrong must not become one
    keys, right = ["25", "0.25", "0.25", "25\\%", "25\\%"], [False, True, True, True, True]
    for order in itertools.permutations(range(5)):
        one = merged([keys[i] for i in order], [right[i] for i in order], row("?"))
        assert {(x == one[order.index(0)], right[i]) for x, i in zip(one, order)} == {
            (True, False), (False, True)}


def test_no_verdict_is_no_number(monkeypatch):
    monkeypatch.setattr(problems.verify, "verdict", lambda response, answer: None)
    assert math.isnan(reward("\\boxed{2}", row("?")))
