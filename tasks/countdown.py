"""Countdown: the game that `python train.py` learns when it is told nothing else.

    prompt     3 4 5>17:
    response   3*4=12,12+5=17

Combine all the numbers, each exactly once, with + - *, so that the last result is the target; every
result lies between LOW and HIGH. A response can be checked exactly, there are many right ones for
most games, and a Qwen of 0.8 M parameters learns the rules in minutes on a CPU: a world that is
small enough to watch what reinforcement does to a policy's entropy on a laptop.

The file holds the game (generator, verifier, split), a character tokenizer, and the warm-up of the
tiny base policy that reinforcement then starts from.
"""

import ast
import hashlib
import json
import os
import random
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

LARGEST_NUMBER = 20
LOW, HIGH = 1, 99  # the range of every result on the way; two digits keep the responses short

# ---------------------------------------------------------------------------------- the game


@lru_cache(maxsize=None)
def _split_of_sorted(numbers):
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return {0: "tune", 1: "test"}.get(int.from_bytes(digest[:8], "big") % 20, "train")


def split_of(numbers):
    """'train' (18 number sets in 20), 'tune' (1) or 'test' (1), whatever the numbers' order.

    The *set of numbers* decides, not the game: there are only 1,540 triples of 1..20, so a split by
    game would show the policy every "held-out" triple with other targets.
    """
    return _split_of_sorted(tuple(sorted(numbers)))


def random_game(rng, n):
    """A game that has a solution, found by playing it: (numbers, target, solution)."""
    while True:
        # rng.random() alone: randint costs several times as much, and the warm-up draws 1e5 games
        numbers = [int(rng.random() * LARGEST_NUMBER) + 1 for _ in range(n)]
        left, steps = numbers[:], []
        while len(left) > 1:
            a = left.pop(int(rng.random() * len(left)))
            b = left.pop(int(rng.random() * len(left)))
            op = "+-*"[int(rng.random() * 3)]
            value = a + b if op == "+" else a - b if op == "-" else a * b
            if not LOW <= value <= HIGH:
                break
            left.append(value)
            steps.append(f"{a}{op}{b}={value}")
        else:
            return numbers, left[0], ",".join(steps)


def make_games(split, count, seed, n=3):
    """`count` distinct games of a split as rows for problems.py: a function of its arguments alone.

    ValueError when the split does not hold that many (three numbers: about 12,000 and 2 x 700).
    """
    rng, rows, seen, misses = random.Random(seed), [], set(), 0
    while len(rows) < count:
        numbers, target, _solution = random_game(rng, n)
        game, misses = (*sorted(numbers), target), misses + 1
        if split_of(numbers) == split and game not in seen:
            seen.add(game)
            prompt = f"{' '.join(map(str, numbers))}>{target}:"
            rows.append({"prompt": prompt, "numbers": numbers, "target": target})
            misses = 0
        elif misses == 30_000:  # the split holds no more, or hardly any
            raise ValueError(f"{count} {split} problems of countdown asked for, {len(rows)} found")
    return rows


# [0-9] and not \d, which would let other alphabets' digits through; no leading zero; two digits at
# most, so int() never meets a megabyte of them.
_STEP = re.compile(r"([1-9][0-9]?)([-+*])([1-9][0-9]?)=([1-9][0-9]?)")


def parse_chain(response, numbers, target):
    """The steps [(a, op, b, value), ...] of a legal solution, or None for anything else at all."""
    parts = response.split(",", len(numbers))
    if len(parts) != len(numbers) - 1:
        return None
    left, steps = list(numbers), []
    for part in parts:
        match = _STEP.fullmatch(part)
        if match is None:
            return None
        a, op, b, value = int(match[1]), match[2], int(match[3]), int(match[4])
        for operand in (a, b):
            if operand not in left:
                return None  # made up, or used a second time
            left.remove(operand)
        if value != (a + b if op == "+" else a - b if op == "-" else a * b):
            return None
        left.append(value)
        steps.append((a, op, b, value))
    return steps if left == [target] else None


def reward(response, row):
    """1.0 for a legal chain that ends in the target, else 0.0."""
    return float(parse_chain(response, row["numbers"], row["target"]) is not None)


def solution_key(response, row):
    """The same for two right responses that differ by the order of the operands of + and * only."""
    steps = parse_chain(response, row["numbers"], row["target"])
    if steps is None:
        return response.strip() or None
    return str([(op, *sorted((a, b))) for a, op, b, _ in steps])  # a - b is legal one way only


# --------------------------------------------------------------------------- the base policy


def make_tokenizer():
    """One token a character, as a tokenizer that save_pretrained and from_pretrained know."""
    vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *"0123456789 >:+-*=,"])}
    # BPE without merges is a character tokenizer; Fuse glues the characters back without spaces.
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


# Everything here shapes the base policy, so all of it goes into the cache's key. 400 steps leave it
# wrong three times in four, but right at least once in 16 tries on most games: something to learn,
# and something to lose.
WARM_UP = {"batch_size": 256, "learning_rate": 2e-3, "seed": 0}
SHAPE = {
    "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 256, "tie_word_embeddings": True,
}


def warm_up(steps, n):
    """Supervised learning on random solved games of the training split; returns the base policy."""
    tokenizer = make_tokenizer()
    ids = tokenizer.get_vocab()
    torch.manual_seed(WARM_UP["seed"])
    rng = random.Random(WARM_UP["seed"])
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    special = {"eos_token_id": eos, "pad_token_id": pad, "bos_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(ids), **special, **SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), WARM_UP["learning_rate"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in tqdm(range(steps), desc="warming up the base policy", unit="step"):
        inputs, labels = [], []
        while len(inputs) < WARM_UP["batch_size"]:
            numbers, target, solution = random_game(rng, n)
            if split_of(numbers) == "train":
                prompt = [ids[c] for c in f"{' '.join(map(str, numbers))}>{target}:"]
                answer = [ids[c] for c in solution] + [eos]
                inputs.append(prompt + answer)
                labels.append([-100] * len(prompt) + answer)  # prompts are random: no loss
        width = max(map(len, inputs))
        # Right padding under a causal mask: what stands behind a row cannot reach it.
        input_ids = torch.tensor([row + [pad] * (width - len(row)) for row in inputs])
        targets = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
        model(input_ids=input_ids, labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model, tokenizer


def base_policy(steps, n=3):
    """The folder of the warmed-up base policy, made on the first call and found on the next ones.

    It lives in $THINKING_SEEDS_CACHE, else in ~/.cache/thinking-seeds, under a hash of all that
    shapes it: this file's code, the settings, the library versions, and the number of threads
    (which may change the last bit of a sum). A run's --rng-seed is not among them.
    """
    code = ast.dump(ast.parse(Path(__file__).read_text(encoding="utf-8")))  # comments left out
    made_from = {
        "steps": steps, "n": n, **WARM_UP, **SHAPE, "threads": torch.get_num_threads(),
        "torch": torch.__version__, "transformers": transformers.__version__, "code": code,
    }
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    home = Path(os.environ.get("THINKING_SEEDS_CACHE") or Path.home() / ".cache" / "thinking-seeds")
    folder = home / f"countdown{n}-{steps}-{key}"
    if folder.exists():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=home))
    unfinished.chmod(0o755)  # a cache may be shared: not only for the user who made it
    try:
        model, tokenizer = warm_up(steps, n)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        for file in unfinished.iterdir():
            file.chmod(0o644)
        try:
            os.rename(unfinished, folder)  # atomic: a folder of that name is always whole
        except OSError:
            if not folder.exists():  # another process was faster: its folder holds the same policy
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
