"""A run's folder, and how the scripts talk to the person who started them.

    config.json     every resolved flag, the versions, the git commit
    metrics.jsonl   a line per training step and per evaluation, on disk as soon as it is known
    samples.jsonl   what was sampled
    model/          the trained policy and its tokenizer, for AutoModelForCausalLM.from_pretrained
    curves.png      drawn from metrics.jsonl
"""

import argparse
import json
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

# ------------------------------------------------------------------------- what the user gets to see


def fail(message):
    """Ends the program with one line: what was wrong, the value seen, what to do."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr)
    raise SystemExit(2)


def or_fail(function, *args, **kwargs):
    """function(...), its OSError or ValueError told in one line.

    For what depends on the user's input: a path that is not there, a split too small. Anything else
    is a bug of ours and keeps its traceback.
    """
    try:
        return function(*args, **kwargs)
    except (OSError, ValueError) as error:
        fail(error)


class Parser(argparse.ArgumentParser):
    """argparse without the page of usage in front of an error, and with defaults in the help."""

    def __init__(self, **kwargs):
        super().__init__(
            formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False, **kwargs
        )

    def error(self, message):
        fail(f"{message} (--help lists the flags)")


def at_least(args, bound, names):
    """Fails for the first of the flags that is below the bound (or nan); None is "not given"."""
    for name in names.split():
        value = getattr(args, name)
        if value is not None and not value >= bound:
            fail(f"--{name.replace('_', '-')} {value}: must be at least {bound}")


def pick_device(name, threads):
    """Sets the number of CPU threads and returns the name of a device that is there."""
    if threads is not None:
        torch.set_num_threads(threads)
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        fail(f"--device {name}: cannot be used ({str(error).splitlines()[0]}); --device cpu always can")
    return name


class StopOnInterrupt:
    """Ctrl-C once: `asked` becomes true and the loop ends after its step. Twice: at once."""

    def __enter__(self):
        self.asked = False
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, signum, frame):
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nCtrl-C: finishing this step; once more to stop at once", file=sys.stderr)

    def __exit__(self, *exception):
        signal.signal(signal.SIGINT, self._previous)


def main(function):
    """Runs a script's main function; Ctrl-C where nothing catches it is a line, not a traceback."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # the bars that matter are ours
    try:
        sys.exit(function())
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)


# ------------------------------------------------------------------------------------- the folder


class Run:
    """A new folder with config.json in it; use it as a context manager.

    Fails if anything is in the folder already. A run that ends before its first metrics row (a wrong
    model, Ctrl-C in the warm-up) takes its folder away again, so the same command can be repeated.
    """

    def __init__(self, folder, config):
        self.folder = Path(folder)
        self.made = not self.folder.exists()
        self.rows = 0
        config = {**config, "versions": _versions(), "git_commit": _git_commit()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise FileExistsError
            # "x": of two runs started at once on one folder, one is told
            with open(self.folder / "config.json", "x", encoding="utf-8") as file:
                json.dump(config, file, indent=2)
            self._metrics = open(self.folder / "metrics.jsonl", "x", encoding="utf-8")
            self._samples = open(self.folder / "samples.jsonl", "x", encoding="utf-8")
        except FileExistsError:
            fail(f"--out {folder} exists already, and no run is overwritten: name another or remove it")
        except OSError as error:
            fail(f"--out {folder}: cannot be written ({error.strerror}); name another folder")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._metrics.close()
        self._samples.close()
        if not self.rows:
            for name in ("config.json", "metrics.jsonl", "samples.jsonl"):
                (self.folder / name).unlink()
            if self.made:
                self.folder.rmdir()

    def log(self, kind, row):
        """Appends a row to metrics.jsonl. A non-finite number is an error, not an unreadable file."""
        _append(self._metrics, {"kind": kind, **row})
        self.rows += 1

    def sample(self, row):
        """Appends a row to samples.jsonl."""
        _append(self._samples, row)

    def save_model(self, model, tokenizer):
        model.save_pretrained(self.folder / "model")
        tokenizer.save_pretrained(self.folder / "model")

    def draw_curves(self):
        """curves.png from metrics.jsonl, or a line that says why there is none."""
        try:
            import matplotlib
        except ImportError:
            print("no curves.png: matplotlib is not installed (pip install matplotlib)")
            return
        matplotlib.use("Agg")  # a file, on any machine, with or without a screen
        from matplotlib import pyplot

        with open(self.folder / "metrics.jsonl", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        passes = [k for k in next((r for r in rows if r["kind"] == "eval"), {}) if "@" in k and "_" not in k]
        panels = {
            "reward": ("train", ["reward", "reward_seeded", "reward_unseeded"]),
            "entropy, nats per token": ("train", ["entropy", "entropy_prefix", "entropy_continuation"]),
            "share of tokens clipped": (
                "train", ["clip_frac_low", "clip_frac_high", "clip_frac_low_prefix", "clip_frac_high_prefix"]
            ),
            "held-out pass@k, without seeds": ("eval", passes),
        }
        figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharex=True, layout="constrained")
        for axis, (title, (kind, keys)) in zip(axes.flat, panels.items(), strict=True):
            for key in keys:
                points = [(r["step"], r[key]) for r in rows if r["kind"] == kind and r[key] is not None]
                if points:
                    axis.plot(*zip(*points, strict=True), label=key, marker="o" if kind == "eval" else None)
            axis.set(title=title, xlabel="step")
            if axis.lines:
                axis.legend()
        figure.savefig(self.folder / "curves.png", dpi=110)
        pyplot.close(figure)


def _append(file, row):
    file.write(json.dumps(row, allow_nan=False) + "\n")
    file.flush()  # a run that dies keeps every row that it had


def _versions():
    packages = ("torch", "transformers", "datasets", "sympy", "tqdm")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _git_commit():
    """The commit this code stands at, '-dirty' if changed since; None outside a git checkout."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--match=NOTHING"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None
