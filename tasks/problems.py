r"""Where problems come from, how they are asked, what a response is worth: the seam for own tasks.

A problem is a row: a dict with `prompt` (what is asked) and whatever its reward needs to know (what
is right). A task is a few functions, listed in TASKS:

    problems(split, count, seed) -> rows    split: train, tune or test; a function of its arguments
    reward(response, row) -> float          of the whole response as text; 1 is right
    solution_key(response, row) -> str      equal for two ways to write one solution; None where
                                            there is no answer (optional)
    base_policy(steps) -> folder            the model behind `--model tiny` (optional)

Any other name is a set of math problems with their final answers: a benchmark of HUB, another Hub
id, a file, a folder. They are asked by the model's chat template, and judged by verify.py.
"""

import json
import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jinja2  # as transformers' chat templates do

from rollout import load_model
from tasks import countdown, verify


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
HUB = {  # short name: Hub id, config, the split to evaluate on
    "gsm8k": ("openai/gsm8k", "main", "test"),
    "math": ("DigitalLearningGmbH/MATH-lighteval", None, "test"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test"),
    "aime24": ("HuggingFaceH4/aime_2024", None, "train"),
    "aime25": ("math-ai/aime25", None, "test"),
    "amc23": ("math-ai/amc23", None, "test"),
    "minerva": ("math-ai/minervamath", None, "test"),
    "olympiadbench": ("math-ai/olympiadbench", None, "test"),
}
PROBLEM, ANSWER = ("problem", "question", "prompt"), ("answer", "final_answer", "solution")
FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def task_of(name):
    return TASKS.get(name, MATH)


def short_name(task):
    """The last part of a path or Hub id."""
    return Path(task).stem if Path(task).suffix in FORMATS else Path(task).name


def add_flags(parser):
    """The flags about sets of math problems."""
    add = parser.add_argument
    add("--data-dir", help="folder that holds NAME.jsonl, NAME_test.jsonl, NAME_train*.jsonl")
    add("--dataset-config", help="of a Hub id that has several")
    add("--problem-column", help=f"of --task; None: {', '.join(PROBLEM)}")
    add("--answer-column", help=f"of --task; None: {', '.join(ANSWER)}")
    add("--system-prompt", help="of math problems; '' for none",
        default=r"Please reason step by step, and put your final answer within \boxed{}.")
    add("--no-chat-template", action="store_true", help="ask math problems as plain text")


def note(text):
    """Tells the user of something that is amiss, but no reason to stop."""
    print(f"note: {text}", file=sys.stderr)


# ------------------------------------------------------------------------------------ the problems


def load_problems(task, split, count, seed, args=None):
    """`count` rows of a task's split (None: 300), or at most of a set of math problems (None: all).

    args: of a set, the values of add_flags. ValueError, which says what is there, for a set that
    cannot be read or has no problem with an answer, and for too few of a task's own.
    """
    if task in TASKS:
        count = 300 if count is None else count
        return [{**row, "task": task} for row in TASKS[task].problems(split, count, seed)]
    rows = _rows(_open(task, split, args), task, args)
    count = min(count or len(rows), len(rows))
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def _open(task, split, args):
    """The set of problems as a datasets.Dataset."""
    import datasets  # takes two seconds, which the embedded task need not wait for

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    path, files = Path(task), []
    is_hub_id = re.fullmatch(r"[\w-]+/[\w.-]+", task) and path.suffix not in FORMATS
    if path.is_file() and path.suffix in FORMATS:
        files = [path]
    elif args.data_dir and "/" not in task:
        folder, names = Path(args.data_dir), [f"{task}_{split}*.jsonl"]
        if split == "test":
            names = [f"{task}.jsonl", f"{task}_test.jsonl", f"{task}_math.jsonl"]  # minerva_math
        files = [found for name in names for found in sorted(folder.glob(name))]
        if not files:
            raise ValueError(f"--data-dir {folder} has no {' or '.join(names)}, but "
                             f"{', '.join(sorted(x.name for x in folder.glob('*'))) or 'nothing'}")
    elif not (path.is_dir() or task in HUB or is_hub_id):
        raise ValueError(f"--task {task}: no {', '.join(FORMATS)} file, no folder, no Hub id "
                         f"(owner/name), and none of {', '.join([*TASKS, *HUB])}")
    hub_id, config, only = HUB.get(task, (task, args.dataset_config, "test"))
    try:
        if files:
            kind = FORMATS[files[0].suffix]
            options = {"keep_default_na": False} if kind == "csv" else {}  # a gap makes no floats
            return datasets.load_dataset(
                kind, data_files=list(map(str, files)), split="train", **options)
        if path.is_dir():
            loaded = datasets.load_from_disk(task)
            return loaded[split] if isinstance(loaded, dict) else loaded
        return datasets.load_dataset(hub_id, config, split=only if split == "test" else split)
    except Exception as error:  # of a dozen kinds
        reasons = [_broken_line(file) for file in files if file.suffix == ".jsonl"]
        reason = next(filter(None, reasons), f"{type(error).__name__}: {error}")
        raise ValueError(f"{task} cannot be read: {reason}") from error


def _broken_line(path):
    """What is wrong with a JSONL file, or None; `datasets` does not tell the line."""
    number = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                json.loads(line)
            except ValueError as error:
                return f"line {number} of {path} is no JSON: {error}"
    return None if number else f"{path} is empty"


def _column(flag, given, usual, task, names):
    """The column of a set to read: the first wanted one that is there."""
    wanted = [given] if given else usual
    for name in wanted:
        if name in names:
            return name
    raise ValueError(f"{task} has no column {' or '.join(wanted)}, but {', '.join(names)}: choose "
                     f"one by {flag}")


def final_answer(cell, is_solution):
    r"""The final answer in a cell of a data set, "" if there is none: what stands behind GSM8K's
    ####, in the last \boxed{}, or else all of it, unless it is a whole solution."""
    cell = ", ".join(map(str, cell)) if isinstance(cell, list) else cell
    if not isinstance(cell, (str, int, float)) or cell != cell:  # None, a dict, nan
        return ""
    text = str(cell)
    if "####" in text:
        return text.rpartition("####")[2].strip()
    if r"\boxed" in text:
        return verify.extract_answer(text) or ""
    return "" if is_solution else text.strip()


def _rows(table, task, args):
    """The rows that have a problem and an answer; what is left out or broken is told."""
    names, is_own = table.column_names, vars(args).get("eval_task") != task
    asked = _column("--problem-column", is_own and args.problem_column, PROBLEM, task, names)
    answered = _column("--answer-column", is_own and args.answer_column, ANSWER, task, names)
    how = {"task": task, "system_prompt": args.system_prompt, "chat": not args.no_chat_template}
    rows, broken = [], []
    for number, row in enumerate(table.select_columns([asked, answered]), 1):
        answer = final_answer(row[answered], answered == "solution")
        if isinstance(row[asked], str) and row[asked].strip() and answer:
            rows.append({"prompt": row[asked].strip(), "answer": answer, **how})
            broken += [] if verify.is_readable(answer) else [f"{answer} (row {number})"]
    if not rows:
        raise ValueError(f"{task} has no row with a text in {asked} and an answer in {answered}")
    if len(rows) < len(table):
        note(f"{task}: {len(table) - len(rows)} of {len(table)} rows are left out, as they have no "
             f"text in {asked} or no answer in {answered}")
    if broken:
        note(f"{task}: broken answers, which few responses will equal: {'; '.join(broken)}")
    return rows


def warn_of_overlap(pool, held_out):
    """Counts the evaluation problems that are trained on. ValueError if it is all of them."""
    trained = {" ".join(row["prompt"].split()) for row in pool}
    shared = sum(" ".join(row["prompt"].split()) in trained for row in held_out)
    if shared == len(held_out):
        raise ValueError("all evaluation problems are training problems: see --eval-task")
    if shared:
        note(f"{shared} of {len(held_out)} evaluation problems are training problems as well")


def askable(model, tokenizer, cap, rows):
    """The rows that leave room for `cap` tokens in the model's context. Those left out are counted,
    and those with characters that the tokenizer cannot write. ValueError if no row is left."""
    context = getattr(model.config, "max_position_embeddings", None) or math.inf
    kept = [row for row in rows if len(prompt_ids(tokenizer, row)) + cap <= context]
    room = f"the model's context of {context} tokens together with --max-new-tokens {cap}"
    if rows and not kept:
        raise ValueError(f"no problem fits {room}")
    if len(kept) < len(rows):
        note(f"{len(rows) - len(kept)} of {len(rows)} problems are left out: they exceed {room}")
    characters = {c for row in kept for c in row["prompt"] if not c.isspace()}
    ids = {c: tokenizer(c, add_special_tokens=False)["input_ids"] for c in characters}
    unknown = {c for c in characters if not ids[c] or tokenizer.unk_token_id in ids[c]}
    if unknown:
        count = sum(not unknown.isdisjoint(row["prompt"]) for row in kept)
        note(f"{count} of {len(kept)} problems have characters that the tokenizer cannot write, "
             f"such as {min(unknown)}")
    return kept


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


# ------------------------------------------------------------------- how they are asked and judged


def prompt_ids(tokenizer, row):
    """The row's prompt as token ids: as it is, or of a math problem as the model is used to."""
    problem, system = row["prompt"], row.get("system_prompt")
    if "chat" not in row:
        return tokenizer(problem)["input_ids"]
    if not row["chat"] or tokenizer.chat_template is None:
        return tokenizer(f"{system}\n\nProblem: {problem}\n\nSolution:".lstrip())["input_ids"]
    write = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    question = [{"role": "user", "content": problem}]
    try:
        return write([{"role": "system", "content": system}] * bool(system) + question)
    except jinja2.TemplateError:  # some templates know no system role
        return write([{"role": "user", "content": f"{system}\n\n{problem}"}])


def reward(response, row):
    """What the response (text) is worth as an answer to the row's prompt; nan, which counts as 0,
    where the grader could not decide within its bounds."""
    return task_of(row["task"]).reward(response, row)


def solution_key(response, row):
    """A string that two responses share if they are the same solution; None without an answer."""
    return task_of(row["task"]).solution_key(response, row)


def merged(keys, row):
    """The solution keys of responses to one problem; of math answers that are equal, the first."""
    if row["task"] in TASKS:
        return keys
    first = {None: None}
    for key in dict.fromkeys(keys):
        equal = (k for k in first.values() if k and verify.is_correct(rf"\boxed{{{k}}}", key))
        first.setdefault(key, key and next(equal, key))
    return [first[key] for key in keys]


def open_model(args, task):
    """--model on --device, and its tokenizer: `tiny` is the task's own base policy, all else a
    folder or a Hub id. ValueError where it cannot be had."""
    model, path = args.model, Path(args.model)
    if model == "tiny":
        if task_of(task).base_policy is None:
            raise ValueError(f"--model tiny: task {task} has none, give a folder or a Hub id")
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
