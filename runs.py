"""A run's folder, and how the scripts talk to the person who started them.

    config.json     every resolved flag, the versions, the git commit
    metrics.jsonl   a line per training step and per evaluation, on disk as soon as it is known
    samples.jsonl   what was sampled
    model/          the trained policy and its tokenizer, for AutoModelForCausalLM.from_pretrained
    curves.png      drawn from metrics.jsonl
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import huggingface_hub
import torch
import transformers

# ---------------------------------------------------------------------- what the user gets to see


def fail(message):
    """Ends the program with one line: what was wrong, the value seen, what to do."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr)
    raise SystemExit(2)


def note(text):
    """Tells the user of what is amiss, but no reason to stop."""
    print(f"note: {text}", file=sys.stderr)


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
    add("--model", default="tiny", help="folder or Hub id; tiny: the task's own base policy")
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
    """Yields a list that is empty until Ctrl-C is pressed; the loop then ends after its step.
    A second Ctrl-C ends it at once."""
    asked = []

    def handle(signum, frame):
        asked.append(signum)
        signal.signal(signum, signal.default_int_handler)
        print("\nCtrl-C: finishing this step; once more stops at once", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def main(function):
    """Runs a script's main function; Ctrl-C where nothing else expects it is a line as well."""
    for library in (transformers, huggingface_hub):  # what matters is told by us
        library.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        sys.exit(function())
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)


# --------------------------------------------------------------------------------- the folder


@contextlib.contextmanager
def new_folder(folder, config):
    """A new folder for a run (a Path), with config.json in it. Fails where there is something.

    A run that ends before it has written a row (no such model, Ctrl-C in the warm-up) takes its
    folder away again, so that the same command can be repeated.
    """
    folder = Path(folder)
    packages = ("torch", "transformers", "datasets", "sympy", "tqdm")
    versions = {"python": sys.version.split()[0], **{p: version(p) for p in packages}}
    config = {**config, "versions": versions, "git_commit": _git_commit()}
    try:
        folder.mkdir(parents=True, exist_ok=True)  # an empty folder is as good as none
        if any(path.name != "config.json" for path in folder.iterdir()):
            raise FileExistsError(0, "there is something in it")
        with open(folder / "config.json", "x", encoding="utf-8") as file:
            file.write(json.dumps(config, indent=2) + "\n")  # of two runs at once, one fails here
    except OSError as error:
        fail(f"--out {folder} cannot be used ({error.strerror}); no run is overwritten: name "
             "another folder, or remove what is there")
    try:
        yield folder
    finally:
        if [path.name for path in folder.iterdir()] == ["config.json"]:
            (folder / "config.json").unlink()
            with contextlib.suppress(OSError):  # not a mounted volume, say
                folder.rmdir()


def append(path, row):
    """Adds a row to a JSONL file. ValueError for nan and infinity, which JSON does not have."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")


def draw_curves(folder):
    """curves.png from a run's metrics.jsonl; returns its path, or why there is none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "none, since matplotlib is not installed (pip install matplotlib)"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
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
    figure.savefig(folder / "curves.png", dpi=110)
    return folder / "curves.png"


def _git_commit():
    """The commit that the code stands at, with -dirty if changed since; None without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--match=NOTHING"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() or None
