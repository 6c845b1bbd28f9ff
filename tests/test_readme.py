"""README is part of the program: its commands run, and what it names exists."""

import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import eval as evaluation
import tasks
import train
from tasks import problems

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("&& ")[-1]
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def command(start):
    return shlex.split(next(line for line in COMMANDS if line.startswith(start)))


def test_the_main_command_at_a_tiny_budget(tmp_path):
    words = command("python train.py")
    assert words[0] == "python"
    small = (
        "--steps 2 --base-steps 2 --prompts-per-step 2 --group-size 4 --minibatches 1 --min-lag 1 "
        f"--snapshot-every 1 --eval-problems 2 --eval-samples 2 --out {tmp_path / 'run'}"
    )
    done = subprocess.run(
        [sys.executable, *words[1:], *shlex.split(small)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "THINKING_SEEDS_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == "thinking_seeds"
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    for name in ("config.json", "metrics.jsonl", "samples.jsonl", "curves.png", "model"):
        assert name in kept and f"`{name}" in README


def test_the_other_commands_and_flags_exist(monkeypatch):
    monkeypatch.setattr(train.checkpoint, "flags", lambda p, argv, args: args)  # of a run elsewhere
    scripts = {"train.py": train.parse_args, "eval.py": evaluation.parse_args}
    for words in map(shlex.split, COMMANDS):
        if words[:1] == ["torchrun"]:
            assert words[1:3] == ["--nproc_per_node", "2"]
            words = ["python", *words[3:]]
        if words[:1] == ["python"] and words[1] in scripts:
            scripts[words[1]](words[2:])
        elif words[:1] == ["python"] and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), words[1]
    assert command("python -m pytest") == ["python", "-m", "pytest", "-q", "tests"]
    known = {
        flag
        for module in (train, evaluation)
        for flag in re.findall(r'"(--[a-z0-9-]+)"', Path(module.__file__).read_text())
    } | {
        flag
        for path in (ROOT / "runs.py", ROOT / "tasks/sets.py", *ROOT.glob("experiments/*.py"))
        for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())
    }
    others = r"pip install [^&\n]*|--nproc_per_node|--shutdown-timeout"
    own = re.sub(others, "", README)
    named = set(re.findall(r"(?<![\w-])(--[a-z]+(?:-[a-z]+)*)", own))
    assert named and named <= known, named - known


def test_the_map_names_every_file():
    table = README.split("## The files")[1].split("##")[0]
    listed = set(re.findall(r"^\| `([\w/.]+)` \|", table, re.MULTILINE))
    assert all((ROOT / name).exists() for name in listed)
    assert {path.name for path in ROOT.glob("*.py")} < listed  # tasks/ may hold tasks of your own


def test_every_link_within_it_has_a_heading():
    headings = re.findall(r"^#+ (.*)", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([\w-]+)\)", README)
    assert links and {*links} <= anchors


def test_the_methods_table_is_complete():
    table = README.split("## Methods")[1].split("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(train.METHODS)


def test_the_task_of_your_own_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("THINKING_SEEDS_CACHE", str(tmp_path / "cache"))
    module, line = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(module.strip().splitlines()) <= 24  # "twenty lines", its docstring and imports aside
    reverse = types.ModuleType("reverse")
    exec(module, reverse.__dict__)
    monkeypatch.setattr(problems, "TASKS", dict(problems.TASKS))
    monkeypatch.setattr(tasks, "reverse", reverse, raising=False)
    exec(line, dict(vars(problems)))
    rows = {split: problems.load_problems("reverse", split, 50, 0) for split in ("train", "test")}
    assert problems.reward("704", {"task": "reverse", "answer": "704"}) == 1.0
    assert not {r["prompt"] for r in rows["train"]} & {r["prompt"] for r in rows["test"]}
    small = "--steps 1 --base-steps 1 --prompts-per-step 2 --group-size 2 --minibatches 1"
    assert train.main(shlex.split(
        f"--task reverse {small} --eval-problems 2 --eval-samples 2 --out {tmp_path / 'run'}"
    )) == 0
