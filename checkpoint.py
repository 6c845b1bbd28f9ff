"""A training that was stopped, or killed at any moment, goes on as if nothing had been.

    checkpoint-N/   policy.safetensors, optimizer.safetensors, a snapshot-M.safetensors for each in
                    the ring, and state.json: what N steps have made, and the next one begins with

A checkpoint is written beside its place, synced to the disk, and only then moved there, which is a
single step; the one before is kept until then. The rows that metrics.jsonl and samples.jsonl have
of later steps are cut off, since those steps are made again: none is missing, none is there twice.
There is no state of random generators or of data to keep: what a step draws, and from what, is a
function of (rng seed, step), see rollout.stream and problems_of_step.
"""

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import runs
from seeds import weights_of

FORMAT = 1  # another one is refused


def flags(parser, argv, args):
    """The flags of the run that --resume names, from its config.json. Those in argv must agree, but
    for --steps, which may grow."""
    folder = args.resume
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        saved = {name: config[name] for name in vars(args)} | {"out": folder, "resume": folder}
    except OSError as error:
        runs.fail(f"--resume {folder}: there is no run ({error})")
    except (ValueError, TypeError) as error:
        runs.fail(f"{path} is broken ({error}). If the run was killed before its first step, there "
                  "is nothing to resume: remove the folder, and start again")
    except KeyError as error:
        runs.fail(f"{path} has no flag {error}: it is of another version, and cannot be resumed")
    parser.set_defaults(**saved)
    args = parser.parse_args(argv)
    for name, value in saved.items():
        given = getattr(args, name)
        if given != value and not (name == "steps" and given > value):
            runs.fail(f"--{name.replace('_', '-')} {given}: the run in {folder} has {value}; "
                      "beside --resume only --steps may differ, and grow")
    return args


def save(folder, step, policy, optimizer, ring, state):
    """checkpoint-`step`, in place of an older one. state: a dict for JSON."""
    files = {"policy": weights_of(policy), "optimizer": {
        f"{i}.{name}": tensor for i, values in optimizer.state_dict()["state"].items()
        for name, tensor in values.items()}}
    files |= {f"snapshot-{taken}": weights for taken, weights in ring.snapshots} if ring else {}
    for name in ("metrics.jsonl", "samples.jsonl"):  # no checkpoint without the rows before it
        runs.sync(folder / name)
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
    for path in _whole(folder)[-1:]:
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if state["format"] != FORMAT:
                raise ValueError(f"it has format {state['format']}, this version has {FORMAT}")
            files = {name: load_file(path / f"{name}.safetensors") for name in state["files"]}
            _put_back(files, policy, optimizer, ring)
            return state
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} cannot be resumed from: {error}") from error
    return {}


def _put_back(files, policy, optimizer, ring):
    saved, weights = files.pop("policy"), weights_of(policy)
    if {n: w.shape for n, w in saved.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError("it is of another model than --model opens now")
    for name, tensor in weights.items():
        tensor.copy_(saved[name])
    moments = {}
    for key, tensor in files.pop("optimizer").items():
        i, name = key.split(".")
        moments.setdefault(int(i), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for name, weights in files.items():
        ring.snapshots.append((int(name.removeprefix("snapshot-")), weights))


def cut_back(folder, step):
    """Takes out of a folder what a killed process left: older checkpoints, and the rows of `step`
    and later, but for an evaluation before it. ValueError if an earlier row is missing."""
    _tidy(folder)
    for path in (folder / "metrics.jsonl", folder / "samples.jsonl"):
        kept = [row for row in runs.rows_of(path)
                if row["step"] < step or row["step"] == step and row.get("kind") == "eval"]
        with runs.writing(path), runs.whole_file(path) as file:
            file.writelines(json.dumps(row) + "\n" for row in kept)
    rows = runs.rows_of(folder / "metrics.jsonl")
    if [row["step"] for row in rows if row["kind"] == "train"] != [*range(step)]:
        raise ValueError(f"{folder / 'metrics.jsonl'} lacks steps before {step}, where the "
                         "checkpoint stands: put it back as it was")


def _tidy(folder):
    with runs.writing(folder):
        for path in [*_whole(folder)[:-1], *folder.glob("checkpoint-*.unfinished")]:
            shutil.rmtree(path)


def _whole(folder):
    """The checkpoints in a folder, oldest first, without one that is still being written."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[11:]))
