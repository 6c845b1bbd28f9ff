r"""Where problems come from, how they are asked, what a response is worth: the seam for own tasks.

A problem is a row: a dict with `prompt` (what is asked) and whatever its reward needs to know (what
is right). A task is a few functions, listed in TASKS:

    problems(split, count, seed) -> rows    split: train, tune or test; a function of its arguments
    reward(response, row) -> float          of the whole response as text; 1 is right
    solution_key(response, row) -> str      equal for two ways to write one solution; None where
                                            there is no answer (optional)
    base_policy(steps) -> folder            the model behind `--model tiny` (optional)

Any other name is a set of math problems with their final answers (sets.py), which are asked by the
model's chat template and judged by verify.py.
"""

import contextlib
import glob
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import runs
from rollout import load_model
from runs import note
from tasks import countdown, sets, verify


@dataclass
class Task:
    problems: Callable
    reward: Callable
    solution_key: Callable = lambda response, row: response.strip()
    base_policy: Callable | None = None
    max_new_tokens: int = 20  # if the flag is not given


def _countdown(n, max_new_tokens):
    games, base = partial(countdown.make_games, n=n), partial(countdown.base_policy, n=n)
    return Task(games, countdown.reward, countdown.solution_key, base, max_new_tokens)


def _math_reward(response, row):
    is_right = verify.verdict(response, row["answer"])
    return math.nan if is_right is None else float(is_right)


TASKS = {"countdown": _countdown(3, 20), "countdown4": _countdown(4, 28)}
MATH = Task(None, _math_reward, lambda response, row: verify.extract_answer(response), None, 1024)


def task_of(name):
    return TASKS.get(name, MATH)


def local(task):
    """An argparse type: as runs.local, but the name of a task or set is no path, nor is any other
    that no file has and no folder saved by `datasets`."""
    saved = glob.glob(f"{glob.escape(task)}/dataset_*.json")
    is_path = "/" in task or Path(task).is_file() or saved
    return runs.local(task) if is_path and task not in {*TASKS, *sets.HUB} else task


# ------------------------------------------------------------------------------------ the problems


def load_problems(task, split, count, seed, args=None):
    """`count` rows of a task's split (None: 300), or at most of a set of math problems (None: all).

    args: for a set, the values of add_flags. ValueError, which says what is there, for a set that
    cannot be read or has no problem with an answer, and for too few of a task's own.
    """
    if task in TASKS:
        if split not in ("train", "tune", "test"):
            raise ValueError(f"{task} has no split {split}, but train, tune and test")
        count = 300 if count is None else count
        return [{**row, "task": task} for row in TASKS[task].problems(split, count, seed)]
    rows = sets.read(task, split, args, TASKS)
    count = min(count or len(rows), len(rows))
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def warn_of_overlap(pool, held_out):
    """Counts the evaluation problems that are trained on. ValueError if it is all of them."""
    trained = {" ".join(row["prompt"].split()) for row in pool}
    shared = sum(" ".join(row["prompt"].split()) in trained for row in held_out)
    if shared == len(held_out):
        raise ValueError(f"all {shared} evaluation problems are training problems (a file has no "
                         "splits); name others by --eval-task")
    if shared:
        note(f"{shared} of {len(held_out)} evaluation problems are training problems as well")


def askable(model, tokenizer, cap, rows):
    """The rows that leave room for `cap` tokens in the model's context. Those left out are counted,
    and those with characters that the tokenizer cannot write. ValueError if no row is left."""
    context = getattr(model.config, "max_position_embeddings", None) or math.inf
    kept = [row for row in rows if len(prompt_ids(tokenizer, row)) + cap <= context]
    room = f"the model's context of {context} tokens together with --max-new-tokens {cap}"
    if rows and not kept:
        raise ValueError(f"no problem of {rows[0]['task']} fits {room}")
    if len(kept) < len(rows):
        note(f"{rows[0]['task']}: {len(rows) - len(kept)} of {len(rows)} problems are left out, as "
             f"they exceed {room}")
    texts = [prompt_text(tokenizer, row)[0] for row in kept]
    characters = {c for c in set().union(*texts) if not c.isspace()}
    ids = {c: tokenizer(c, add_special_tokens=False)["input_ids"] for c in characters}
    unknown = {c for c in characters if not ids[c] or tokenizer.unk_token_id in ids[c]}
    if unknown:
        count = sum(not unknown.isdisjoint(text) for text in texts)
        note(f"{rows[0]['task']}: {count} of {len(kept)} prompts have characters that the "
             f"tokenizer cannot write, such as {min(unknown)!r}")
    return kept


def problems_of_step(task, pool, count, step, rng_seed, split="train"):
    """`count` training problems for a step: a function of (rng_seed, step), with no state between.

    From `pool` (rows), each epoch in an order of its own; if it is empty, fresh ones of the task.
    """
    if not pool:
        seed = random.Random(f"{rng_seed} {step} problems").getrandbits(60)
        return load_problems(task, split, count, seed)
    problems, n = [], len(pool)
    for epoch in range(step * count // n, ((step + 1) * count - 1) // n + 1):
        order = random.Random(f"{rng_seed} {epoch} order").sample(range(n), n)
        first, last = step * count - epoch * n, (step + 1) * count - epoch * n
        problems += [pool[i] for i in order[max(0, first) : last]]
    return problems


# ------------------------------------------------------------------- how they are asked and judged


def prompt_text(tokenizer, row):
    """What the model is asked, and whether the tokenizer adds its special tokens to it: a prompt as
    it is, and a math problem in the model's own way. ValueError if the chat template fails."""
    problem, system = row["prompt"], row.get("system_prompt")
    if "chat" not in row:
        return problem, True
    if not row["chat"] or tokenizer.chat_template is None:
        return f"{system}\n\nProblem: {problem}\n\nSolution:".lstrip(), True

    def write(*turns):
        messages = [{"role": role, "content": content} for role, content in turns if content]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    try:
        with contextlib.suppress(Exception):  # some templates know no system role, and say so
            text = write(("system", system), ("user", problem))
            if system in text and problem in text:
                return text, False
        text = write(("user", f"{system}\n\n{problem}".lstrip()))
        if problem in text:
            return text, False
        raise ValueError("it leaves the problem out")
    except Exception as error:
        raise ValueError(f"the model's chat template fails on {problem[:40]!r}: {error}; try "
                         "--no-chat-template") from error


def prompt_ids(tokenizer, row):
    """The row's prompt as token ids."""
    text, special = prompt_text(tokenizer, row)
    return tokenizer(text, add_special_tokens=special)["input_ids"]


def reward(response, row):
    """What the response (text) is worth as an answer to the row's prompt; nan, which counts as 0,
    where the grader could not decide within its bounds."""
    return task_of(row["task"]).reward(response, row)


def solution_key(response, row):
    """A string that two responses share if they are the same solution; None without an answer."""
    return task_of(row["task"]).solution_key(response, row)


def merged(keys, right, row):
    """The solution keys of responses to one problem; of math answers that are equal, the first.

    Never of a right and a wrong one: 25 and 25%, and 25% and 0.25, but not 25 and 0.25 are equal.
    """
    if row["task"] in TASKS:
        return keys
    first = {(None, False): None}
    for key, is_right in dict.fromkeys(zip(keys, right)):
        known = dict.fromkeys(first[k] for k in first if k[1] == is_right)
        equal = (k for k in known if k and verify.is_correct(rf"\boxed{{{k}}}", key))
        first.setdefault((key, is_right), key and next(equal, key))
    return [first[pair] for pair in zip(keys, right)]


def open_model(args, task):
    """--model on --device, and its tokenizer: `tiny` is the task's own base policy, all else a
    folder or a Hub id. ValueError where it cannot be had."""
    model, path = args.model, Path(args.model)
    if model == "tiny":
        if task_of(task).base_policy is None:
            raise ValueError(f"--model tiny: {task} has no model of its own; give a folder or a "
                             "Hub id")
        path = task_of(task).base_policy(args.base_steps)
    elif not path.exists() and (len(path.parts) > 2 or path.parent.is_dir() and "/" in model):
        raise ValueError(f"--model {model}: there is no such folder")  # no need to ask the Hub
    try:
        opened, tokenizer = load_model(str(path), args.device)
    except Exception as error:  # the libraries behind it raise a dozen kinds
        again = "; remove that folder, it is made anew" if model == "tiny" else ""
        raise ValueError(f"--model {model} cannot be opened from {path}: {error}{again}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"--model {model} comes without a tokenizer: save one beside it")
    if len(tokenizer) > opened.get_input_embeddings().num_embeddings:
        raise ValueError(f"--model {model}: its tokenizer has more tokens than the model knows")
    return opened, tokenizer
