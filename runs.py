"""A run's folder, and how the scripts talk to the person who started them.

    config.json     every resolved flag, the versions, the git commit
    metrics.jsonl   a line per training step and per evaluation, on disk as soon as it is known
    samples.jsonl   what was sampled
    checkpoint-N/   what a training needs to go on after N steps, see checkpoint.py
    model/          the trained policy and its tokenizer, for AutoModelForCausalLM.from_pretrained
    curves.png      drawn from metrics.jsonl
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import huggingface_hub
import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# ---------------------------------------------------------------------- what the user gets to see


def fail(message):
    """Ends the program with one line: what was wrong, the value seen, what to do."""
    _say(f"error: {' '.join(str(message).split())}")
    raise SystemExit(2)


def note(text):
    """Tells the user of what is amiss, but no reason to stop."""
    _say(f"note: {text}")


def _say(line):
    tqdm.write(line, file=sys.stderr)  # not into the line of a progress bar


def or_fail(function, *args, **kwargs):
    """function(...), with its OSError or ValueError told in one line.

    For what depends on the user's input: a path that is not there, a split that is too small.
    Anything else is a bug of ours and keeps its traceback.
    """
    try:
        return function(*args, **kwargs)
    except (OSError, ValueError) as error:
        fail(error)


def parser(description):
    """argparse with the flags that the scripts share, and no page of usage at an error."""
    form = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)
    p.error = lambda message: fail(f"{message} (--help lists the flags)")
    count, gpu = number(int, 1), "cuda" if torch.cuda.is_available() else "cpu"
    add = p.add_argument
    add("--model", default="tiny", type=local, help="folder, Hub id; tiny: the task's own base")
    add("--base-steps", type=count, default=400, help="supervised steps of the tiny policy")
    add("--max-new-tokens", type=count, help="cap on a response; None: the task's, for math 1024")
    add("--out", help="folder to make; None: in runs/, named by the main flags")
    add("--rng-seed", type=int, default=0, help="of the random generators")
    add("--device", type=device, default=gpu, help="cpu, cuda, cuda:1, ...")
    add("--dtype", choices=["float32", "bfloat16"], help="of forward passes, while weights are "
        "float32; None: bfloat16 on a GPU, float32 on a CPU")
    add("--threads", type=count, default=torch.get_num_threads(), help="of the CPU")
    return p


def number(kind, low, high=float("inf")):
    """An argparse type: an int or a float from low to high, never nan or infinite."""

    def parse(text):
        value = kind(text)
        if not low <= value <= high or value == float("inf"):
            bounds = f"{low} or more" + (f", {high} or less" if high < float("inf") else "")
            raise argparse.ArgumentTypeError(f"{text} must be {bounds}")
        return value

    parse.__name__ = "number" if kind is float else "whole number"  # for "invalid ... value"
    return parse


def local(name):
    """An argparse type: a path that is there made absolute, anything else (tiny, a Hub id) as it
    is, so that a run can be resumed from another folder."""
    return str(Path(name).absolute()) if name != "tiny" and Path(name).exists() else name


def device(name):
    """An argparse type: the name of a device that works."""
    try:
        torch.zeros(1, device=name).tolist()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be used, cpu can") from error
    return name


def usual_dtype(device):
    return "bfloat16" if device.startswith("cuda") else "float32"


def precision(args):
    """A context in which a model multiplies matrices in --dtype; its weights and sums are float32.

    The cache is off: it would keep the weights in bfloat16 beyond an optimizer step.
    """
    kind, is_on = torch.device(args.device).type, args.dtype == "bfloat16"
    return torch.autocast(kind, torch.bfloat16, is_on, cache_enabled=False)


@contextlib.contextmanager
def finish_step_on_interrupt():
    """Yields a list that gets the signal's number on Ctrl-C or SIGTERM; the loop then ends after
    its step. A second signal ends it at once."""
    signals = []

    def handle(signum, frame):
        if signals:
            _stop(signum, frame)
        signals.append(signum)
        _say(f"{signal.Signals(signum).name}: finishing this step; once more stops at once")

    previous = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _stop(signum, frame):
    _say(f"stopped by {signal.Signals(signum).name}")
    raise SystemExit(128 + signum)


@contextlib.contextmanager
def explained(advice):
    """What torch can fail with through no bug of ours, told in one line: out of memory, with what
    to do about it, and logits that are not finite."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if "probability tensor contains" in str(error):  # what torch.multinomial says
            fail("the model's logits are not finite, so nothing can be sampled; start again with a "
                 "lower --learning-rate")
        if not is_out_of_memory(error):
            raise
        fail(f"out of memory: {advice}")


def is_out_of_memory(error):
    # On a CPU torch has no type of its own for it.
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


def main(function):
    """Runs a script's main function; a signal where nothing else expects it is a line as well."""
    for library in (transformers, huggingface_hub):  # what matters is told by us
        library.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(function())
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        fail("another process of this training has ended; its own message tells why, and one that "
             "was killed, as for want of memory, has none; go on by --resume")


# ------------------------------------------------------------------------- several processes


def rank():
    """Which process of torchrun's this is; 0, which alone writes, without torchrun."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value):
    """[the value of rank 0, of rank 1, ...] on every rank; anything that pickles, on the CPU."""
    values = [value] * ranks()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def add_up(tensors):
    """Replaces each tensor by its sum over all ranks, the same to the last bit on each."""
    for tensor in tensors if dist.is_initialized() else ():
        dist.all_reduce(tensor)


# --------------------------------------------------------------------------------- the folder


@contextlib.contextmanager
def new_folder(folder, config):
    """A new folder for a run (a Path), with config.json in it. Fails where there is something.

    A run that ends before it has written a row (no such model, Ctrl-C in the warm-up) takes its
    folder away again, so that the same command can be repeated.
    """
    folder, text = Path(folder), _config_text(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # an empty folder is as good as none
        if any(path.name != "config.json" for path in folder.iterdir()):
            raise FileExistsError(0, "there is something in it")
        with open(folder / "config.json", "x", encoding="utf-8") as file:
            file.write(text)  # of two runs at once, one fails here
    except OSError as error:
        fail(f"--out {folder} cannot be used ({error.strerror}); no run is overwritten: go on with "
             "a training by --resume, name another folder, or remove what is there")
    try:
        with alone_in(folder):
            yield folder
    finally:
        with contextlib.suppress(OSError):  # not a mounted volume, say
            if [path.name for path in folder.iterdir()] == ["config.json"]:
                (folder / "config.json").unlink()
                folder.rmdir()


def renew_config(folder, **changes):
    """What is new since a run was begun (--steps, versions, the commit) goes into its config.json,
    and how it was stays there, as `before`."""
    before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = json.loads(_config_text({**before, **changes}))
    if config != before:
        with writing(folder), whole_file(folder / "config.json") as file:
            file.write(json.dumps({**config, "before": before}, indent=2) + "\n")
    for name in ("versions", "ranks"):
        if config.get(name) != before.get(name):
            note(f"{name} were {before.get(name)} when {folder} was begun: what follows is not bit "
                 "for bit what it would have been")


def _config_text(config):
    packages = ("torch", "transformers", "datasets", "sympy", "tqdm")
    versions = {"python": sys.version.split()[0], **{p: version(p) for p in packages}}
    config = {**config, "versions": versions, "git_commit": _git_commit()}
    return json.dumps(config, indent=2) + "\n"


@contextlib.contextmanager
def alone_in(folder):
    """The folder of a run, as a Path, to work in: alone, or it fails. The lock that sees to it ends
    with the process, however that ends."""
    if fcntl is None:
        yield Path(folder)
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"{folder} is in use by another process: wait for its end, or stop it")
    except OSError:
        pass  # a file system without locks
    try:
        yield Path(folder)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path):
    """A disk that is full or read-only is told in one line, whatever library finds out."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and "os error" not in str(error):
            raise
        fail(f"{path} cannot be written: {error}; make room for it there. What was written before "
             "is as it was, and a training goes on by --resume")


def append(path, row):
    """Adds a row to a JSONL file. ValueError for nan and infinity, which JSON does not have."""
    if rank() == 0:
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def rows_of(path):
    """The rows of a JSONL file, without a last one that was cut off; [] if there is no file.
    ValueError if another one is broken."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            if number < len(lines):  # the last one ended without a line break
                raise ValueError(f"{path}, line {number} is broken ({error}): mend it") from error
    return rows


@contextlib.contextmanager
def whole_folder(path):
    """A folder to write to. What is at `path` stays until the new one is whole, and on the disk."""
    new = path.with_name(f"{path.name}.unfinished")
    with writing(path):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            yield new
            for file in [*new.rglob("*"), new]:
                sync(file)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)  # the disk may be full of it
            raise
        if path.exists():
            shutil.rmtree(path)
        new.rename(path)
        sync(path.parent)


@contextlib.contextmanager
def whole_file(path):
    """The same for one file: a text file to write to."""
    new = path.with_name(f"{path.name}.unfinished")
    with open(new, "w", encoding="utf-8") as file:
        yield file
    sync(new)
    new.rename(path)
    sync(path.parent)


def sync(path):
    """Waits until a file or folder, if there is one, is on the disk."""
    if path.exists() and os.name != "nt":  # Windows cannot do this to a folder
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def draw_curves(folder):
    """curves.png from a run's metrics.jsonl; returns its path, or why there is none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "none, since matplotlib is not installed (pip install matplotlib)"
    rows = rows_of(folder / "metrics.jsonl")
    passes = [key for key in rows[0] if key.startswith("pass@") and "_" not in key]
    clip = ["clip_frac_low", "clip_frac_high"]
    panels = {
        "reward": ["reward", "reward_seeded", "reward_unseeded"],
        "entropy, nats per token": ["entropy", "entropy_effective", "entropy_prefix"],
        "share of tokens clipped": clip + [f"{key}_prefix" for key in clip],
        "pass@k, held out, without seeds": passes,
    }
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axis, (title, keys) in zip(figure.subplots(2, 2).flat, panels.items()):
        kind = "eval" if keys is passes else "train"
        for key in keys:  # None, where there was nothing to average, is a gap in the line
            points = [(row["step"], row[key]) for row in rows if row["kind"] == kind]
            axis.plot(*zip(*points), label=key)
        axis.set(title=title, xlabel="step")
        axis.legend(fontsize="small", framealpha=0.4)
    with writing(folder / "curves.png"):
        figure.savefig(folder / "curves.png", dpi=110)
    return folder / "curves.png"


def _git_commit():
    """The commit that the code stands at, with -dirty if changed since; None without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--match=NOTHING"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() or None
