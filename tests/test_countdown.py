"""The countdown task: a wrong verifier or a leaking split would make every later number a lie."""

import itertools
import random
import re
import shutil
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks import countdown
from tasks.countdown import make_games, parse_chain, reward, solution_key, split_of
from tasks.problems import load_problems, problems_of_step

ALPHABET = "0123456789 >:+-*=,"
GAME = {"numbers": [3, 4, 5], "target": 17}


def brute_force(numbers):
    """Every legal chain as (text, last result): the rules once more, by trying everything."""
    if len(numbers) == 1:
        return {("", numbers[0])}
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = [x for position, x in enumerate(numbers) if position not in (i, j)]
        for op, value in (("+", a + b), ("-", a - b), ("*", a * b)):
            if 1 <= value <= 99:
                for text, last in brute_force([*rest, value]):
                    found.add((f"{a}{op}{b}={value}" + ("," + text if text else ""), last))
    return found


def some_games():
    """(numbers, target, legal chains, legal chains that end elsewhere) of hand-made number sets and
    random ones, small ones among them, so that equal numbers are frequent."""
    rng = random.Random(0)
    sets = [[2, 2, 5], [1, 1, 1], [5, 5, 2], [20, 20], [2, 2, 3, 3]]
    for n, count in ((2, 20), (3, 80), (4, 4)):
        sets += [[rng.randint(1, rng.choice((6, 20))) for _ in range(n)] for _ in range(count)]
    for numbers in sets:
        chains = sorted(brute_force(numbers))
        if chains:
            target = rng.choice(chains)[1]
            legal = {text for text, last in chains if last == target}
            yield numbers, target, legal, {text for text, last in chains if last != target}


def mutants(text):
    """All texts with one character deleted, changed or inserted."""
    for i in range(len(text) + 1):
        yield text[:i] + text[i + 1 :]
        for c in ALPHABET:
            yield text[:i] + c + text[i + 1 :]
            yield text[:i] + c + text[i:]


# ------------------------------------------------------------------------------- the verifier


def test_the_verifier_accepts_exactly_the_legal_chains():
    """One rule forgotten in parse_chain pays for a cheat, and reinforcement finds it."""
    accepted, rejected, rng = 0, 0, random.Random(1)
    for numbers, target, legal, elsewhere in some_games():
        row = {"numbers": numbers, "target": target}
        assert all(reward(chain, row) == 1.0 for chain in legal), row
        assert not any(reward(chain, row) for chain in elsewhere), row
        for chain in rng.sample(sorted(legal), min(len(legal), 5)):
            for mutant in set(mutants(chain)) - {chain}:
                right = parse_chain(mutant, numbers, target) is not None
                assert right == (mutant in legal), (mutant, row)
                accepted, rejected = accepted + right, rejected + (not right)
    assert accepted > 0 and rejected > 100_000  # 2+2=4 and 2*2=4 are one character apart


CHEATS = {
    "a number twice": ("3*4=12,12+4=16", [3, 4, 5], 16),
    "a number twice, all used": ("3+4=7,7+5=12,12+5=17", [3, 4, 5], 17),
    "the first result twice": ("3+4=7,7+7=14", [3, 4, 5], 14),
    "three of two equal ones": ("5+5=10,10+5=15", [5, 5, 2], 15),
    "one equal number forgotten": ("5*2=10", [5, 5, 2], 10),
    "a made-up number": ("3*4=12,12+6=18", [3, 4, 5], 18),
    "a number missing": ("3*4=12", [3, 4, 5], 12),
    "the target alone": ("17", [3, 4, 5], 17),
    "a wrong result": ("3*4=13,13+5=18", [3, 4, 5], 18),
    "a wrong last result": ("3*4=12,12+5=18", [3, 4, 5], 18),
    "subtracted the wrong way round": ("3-4=1,1+5=6", [3, 4, 5], 6),
    "a result of zero": ("3-3=0,0+5=5", [3, 3, 5], 5),
    "zero as the last result": ("3+2=5,5-5=0", [3, 2, 5], 0),
    "a negative result": ("3-5=-2,-2+9=7", [3, 5, 9], 7),
    "a negative result without sign": ("3-5=2,2+9=11", [3, 5, 9], 11),
    "a result above 99": ("11*10=110,110-15=95", [11, 10, 15], 95),
    "100 as the last result": ("10*10=100", [10, 10], 100),
    "another target's chain": ("3*4=12,12-5=7", [3, 4, 5], 17),
    "another game's chain": ("2*6=12,12+5=17", [3, 4, 5], 17),
    "a division": ("4/2=2,2+5=7", [4, 2, 5], 7),
}


@pytest.mark.parametrize("response, numbers, target", CHEATS.values(), ids=CHEATS)
def test_a_cheat_is_worth_nothing(response, numbers, target):
    """Each of these is one rule of the game, broken alone."""
    assert reward(response, {"numbers": numbers, "target": target}) == 0.0


FORMS = [
    "", " ", ",", "=", "3*4=12,12+5=17,", ",3*4=12,12+5=17", "3*4=12,,12+5=17",
    "3*4=12,12+5=17\n", "\n3*4=12,12+5=17", "3*4=12,\n12+5=17", "3*4=12\n,12+5=17",
    " 3*4=12,12+5=17", "3*4=12,12+5=17 ", "3*4=12, 12+5=17", "3 * 4 = 12,12 + 5 = 17",
    "so 3*4=12,12+5=17", "3*4=12,12+5=17 done", "3*4=12,12+5=17,17+0=17", "3 4 5>17:3*4=12,12+5=17",
    "03*4=12,12+5=17", "3*4=012,12+5=17", "3*4=12,12+5=017", "3*4=12,012+5=17", "+3*4=12,12+5=17",
    "3*4=12.0,12+5=17", "3*4=1_2,1_2+5=17", "3*4==12,12+5=17", "3*4=12;12+5=17", "3*4=12,12+5=17:",
    "3*4=12,12+5=17<eos>", "<eos>3*4=12,12+5=17", "3*4=12<pad>,12+5=17", "3*4=12,<unk>12+5=17",
    "\u0663*\u0664=\u0661\u0662,\u0661\u0662+\u0665=\u0661\u0667",  # Arabic-Indic, all of it
    "3*4=12,12+\u0665=17", "\uff13*4=12,12+5=17", "3*4=12,12+5=1\uff17",  # one, or a fullwidth one
    "3*4=\u00b9\u00b2,12+5=17", "3\u00d74=12,12+5=17", "3*4=12,12\uff0b5=17", "3*4=12\uff0c12+5=17",
    "3*4=12,12+5=17\u200b", "3*4=12,12+5=17\x00", "3*4=12,12+5=17\u2028",
]


@pytest.mark.parametrize("response", FORMS, ids=ascii)
def test_anything_around_a_right_chain_makes_it_wrong(response):
    """int() and \\d and $ forgive more than one would think: other digits, _, a last newline."""
    assert reward("3*4=12,12+5=17", GAME) == 1.0
    assert reward(response, GAME) == 0.0


def test_a_huge_response_is_rejected_at_once():
    """int() raises at 4301 digits and is quadratic before that: one response would end a run."""
    n = 10**6
    for response in (
        "1" * n, "," * n, "0" * n, "3*4=" + "1" * n, "3*4=12,12+5=" + "9" * n,
        "3*4=12,12+" + "5" * n + "=17", "3*4=12," * (n // 7), "3*4=12,12+5=17" + " " * n,
    ):
        start = time.perf_counter()
        assert reward(response, GAME) == 0.0
        assert time.perf_counter() - start < 0.1


def test_two_equal_numbers_may_each_be_used_once():
    """A verifier that keeps a set of what is left would refuse these."""
    assert parse_chain("5*5=25,25-2=23", [5, 5, 2], 23) == [(5, "*", 5, 25), (25, "-", 2, 23)]
    assert parse_chain("5-2=3,5*3=15", [2, 5, 5], 15) is not None
    assert parse_chain("3+4=7,7-7=0", [3, 4, 7], 0) is None
    assert parse_chain("3+4=7,7*7=49", [3, 4, 7], 49) is not None  # a result that equals a number


def test_solution_key_forgets_the_order_of_operands_where_it_does_not_matter():
    """distinct_correct counts keys: 3*4 and 4*3 must not count as diversity, other steps must."""
    key = solution_key("3*4=12,12+5=17", GAME)
    assert key == solution_key("4*3=12,12+5=17", GAME) == solution_key("4*3=12,5+12=17", GAME)
    # 9-4 and 4-9 need no keys of their own: 4-9 is below 1, so no chain has it.
    row = {"numbers": [9, 4, 2], "target": 3}
    assert parse_chain("4-9=5,5-2=3", **row) is None
    assert solution_key("9-4=5,5-2=3", row) != solution_key("9-2=7,7-4=3", row)
    row = {"numbers": [3, 4, 5], "target": 12}
    sums = ["3+4=7,7+5=12", "4+5=9,9+3=12", "3+5=8,8+4=12"]
    assert len({solution_key(chain, row) for chain in sums}) == 3
    row = {"numbers": [2, 2, 5], "target": 9}
    assert solution_key("2+2=4,4+5=9", row) != solution_key("2*2=4,4+5=9", row)


def test_solution_keys_against_another_normal_form():
    """On all legal chains of many games: equal keys if and only if they are equal up to order."""
    for numbers, target, legal, _ in some_games():
        pairs = set()
        for chain in legal:
            steps = []
            for a, op, b in re.findall(r"(\d+)(.)(\d+)=", chain):
                swap = op in "+*" and int(b) < int(a)
                steps.append(b + op + a if swap else a + op + b)
            row = {"numbers": numbers, "target": target}
            pairs.add((solution_key(chain, row), " ".join(steps)))
        assert len(pairs) == len({key for key, _ in pairs}) == len({form for _, form in pairs})


# ------------------------------------------------------------------------------ the generator


@pytest.mark.parametrize("n, count", [(2, 40), (3, 150), (4, 10)])
@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_generated_games(split, n, count):
    """An unsolvable or repeated problem, or one of another split, would bias every pass@k."""
    count = count if split == "train" else count // 2
    rows = make_games(split, count, seed=1, n=n)
    assert len(rows) == count
    assert len({(*sorted(row["numbers"]), row["target"]) for row in rows}) == count
    for row in rows:
        numbers, target = row["numbers"], row["target"]
        assert row["prompt"] == " ".join(str(x) for x in numbers) + f">{target}:"
        assert len(numbers) == n and all(1 <= x <= 20 for x in numbers)
        assert split_of(numbers) == split
        assert any(last == target for _, last in brute_force(numbers))


def test_games_are_a_function_of_the_arguments():
    """An evaluation on other problems than the last one compares nothing."""
    random.seed(1)
    rows, state = make_games("test", 50, seed=7), random.getstate()
    random.seed(2)
    assert make_games("test", 50, seed=7) == rows
    assert make_games("test", 20, seed=7) == rows[:20]  # a smaller evaluation is part of it
    assert make_games("test", 50, seed=8) != rows
    random.seed(1)
    assert random.getstate() == state  # nobody else's draws were disturbed


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_solution_found_by_playing_is_right(n):
    """The warm-up teaches these; a wrong one would teach a rule that the verifier punishes."""
    rng = random.Random(n)
    for _ in range(2000):
        numbers, target, solution = countdown.random_game(rng, n)
        assert reward(solution, {"numbers": numbers, "target": target}) == 1.0, solution


def test_a_split_that_is_too_small_says_so():
    """n = 2 has some ten held-out pairs: without an end to the search, a program that hangs."""
    with pytest.raises(ValueError, match=r"200 tune problems.* \d+ found"):
        make_games("tune", 200, seed=0, n=2)


# ---------------------------------------------------------------------------------- the split


def held_out_sets(n):
    rows = make_games("tune", 300, seed=5, n=n) + make_games("test", 300, seed=5, n=n)
    return {tuple(sorted(row["numbers"])) for row in rows}


def test_the_split_is_of_number_sets_and_holds_out_a_tenth():
    """By order, or by game, the policy would have trained on every set that it is tested on."""
    sets = list(itertools.combinations_with_replacement(range(1, 21), 3))
    splits = [split_of(numbers) for numbers in sets]
    assert 0.08 < 1 - splits.count("train") / len(sets) < 0.12
    assert splits.count("tune") > 50 and splits.count("test") > 50
    for numbers, split in zip(sets, splits, strict=True):
        assert {split_of(order) for order in itertools.permutations(numbers)} == {split}
        assert split_of(list(numbers)) == split


def test_the_split_never_moves():
    """By hash(), salted in each process, or after any change to it, the numbers that an older
    checkpoint was trained on would be held out."""
    sets = [(1, 2, 3), (4, 12, 1), (19, 3, 1), (1, 5, 6), (1, 3, 17)]
    assert [split_of(numbers) for numbers in sets] == ["train", "tune", "test", "test", "tune"]


def test_each_held_out_half_has_300_games():
    """eval.py asks for 300 problems by default, and train.py for the other half's."""
    for split in ("tune", "test"):
        rows = make_games(split, 300, seed=0)
        assert len({(*sorted(row["numbers"]), row["target"]) for row in rows}) == 300
        assert {x for row in rows for x in row["numbers"]} == set(range(1, 21))
        assert min(row["target"] for row in rows) < 5 and max(row["target"] for row in rows) > 90


def test_the_warm_up_sees_no_held_out_numbers(monkeypatch):
    """It draws any game, so nothing but its own `if` keeps held-out ones from the base policy."""
    drawn, batches = [], []
    draw, make_model = countdown.random_game, countdown.Qwen3ForCausalLM

    def recorder(rng, n):
        drawn.append(draw(rng, n))
        return drawn[-1]

    def watched(config):
        model = make_model(config)
        model.register_forward_pre_hook(keep, with_kwargs=True)
        return model

    def keep(module, args, kwargs):
        batches.append(kwargs)

    monkeypatch.setattr(countdown, "random_game", recorder)
    monkeypatch.setattr(countdown, "Qwen3ForCausalLM", watched)
    _, tokenizer = countdown.warm_up(2, 3)

    held_out = held_out_sets(3)
    assert sum(tuple(sorted(numbers)) in held_out for numbers, _, _ in drawn) > 10  # it did draw
    rows = [pair for b in batches for pair in zip(b["input_ids"], b["labels"], strict=True)]
    assert len(rows) == 2 * countdown.WARM_UP["batch_size"]
    for ids, labels in rows:
        text = tokenizer.decode(ids)
        prompt, answer, padding = re.fullmatch(r"(.*:)(.*)<eos>((?:<pad>)*)", text).groups()
        numbers, target = prompt.rstrip(":").split(">")
        numbers = [int(x) for x in numbers.split()]
        assert tuple(sorted(numbers)) not in held_out and split_of(numbers) == "train"
        # What it learns to write is a right answer and its end, not the prompt, not the padding.
        assert reward(answer, {"numbers": numbers, "target": int(target)}) == 1.0
        learnt = [-100] * len(prompt) + ids[len(prompt) :].tolist()
        learnt[len(prompt) + len(answer) + 1 :] = [-100] * (len(padding) // len("<pad>"))
        assert labels.tolist() == learnt


@pytest.mark.parametrize("task, n", [("countdown", 3), ("countdown4", 4)])
@pytest.mark.parametrize("size", [0, 40])
def test_training_sees_no_held_out_numbers(task, n, size):
    """Neither fresh problems nor a pool: test numbers in training would pass for generalization."""
    pool = load_problems(task, "train", size, seed=3)
    rows = [row for step in range(8) for row in problems_of_step(task, pool, 16, step, 0)]
    sets = {tuple(sorted(row["numbers"])) for row in rows}
    assert len(rows) == 8 * 16 and len(sets) > 30
    assert not sets & held_out_sets(n)
    assert {split_of(numbers) for numbers in sets} == {"train"}
    assert {len(numbers) for numbers in sets} == {n} and {row["task"] for row in rows} == {task}


# --------------------------------------------------------------------------- problems of a step


def test_an_epoch_of_a_pool_visits_every_row_once():
    """Steps that cut across epochs (4 does not divide 10) are where rows would get lost."""
    pool = load_problems("countdown", "train", 10, seed=0)
    steps = [problems_of_step("countdown", pool, 4, step, 0) for step in range(15)]
    prompts = [row["prompt"] for rows in steps for row in rows]
    epochs = [prompts[i : i + 10] for i in range(0, 60, 10)]
    assert all(sorted(epoch) == sorted(row["prompt"] for row in pool) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6  # each in an order of its own
    # More problems a step than rows in the pool: whole epochs, then a part of one.
    assert problems_of_step("countdown", pool, 60, 0, 0) == [row for rows in steps for row in rows]


@pytest.mark.parametrize("size", [0, 10])
def test_the_problems_of_a_step_depend_on_seed_and_step_alone(size):
    """State between steps would make two methods train on different problems."""
    pool = load_problems("countdown", "train", size, seed=0)

    def prompts(step, rng_seed):
        return [row["prompt"] for row in problems_of_step("countdown", pool, 5, step, rng_seed)]

    forwards = [prompts(step, 0) for step in range(4)]
    random.seed(9)
    assert [prompts(step, 0) for step in (3, 2, 1, 0)] == forwards[::-1]
    assert [prompts(step, 1) for step in range(4)] != forwards
    assert len({tuple(p) for p in forwards}) == 4
    if not pool:  # fresh ones, nearly all of them never seen before
        everything = [prompts(step, seed) for step in range(4) for seed in (0, 1, 10)]
        assert len(set(itertools.chain(*everything))) > 50


# -------------------------------------------------------------------------------- the tokenizer


def test_the_tokenizer_survives_a_round_trip(tmp_path):
    """Saved with a run's model, and read back by eval.py: other ids would be another policy."""
    tokenizer = countdown.make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = [ALPHABET, "3 4 5>17:3*4=12,12+5=17", "  1  2 ", "10-9=1", ":,=>", *ALPHABET]
    for t in (tokenizer, again):
        for text in texts:
            ids = t(text)["input_ids"]
            assert ids == tokenizer(text)["input_ids"] and len(ids) == len(text)
            assert t.decode(ids) == text
            assert t.decode([*ids, t.eos_token_id, t.pad_token_id]) == text + "<eos><pad>"
        assert len(t) == len(ALPHABET) + 3 and len(set(t(ALPHABET)["input_ids"])) == len(ALPHABET)
        assert t.convert_ids_to_tokens([t.pad_token_id, t.eos_token_id]) == ["<pad>", "<eos>"]
        assert t("3/4")["input_ids"][1] == t.unk_token_id  # and not dropped: 34 is another number


# ------------------------------------------------------------------------------ the base policy


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a warm-up of two tiny steps."""
    monkeypatch.setenv("THINKING_SEEDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(countdown.WARM_UP, "batch_size", 4)
    return tmp_path / "cache"


def must_not_run(*args):
    raise AssertionError("warmed up again")


def test_the_base_policy_is_made_once(cache, monkeypatch):
    """A warm-up takes minutes: never twice, and what it leaves is a plain checkpoint folder."""
    folder = countdown.base_policy(2)
    assert list(cache.iterdir()) == [folder]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 0.75e6 < sum(p.numel() for p in model.parameters()) < 0.85e6
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    monkeypatch.setattr(countdown, "warm_up", must_not_run)
    assert countdown.base_policy(2) == folder


def test_whatever_shapes_the_base_policy_names_its_folder(cache, monkeypatch):
    """A stale folder would silently start a run from another policy than the code describes."""
    model, tokenizer = countdown.warm_up(1, 3)
    monkeypatch.setattr(countdown, "warm_up", lambda steps, n: (model, tokenizer))
    folders = [countdown.base_policy(2), countdown.base_policy(3), countdown.base_policy(2, n=4)]
    for settings, key, value in (
        (countdown.WARM_UP, "learning_rate", 1e-3), (countdown.WARM_UP, "seed", 1),
        (countdown.SHAPE, "hidden_size", 64),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(settings, key, value)
            folders.append(countdown.base_policy(2))
    assert len(set(folders)) == 6 and countdown.base_policy(2) == folders[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_warm_up_leaves_nothing_behind(cache, monkeypatch, error):
    """A half-made folder would be taken for the base policy by every later run."""

    def interrupted(steps, n):
        assert len(list(cache.iterdir())) == 1  # the unfinished one
        raise error

    monkeypatch.setattr(countdown, "warm_up", interrupted)
    with pytest.raises(error):
        countdown.base_policy(2)
    assert list(cache.iterdir()) == []


def test_the_base_policy_does_not_depend_on_earlier_draws(cache, tmp_path, monkeypatch):
    """Made by `eval.py` or in the middle of a notebook, it is the same policy."""
    weights = []
    for seed in (1, 2):
        monkeypatch.setenv("THINKING_SEEDS_CACHE", str(tmp_path / str(seed)))
        torch.manual_seed(seed)
        random.seed(seed)
        model = AutoModelForCausalLM.from_pretrained(countdown.base_policy(2))
        weights.append(model.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_another_process_may_be_faster(cache, monkeypatch):
    """Two runs started at once: rename fails on a folder that is full, and that is fine."""

    def beaten(source, target):
        shutil.copytree(source, target)
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(countdown.os, "rename", beaten)
    folder = countdown.base_policy(2)
    assert list(cache.iterdir()) == [folder]  # and not the unfinished one beside it
    AutoModelForCausalLM.from_pretrained(folder)


def test_a_rename_that_fails_otherwise_is_an_error(cache, monkeypatch):
    """A full disk must not be taken for a faster process: the folder it returns does not exist."""

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(countdown.os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        countdown.base_policy(2)
    assert list(cache.iterdir()) == []
