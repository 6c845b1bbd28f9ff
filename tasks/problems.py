"""Where problems come from, and what a response is worth: the seam for a task of your own.

A problem is a row: a dict with `prompt` (what is asked) and whatever its reward needs to know (what
is right). A task is a few functions, listed in TASKS:

    problems(split, count, seed) -> rows   split: train, tune or test; a function of its arguments
    reward(response, row) -> float         of the whole response as text; 1 is right
    solution_key(response, row) -> str     equal for two ways to write one solution (optional)
    base_policy(steps) -> folder           the model behind `--model tiny` (optional)
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollout import load_model
from tasks import countdown


@dataclass
class Task:
    problems: Callable
    reward: Callable
    solution_key: Callable = lambda response, row: response.strip()
    base_policy: Callable | None = None


def _countdown(n):
    make_games = partial(countdown.make_games, n=n)
    base_policy = partial(countdown.base_policy, n=n)
    return Task(make_games, countdown.reward, countdown.solution_key, base_policy)


TASKS = {"countdown": _countdown(3), "countdown4": _countdown(4)}


def load_problems(task, split, count, seed):
    """`count` rows of a task's split. ValueError if it has fewer."""
    return [{**row, "task": task} for row in TASKS[task].problems(split, count, seed)]


def problems_of_step(task, pool, count, step, rng_seed):
    """`count` training problems for a step: a function of (rng_seed, step), with no state between.

    From `pool` (rows), each epoch in an order of its own; if it is empty, fresh ones of the task.
    """
    if not pool:
        seed = random.Random(f"{rng_seed} {step} problems").getrandbits(60)
        return load_problems(task, "train", count, seed)
    problems, n = [], len(pool)
    for epoch in range(step * count // n, ((step + 1) * count - 1) // n + 1):
        order = random.Random(f"{rng_seed} {epoch} order").sample(range(n), n)
        first, last = step * count - epoch * n, (step + 1) * count - epoch * n
        problems += [pool[i] for i in order[max(0, first) : last]]
    return problems


def prompt_ids(tokenizer, row):
    """The row's prompt as token ids."""
    return tokenizer(row["prompt"])["input_ids"]


def reward(response, row):
    """What the response (text) is worth as an answer to the row's prompt."""
    return TASKS[row["task"]].reward(response, row)


def solution_key(response, row):
    """A string that two responses share if they are the same solution."""
    return TASKS[row["task"]].solution_key(response, row)


def open_model(model, task, base_steps, device):
    """`--model` on the device, and its tokenizer: `tiny` is the task's own base policy, all else a
    folder or a Hub id. ValueError where it cannot be had."""
    path = Path(model)
    if model == "tiny":
        if TASKS[task].base_policy is None:
            raise ValueError(f"--model tiny: task {task} has none, give a folder or a Hub id")
        path = TASKS[task].base_policy(base_steps)
    elif not path.exists() and (len(path.parts) > 2 or path.parent.is_dir() and "/" in model):
        raise ValueError(f"--model {model}: there is no such folder")  # no need to ask the Hub
    try:
        opened, tokenizer = load_model(str(path), device)
    except Exception as error:  # the libraries behind it raise a dozen kinds
        again = "; remove that folder, it is made anew" if model == "tiny" else ""
        raise ValueError(f"--model {model} cannot be opened from {path}: {error}{again}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"--model {model} comes without a tokenizer: save one beside it")
    if len(tokenizer) > opened.get_input_embeddings().num_embeddings:
        raise ValueError(f"--model {model}: its tokenizer has more tokens than the model knows")
    return opened, tokenizer
