"""A training that was stopped, or killed at any moment, goes on as if nothing had been.

    checkpoint-N/   policy.safetensors, optimizer.safetensors, a snapshot-M.safetensors for each in
                    the ring, and state.json: what N steps have made, and the next one begins with

A checkpoint is written beside its place, synced to the disk, and only then moved there, which is a
single step; the one before is kept until then. The rows that metrics.jsonl and samples.jsonl have
of later steps are cut off, since those steps are made again: none is missing, none is there twice.
There is no state of random generators or of data to keep: what a step draws, and from what, is a
function of (rng seed, step), see rollout.stream and problems_of_step.
"""

import contextlib
import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import runs
from seeds import Ring, weights_of

FORMAT = 1  # another one is refused


def flags(parser, argv, args):
    """The flags of the run that --resume names, from its config.json. Those in argv must agree, but
    for --steps, which may grow."""
    folder, path = args.resume, Path(args.resume) / "config.json"
    extra = {"seeded_rows", "ranks", "versions", "git_commit", "before"}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if strange := config.keys() - extra ^ vars(args).keys():
            runs.fail(f"{path} is not a training's, or of another version: only one of the two "
                      f"knows the flag {min(strange)}. Resume it by the version that began it")
    except OSError as error:
        runs.fail(f"--resume {folder}: there is no run ({error}); give the folder with config.json")
    except (ValueError, AttributeError) as error:
        runs.fail(f"{path} is broken ({error}). If the run was killed before its first step, there "
                  "is nothing to resume: remove the folder, and start again")
    config |= {"out": folder, "resume": folder}
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
             for name, value in config.items()
             if name not in extra and value is not None and value is not False]
    given = sys.argv[1:] if argv is None else argv
    saved, args = parser.parse_args(words), parser.parse_args([*words, *given])
    if Path(args.out).resolve() == Path(folder).resolve():
        args.out = folder
    for name, value in vars(saved).items():
        now, flag = getattr(args, name), f"--{name.replace('_', '-')}"
        if isinstance(value, str) and value != config[name]:  # the name of a Hub id, until now
            runs.fail(f"{flag} {config[name]}, as {path} has it, is {value} here: resume from "
                      "another directory")
        if now != value and not (name == "steps" and now > value):
            runs.fail(f"{flag} {now}: the run in {folder} has {value}; beside --resume only "
                      "--steps may differ, and grow")
    return args


def save(folder, step, policy, optimizer, ring, state):
    """checkpoint-`step`, in place of an older one. state: a dict for JSON."""
    if not all(weight.isfinite().all() for weight in weights_of(policy).values()):
        runs.fail(f"after {step} steps the weights are not finite, and not saved; start again with "
                  "a lower --learning-rate")
    files = {"policy": weights_of(policy), "optimizer": {
        f"{i}.{name}": tensor for i, values in optimizer.state_dict()["state"].items()
        for name, tensor in values.items()}}
    files |= {f"snapshot-{taken}": weights for taken, weights in ring.snapshots} if ring else {}
    with runs.writing(folder):  # no checkpoint without the rows before it
        for name in ("config.json", "metrics.jsonl", "samples.jsonl", "."):
            runs.sync(folder / name)
    with contextlib.suppress(OSError):  # who may go through a folder may not always read it
        runs.sync(folder / "..")
    with runs.whole_folder(folder / f"checkpoint-{step}") as new:
        for name, tensors in files.items():
            tensors = {key: tensor.contiguous() for key, tensor in tensors.items()}
            save_file(tensors, new / f"{name}.safetensors")
        state = {"format": FORMAT, "step": step, **state, "files": [*files]}
        (new / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    _tidy(folder)


def save_batch(path, batch):
    """The tensors of a batch in a file, whose path is returned: Batch(**load_file(it))."""
    path = path.with_suffix(".safetensors")
    with runs.writing(path):
        fields = {name: value for name, value in vars(batch).items() if value is not None}
        save_file({name: value.contiguous() for name, value in fields.items()}, path)
    return path


def restore(folder, policy, optimizer, ring):
    """Puts back what save had; returns its state, with "step", or {} where there is no checkpoint.

    The ring may be None, as for save. ValueError if the newest checkpoint is not whole, has another
    format, or is of another model.
    """
    if not (whole := _whole(folder)):
        return {}
    path = whole[-1]
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"it has format {state['format']}, this version has {FORMAT}")
        if [state["step"], {*state["files"]}] != [
                _number(path), {file.stem for file in path.glob("*.safetensors")}]:
            raise ValueError("its state.json is not of this step, or not of these files")
        for name, least in ("step", 0), ("skipped", 0), ("micro_batch", 1):
            if type(value := state.get(name)) is not int or value < least:
                raise ValueError(f"its state.json has {name} {value!r}")
        files = {name: load_file(path / f"{name}.safetensors") for name in state["files"]}
        _put_back(files, state, policy, optimizer, ring)
        return state
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        before = whole[-2] if whole[1:] else "step 0, and trains anew"
        raise ValueError(f"{path} cannot be resumed from: {error}; if it is removed, --resume goes "
                         f"on from {before}") from error


def ring_of(folder):
    """The ring in a run's last checkpoint, the step that it stands at, and the run's flags.
    ValueError, which names the file, if there is none."""
    path = Path(folder) / "config.json"
    try:
        config = Namespace(**json.loads(path.read_text(encoding="utf-8")))
        sizes = config.ring_size, config.snapshot_every, config.min_lag
        path = (_whole(Path(folder)) or [Path(folder)])[-1]
        if not (files := sorted(path.glob("snapshot-*.safetensors"), key=_number)):
            raise ValueError("it has no snapshots")
        ring, step = Ring(*sizes), _number(path)
        for path in files:
            ring.snapshots.append((_number(path), load_file(path)))
        return ring, step, config
    except (OSError, ValueError, AttributeError, TypeError, SafetensorError) as error:
        raise ValueError(f"{path}: {error}; give the folder of a training that kept a ring "
                         "(--ring-size)") from error


def _number(path):
    return int(path.stem.rpartition("-")[2])


def _put_back(files, state, policy, optimizer, ring):
    weights, parameters = weights_of(policy), [*policy.parameters()]
    if not files["optimizer"] and state["skipped"] >= state["step"]:
        parameters = []  # every update was skipped, so there are no moments
    shapes = dict.fromkeys(files, {name: tensor.shape for name, tensor in weights.items()})
    shapes["optimizer"] = {f"{i}.{name}": () if name == "step" else p.shape for name in
                           ("step", "exp_avg", "exp_avg_sq") for i, p in enumerate(parameters)}
    for name, tensors in files.items():
        if {key: tensor.shape for key, tensor in tensors.items()} != shapes[name]:
            raise ValueError(f"its {name} is damaged, or of another model than --model opens now")
    saved = files.pop("policy")
    for name, tensor in weights.items():
        tensor.copy_(saved[name])
    moments = {}
    for key, tensor in files.pop("optimizer").items():
        i, name = key.split(".")
        # a copy: what load_file gives is the file itself, which the next save removes
        moments.setdefault(int(i), {})[name] = tensor.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for name, weights in files.items():
        weights = {key: tensor.clone() for key, tensor in weights.items()}
        ring.snapshots.append((int(name.removeprefix("snapshot-")), weights))


def cut_back(folder, step, eval_every):
    """Takes out of a folder what a killed process left: older checkpoints, and the rows of `step`
    and later, but for an evaluation before it; returns their number. ValueError, and all as it was,
    if one before is missing."""
    kept, cut, evals = {}, 0, {*range(0, step, eval_every or step or 1)}
    for name, kinds in ("metrics.jsonl", ["train"]), ("samples.jsonl", [None, None]):
        try:
            every = runs.rows_of(folder / name)
            rows = [row for row in every
                    if row["step"] < step or row["step"] == step and row.get("kind") == "eval"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / name} has a row that is none of a training's") from error
        made = [(row.get("kind"), row["step"]) for row in rows]
        steps = [(kind, i) for i in range(step) for kind in kinds]
        if [row for row in made if row[0] != "eval"] != steps:
            raise ValueError(f"{folder / name} does not have every step before {step}, where the "
                             "checkpoint stands, in order: put it back as it was")
        kept[name], cut = rows, cut + len(every) - len(rows)
        evals -= {i for kind, i in made if kind == "eval"}
    if evals:
        raise ValueError(f"{folder / 'metrics.jsonl'} does not have the evaluation of step "
                         f"{min(evals)}: put it back as it was")
    for name, rows in kept.items():
        with runs.writing(folder / name), runs.whole_file(folder / name) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    _tidy(folder)
    return cut


def _tidy(folder):
    with runs.writing(folder):
        for path in [*_whole(folder)[:-1], *folder.glob("checkpoint-*.unfinished")]:
            shutil.rmtree(path)
        (folder / "config.json.unfinished").unlink(missing_ok=True)


def _whole(folder):
    """The checkpoints in a folder, oldest first, without one that is still being written."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    return sorted(found, key=_number)
