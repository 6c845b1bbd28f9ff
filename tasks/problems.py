"""Where problems come from, and what a response is worth: the seam for a task of your own.

A problem is a row: a dict with `prompt` (what is asked) and whatever its reward function needs to know
(what is right). A task is a few functions, listed in TASKS:

    problems(split, count, seed) -> rows    split is "train", "tune" or "test"; a function of its arguments
    reward(response, row) -> float          of the whole response as text; 1.0 is right
    solution_key(response, row) -> str      equal for responses that are the same solution (optional)
    base_policy(steps) -> folder            the model behind `--model tiny`, if the task has one (optional)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tasks import countdown


@dataclass
class Task:
    problems: Callable
    reward: Callable
    solution_key: Callable = lambda response, row: response.strip()
    base_policy: Callable | None = None


def _countdown(n):
    return Task(
        partial(countdown.make_games, n=n),
        countdown.reward,
        countdown.solution_key,
        partial(countdown.base_policy, n=n),
    )


TASKS = {"countdown": _countdown(3), "countdown4": _countdown(4)}


def load_problems(task, split, count, seed):
    """`count` rows of a task's split. Raises ValueError if the split has fewer."""
    return [{**row, "task": task} for row in TASKS[task].problems(split, count, seed)]


def reward(response, row):
    """What the response (text) is worth as an answer to the row's prompt."""
    return TASKS[row["task"]].reward(response, row)


def solution_key(response, row):
    """A string that is the same for two responses that are the same solution."""
    return TASKS[row["task"]].solution_key(response, row)


def model_path(model, task, base_steps):
    """Where to load `--model` from: `tiny` is the task's own base policy, all else a path or a Hub id."""
    if model != "tiny":
        return model
    if TASKS[task].base_policy is None:
        raise ValueError(f"task {task} has no base policy of its own: give --model a path or a Hub id")
    return TASKS[task].base_policy(base_steps)
