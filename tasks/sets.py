"""Sets of math problems: found by name, read, and checked. A row is {task, prompt, answer, ...}.

A set is a benchmark of HUB, another Hub id, a file, a folder saved by `datasets`; --data-dir has
files for the names of HUB, and for any other name.
"""

import csv
import glob
import json
import re
from pathlib import Path

import runs
from runs import note
from tasks import verify

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
FORMATS = (".jsonl", ".json", ".csv", ".parquet")


def add_flags(parser):
    """The flags about sets of math problems."""
    add = parser.add_argument
    add("--data-dir", type=runs.local,
        help="folder that holds NAME.jsonl, NAME_test.jsonl, NAME_train*.jsonl")
    add("--dataset-config", help="of a Hub id that has several")
    add("--problem-column", help=f"of --task; None: {', '.join(PROBLEM)}")
    add("--answer-column", help=f"of --task; None: {', '.join(ANSWER)}")
    add("--system-prompt", help="of math problems; '' leaves it to the chat template",
        default=r"Please reason step by step, and put your final answer within \boxed{}.")
    add("--no-chat-template", action="store_true", help="ask math problems as plain text")


def short_name(task):
    """The last part of a path or Hub id."""
    return Path(task).stem if Path(task).suffix in FORMATS else Path(task).name


def read(task, split, args, tasks=()):
    """The rows of a set's split that have a problem and an answer.

    args: the values of add_flags. tasks: names that are no sets. ValueError, which says what is
    there, where there are no rows.
    """
    try:
        return _rows(_read(task, split, args, tasks), task, args)
    except Exception as error:  # `datasets` has a dozen kinds, and the reason is in the cause
        cause = error.__cause__ or error
        kind = "" if isinstance(cause, ValueError) else f"{type(cause).__name__}: "
        hint = "; without a network, give a file or --data-dir" if "reach" in f"{error}" else ""
        flag = "--task" if _is_own(task, args) else "--eval-task"
        raise ValueError(f"{flag} {task}: {kind}{cause}{hint}") from error


def _read(task, split, args, tasks):
    """The rows of a set as dicts."""
    path, (hub_id, config, benchmark) = Path(task), HUB.get(task, (task, None, "test"))
    if path.is_file() and task not in HUB:
        return _read_file(path)
    if args.data_dir and "/" not in task:
        files = _files(task, split, Path(args.data_dir))
        return [row for file in files for row in _read_file(file)]
    is_folder = task not in HUB and task != "" and path.is_dir()
    is_id = re.fullmatch(r"[\w-]+/[\w.-]+", task) and path.suffix not in FORMATS
    if not (task in HUB or is_folder or is_id):
        raise ValueError("no file, no folder, no Hub id (owner/name), and none of "
                         f"{', '.join([*tasks, *HUB])}")
    import datasets  # takes two seconds, which the embedded task need not wait for

    datasets.disable_progress_bars()
    if is_folder:
        saved = datasets.load_from_disk(task)
        if isinstance(saved, dict) and split not in saved:
            raise ValueError(f"it has no split {split}, but {', '.join(saved)}")
        return _plain(saved[split] if isinstance(saved, dict) else saved)
    if benchmark == "train" and split != "test":
        raise ValueError("it is a benchmark, to be evaluated on and not trained on")
    split = benchmark if split == "test" else split
    config = config if task in HUB or not _is_own(task, args) else args.dataset_config
    return _plain(datasets.load_dataset(hub_id, config, split=split))


def _is_own(task, args):
    """Whether the flags on columns are meant for this set: for --task, and not for --eval-task."""
    return task == args.task or vars(args).get("eval_task") != task


def _plain(dataset):
    return dataset.with_format("arrow")[:].to_pylist()  # images stay undecoded


def _files(task, split, folder):
    """The files of --data-dir that hold a split of the task of this name."""
    names = [f"{task}.jsonl", f"{task}_test.jsonl", f"{task}_math.jsonl"]  # minerva_math, it is
    if split != "test":
        pattern = glob.escape(f"{task}_{split}") + ("*" if split == "train" else "") + ".jsonl"
        names = sorted(path.name for path in folder.glob(pattern))
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        there = ", ".join(sorted(path.name for path in folder.glob("*.jsonl")))
        raise ValueError(f"--data-dir {folder} has no {' or '.join(names) or pattern}, but "
                         f"{there or 'no JSONL file at all'}")
    if split == "train" and len(files) > 1:
        note(f"{task} is trained on {', '.join(names)} together")
    return files if split == "train" else files[:1]


def _read_file(path):
    """The rows of a file. Only Parquet is left to `datasets`: of text it makes 1e+30 where a column
    has 10**30 and 0.5, and it does not tell the line of what is broken."""
    if path.suffix == ".parquet":
        import datasets

        datasets.disable_progress_bars()
        return _plain(datasets.Dataset.from_parquet(str(path)))
    if path.suffix == ".csv":
        csv.field_size_limit(2**31 - 1)
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, skipinitialspace=True, strict=True))
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    if path.suffix != ".jsonl":
        raise ValueError(f"a file must be one of {', '.join(FORMATS)}")
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} of {path.name} is no JSON: {error}") from None
    return rows


def _columns(flag, given, usual, names, task):
    """The columns to look into, in this order: the given one, or those of the usual names."""
    if given and given not in names:
        note(f"{task} has no column {given} ({flag}); it is searched for the usual ones")
    known = {name.lower(): name for name in names}
    found = [given] if given in names else [known[name] for name in usual if name in known]
    if not found:
        raise ValueError(f"no column {given or ' or '.join(usual)}, but {', '.join(names)}; choose "
                         f"one by {flag}")
    return found


def final_answer(cell, is_solution):
    r"""The final answer in a cell of a data set, "" if there is none: what stands behind GSM8K's
    ####, in the last \boxed{}, behind "answer is", or else all of it but of a whole solution."""
    cells = cell if isinstance(cell, list) else [cell]
    if not all(isinstance(x, (str, int, float)) and x == x for x in cells):  # None, a dict, nan
        return ""
    text = ", ".join(map(str, cells))
    if "####" in text:
        return text.rpartition("####")[2].strip()
    if r"\boxed" in text or "answer is" in text:
        return verify.extract_answer(text) or ""
    is_prose = re.search(r"(?:[A-Za-z]{2,}[,.:]? ){3}", text)
    return "" if is_solution and is_prose else text.strip()


def _rows(table, task, args):
    """The rows that have a problem and an answer; what is left out or broken is told."""
    if not (isinstance(table, list) and table and all(isinstance(row, dict) for row in table)):
        raise ValueError("it must be a list of objects, with at least one of them")
    names = list(dict.fromkeys(str(name) for row in table for name in row))
    is_own = _is_own(task, args)
    asked = _columns("--problem-column", is_own and args.problem_column, PROBLEM, names, task)
    answered = _columns("--answer-column", is_own and args.answer_column, ANSWER, names, task)
    system, chat = args.system_prompt.strip(), not args.no_chat_template
    rows, broken = [], []
    for number, row in enumerate(table, 1):
        cells = [row.get(name) for name in asked]
        problems = [str(x).strip() for x in cells if isinstance(x, (str, int, float))]
        answers = [final_answer(row.get(name), name.lower() == "solution") for name in answered]
        prompt, answer = next(filter(None, problems), ""), next(filter(None, answers), "")
        if prompt and answer:
            rows.append({"task": task, "prompt": prompt, "answer": answer,
                         "system_prompt": system, "chat": chat})
            broken += [] if verify.is_readable(answer) else [f"{answer} (row {number})"]
    if not rows:
        raise ValueError(f"no row has a text in {' or '.join(asked)} and an answer in "
                         f"{' or '.join(answered)}")
    if len(rows) < len(table):
        note(f"{task}: {len(table) - len(rows)} of {len(table)} rows are left out, as they have no "
             f"text in {' or '.join(asked)} or no answer in {' or '.join(answered)}")
    if broken:
        note(f"{task}: {len(broken)} broken answers, which few responses will equal, such as "
             f"{', '.join(broken[:3])}")
    return rows
