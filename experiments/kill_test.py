"""Is a training that was killed and resumed the training that was never killed? And does it grow?

    python experiments/kill_test.py --kills 30 --out runs/kills
    python experiments/kill_test.py --minutes 60 --out runs/soak

The first command trains twice: once undisturbed, and once killed by SIGKILL again and again, while
it loads, steps, evaluates, ends, and above all while it saves; each time it is resumed. Both must
leave the same metrics, samples and weights, bit for bit. The second is the soak: one long training
of the size of the main job, killed and resumed every few minutes, while its memory is recorded.
Flags behind `--` are train.py's: `-- --steps 90 --kl-coef 0`.

A kill tells nothing about a power failure: what a killed process has written, the system still
brings to the disk.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402

TRAIN = [sys.executable, str(Path(__file__).resolve().parent.parent / "train.py")]
# So short a warm-up solves no game, and then rewards alone move nothing: all resumed weights would
# be right by chance. The decay moves them, and the KL to the start then gives every step gradients.
SMALL = (
    "--steps 60 --prompts-per-step 4 --group-size 8 --snapshot-every 2 --min-lag 2 --ring-size 3 "
    "--eval-every 5 --eval-problems 10 --eval-samples 4 --save-every 2 --base-steps 20 "
    "--learning-rate 1e-3 --weight-decay 0.1 --kl-coef 0.1 --threads 1"
).split()
LONG = "--steps 1000000 --save-every 20 --threads 1".split()  # the main job, which never ends
AIMS = "save step save start save evaluation save cut".split()
POLL = 0.001  # seconds: a save of so small a model takes some tens of milliseconds
MOST_GROWTH = 0.02  # of the memory, from the first to the last quarter

# ------------------------------------------------------------------- a training, seen from outside


class Child:
    """A process that begins or resumes the training in a folder, and what that folder tells of it.

    A context manager: whatever ends it, no training stays behind.
    """

    def __init__(self, train, flags, folder):
        self.folder, self.size, self.keys, self.first_row = folder, 0, [], None
        self.look()  # at what earlier processes have left
        # Whether it has cut rows that the last checkpoint had not seen, and when its own first came
        self.has_cut, self.first_row, self.begun = False, None, time.time()
        # In a session of its own: Ctrl-C is for this script, which then ends it. glibc keeps much
        # of what is freed, by chance, unless the size to give back at once is fixed.
        with open(folder.parent / "output.txt", "a") as output:
            self.process = subprocess.Popen(
                begin_or_resume(train, flags, folder), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
                env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"})

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def look(self):
        """Reads metrics.jsonl again, if it has changed."""
        metrics = self.folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if size < self.size:
            self.has_cut = True
        elif size > self.size:
            self.first_row = self.first_row or time.time()
        if size != self.size:
            self.size, self.keys = size, keys(rows(self.folder))

    def wait(self, condition, seconds=float("inf"), poll=POLL):
        """Waits until condition(), for some seconds at most; False if the process is over."""
        until = time.time() + seconds
        while self.process.poll() is None:
            self.look()
            if condition() or time.time() >= until:
                return True
            time.sleep(poll)
        self.look()
        return False

    def step(self):
        """The newest training step that this process knows of, of which rows may be to be cut."""
        return max(steps(self.keys, "train"), default=-1)

    def is_saving(self):
        """A save of this process is unfinished, or has not yet removed the one before it."""
        found = checkpoints(self.folder)
        own = [name for name, changed in found.items() if changed > self.begun]
        several = sum(not name.endswith(".unfinished") for name in found) > 1
        return any(several or name.endswith(".unfinished") for name in own)

    def doing(self, evaluations):
        """A word for what it is at. evaluations: the steps before which there is one."""
        if self.first_row is None:
            return "starting"
        if self.is_saving():
            return "saving"
        kind, step = self.keys[-1]
        if (self.folder / "model").exists() or (kind, step) == ("eval", max(evaluations)):
            return "ending"
        return "evaluating" if kind == "train" and step + 1 in evaluations else "step"


def begin_or_resume(train, flags, folder):
    """The command that brings the training in a folder further, whatever a kill has left there."""
    with contextlib.suppress(OSError, ValueError):
        if config(folder):
            return [*train, "--resume", str(folder)]
    if folder.exists():  # killed before its flags were written: there is nothing to go on from
        if left := [path.name for path in folder.iterdir() if "config.json" not in path.name]:
            raise ValueError(f"{folder} has no whole config.json, but {', '.join(left)}")
        shutil.rmtree(folder)
    return [*train, *flags, "--out", str(folder)]


def config(folder):
    return json.loads((folder / "config.json").read_text())


def checkpoints(folder):
    """{name: when last changed} of the checkpoints, whole or not, in a run's folder."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        with contextlib.suppress(FileNotFoundError):  # removed or renamed meanwhile
            found[path.name] = path.stat().st_mtime
    return found


def newest(folder):
    """The step of the newest whole checkpoint, or None."""
    numbers = [name.removeprefix("checkpoint-") for name in checkpoints(folder)]
    return max((int(number) for number in numbers if number.isdigit()), default=None)


def keys(rows):
    return [(row["kind"], row["step"]) for row in rows]


def steps(keys, kind):
    return [step for each, step in keys if each == kind]


def rows(folder):
    """The whole rows of metrics.jsonl, without what the clock decides."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [{key: value for key, value in json.loads(line).items()
             if not re.match("seconds|tokens_per_second", key)} for line in lines]


def must_end(child, code=0):
    """ValueError unless the process ended, or ends by itself, with this exit code."""
    if (found := child.process.wait()) != code:
        raise ValueError(f"{child.folder}: the training ended with code {found}; its last words "
                         f"are in {child.folder.parent / 'output.txt'}")


# ------------------------------------------------------------------------------- killed, resumed


def reference(train, flags, folder):
    """Trains undisturbed. Returns the seconds from start to first row, of an evaluation, and from
    the last step to the end, and the steps before which there is an evaluation."""
    with Child(train, flags, folder) as child:
        if not child.wait(lambda: child.first_row):
            must_end(child)
        start = time.time() - child.begun
        count = config(folder)["steps"]
        child.wait(lambda: child.step() == count - 1)
        last = time.time()
        must_end(child)
        child.look()
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    evaluation = median(row["seconds"] for row in lines if row["kind"] == "eval")
    times = {"start": start, "evaluation": evaluation, "end": time.time() - last}
    return times, steps(child.keys, "eval")


def aims_of(kills):
    """What each kill is aimed at: the beginning, every other at a save, the end."""
    ends = ["end"] * (kills // 15)
    first = ["folder"] * (kills > 3)
    return first + [AIMS[i % len(AIMS)] for i in range(kills - len(first + ends))] + ends


def wait_for(aim, child, due, times, evaluations, rng):
    """Returns at a moment to kill the process, or when it is over; due: not before this step.

    What it waits for may never come again after the last step, so that is a moment for all.
    """
    last = max(evaluations) - 1

    def wait(condition):
        return child.wait(lambda: child.first_row and (condition() or child.step() >= last))

    seconds = 0
    if aim == "folder":  # which it makes just before it writes its flags
        child.wait(child.folder.exists)
    elif aim == "start":
        seconds = times["start"]
    elif aim == "cut":  # metrics.jsonl, and then samples.jsonl
        child.wait(lambda: child.has_cut or child.first_row)
    elif aim == "save":
        wait(lambda: child.step() >= due and child.is_saving())
        # At once, or a little later, or between the renaming and the removal of the one before
        before, way = newest(child.folder), rng.choice(["once", "later", "renamed"])
        seconds = 0.02 * (way == "later")
        if way == "renamed":
            child.wait(lambda: newest(child.folder) != before, 1)
    elif aim == "evaluation":
        wait(lambda: child.step() >= due and child.doing(evaluations) == "evaluating")
        seconds = 0.8 * times["evaluation"]
    elif aim == "step":
        wait(lambda: child.step() >= due)
        seconds = 0.8 * times["end"]  # longer than a step
    elif newest(child.folder) == last + 1:  # the end, with no step left to wait for
        seconds = 0.8 * (times["start"] + times["end"])
    else:
        wait(lambda: False)
        seconds = 0.8 * times["end"]
    child.wait(lambda: False, rng.uniform(0, seconds))


def kill_and_resume(train, flags, folder, aims, times, evaluations, rng):
    """A training that is killed once for each of aims and then left to end. Returns what each kill
    hit, one row a kill, which are in kills.jsonl beside the folder as well."""
    hit = []
    for i, aim in enumerate(aims):
        due = max(evaluations) * i // len(aims)  # so that it comes further, and none comes too late
        with Child(train, flags, folder) as child:
            wait_for(aim, child, due, times, evaluations, rng)
            if child.process.poll() is not None:
                must_end(child)
                break  # it was faster than the kill
            child.kill()
            child.look()
            if child.first_row:
                times["start"] = min(times["start"], child.first_row - child.begun)
            row = {"kill": i + 1, "aim": aim, "seconds": round(time.time() - child.begun, 3),
                   "hit": child.doing(evaluations), "step": child.step(),
                   "checkpoint": newest(folder)}
        hit.append(row)
        runs.append(folder.parent / "kills.jsonl", row)
        print("kill {kill}, aimed at {aim}: after {seconds:.1f} s, {hit}; newest step {step}, "
              "newest checkpoint {checkpoint}".format(**row), flush=True)
    else:
        with Child(train, flags, folder) as child:
            must_end(child)
    return hit


def compare(folder, other):
    """Yields (what is to be true, whether it is) of a finished run and the one it must equal."""
    mine, wanted, count = rows(folder), rows(other), config(folder)["steps"]
    yield (f"every training step from 0 to {count - 1} once, in order",
           steps(keys(mine), "train") == list(range(count)))
    yield "metrics.jsonl has the rows of the same steps and evaluations", keys(mine) == keys(wanted)
    same = [json.dumps(a) == json.dumps(b) for a, b in zip(mine, wanted)]
    yield "all their values are equal, timings aside", all(same) and len(mine) == len(wanted)
    texts = [(each / "samples.jsonl").read_bytes() for each in (folder, other)]
    yield "samples.jsonl is equal, byte for byte", texts[0] == texts[1]
    weights = [{path.name: path.read_bytes() for path in (each / "model").glob("*.safetensors")}
               for each in (folder, other)]
    yield "the weights of model/ are equal, bit for bit", weights[0] == weights[1] != {}
    # Weights that nothing moves would be equal after any mistake.
    moved = sum((row["grad_norm"] or 0) > 0 for row in wanted if row["kind"] == "train")
    yield f"there is something to lose: {moved} steps had a gradient", 2 * moved > count
    whole = [name for name in checkpoints(folder) if not name.endswith(".unfinished")]
    yield "one checkpoint is left", len(whole) == 1
    unfinished = [path.name for path in folder.rglob("*.unfinished")]
    yield f"nothing unfinished is left {' '.join(unfinished)}".strip(), not unfinished


def kill_test(train, flags, out, aims, rng):
    """The reference run, the killed one, and all that must be true of them: [(what, whether)]."""
    times, evaluations = reference(train, flags, out / "reference")
    print("undisturbed: first row after {start:.1f} s, an evaluation takes {evaluation:.1f} s, "
          "the end {end:.1f} s".format(**times), flush=True)
    hit = kill_and_resume(train, flags, out / "killed", aims, times, evaluations, rng)
    words = [row["hit"] for row in hit]
    print(", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))))
    return [(f"killed {len(hit)} of {len(aims)} times", len(hit) == len(aims)),
            (f"{words.count('saving')} kills hit a save, of {len(aims)}",
             3 * words.count("saving") >= len(aims)),
            *compare(out / "killed", out / "reference")]


# ---------------------------------------------------------------------------------------- the soak


def soak(train, flags, folder, minutes, pauses, rng):
    """Trains for some minutes, killed after each of random pauses (from, to, in minutes), and
    stopped by SIGTERM. Returns the rows of memory.jsonl and the number of kills."""
    started, number, is_last, memory = None, 0, False, []
    while not is_last:
        number += 1
        with Child(train, flags, folder) as child:
            if not child.wait(lambda: child.first_row, poll=0.05):
                must_end(child, None)  # which it never may by itself
            started = started or time.time()  # a warm-up does not count
            first, pause = child.step(), 60 * rng.uniform(*pauses)
            # No process is started so late that SIGTERM would meet its imports.
            is_last = time.time() + pause + 60 * pauses[0] > started + 60 * minutes
            until = started + 60 * minutes if is_last else time.time() + pause
            while not memory or time.time() < until:
                if not child.wait(lambda: time.time() >= until, 5, poll=0.2):
                    must_end(child, None)
                status = Path(f"/proc/{child.process.pid}/status").read_text()
                kib = dict(re.findall(r"(VmRSS|RssAnon):\s+(\d+) kB", status))
                row = {"minute": (time.time() - started) / 60, "process": number,
                       "step": child.step(), "steps_done": child.step() - first,
                       "rss_mib": int(kib["VmRSS"]) / 1024, "anon_mib": int(kib["RssAnon"]) / 1024}
                memory.append(row)
                runs.append(folder.parent / "memory.jsonl", row)
            print(f"minute {(time.time() - started) / 60:.1f}: process {number}, step "
                  f"{child.step()}, {row['rss_mib']:.0f} MiB: {'SIGTERM' if is_last else 'killed'}",
                  flush=True)
            if is_last:
                child.process.terminate()
                must_end(child, 143)
    return memory, number - 1


def steady(memory, flags):
    """The rows after the ring is full, which a resumed process begins with, and after the first
    steps of each process: before, memory must grow."""
    is_full = flags["ring_size"] * flags["snapshot_every"]
    return [row for row in memory if row["step"] >= is_full and row["steps_done"] >= 10]


def quarters(memory):
    """The rows of each quarter of the time between the first and the last of them."""
    first, last = memory[0]["minute"], memory[-1]["minute"]
    of = [min(3, int(4 * (row["minute"] - first) / (last - first))) for row in memory]
    return [[row for row, quarter in zip(memory, of) if quarter == i] for i in range(4)]


def growth(memory, key):
    """MiB an hour within a process: the median slope of all pairs of rows of the same one.

    A restart frees all, so a leak would not show between quarters. A median, since evaluations are
    peaks.
    """
    slopes = []
    for number in {row["process"] for row in memory}:
        own = [row for row in memory if row["process"] == number]
        slopes += [60 * (b[key] - a[key]) / (b["minute"] - a["minute"])
                   for a, b in combinations(own[::len(own) // 300 + 1], 2)]
    return median(slopes)


def draw(memory, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    for key, color in (("rss_mib", "C0"), ("anon_mib", "C1")):
        for number in sorted({row["process"] for row in memory}):
            points = [(row["minute"], row[key]) for row in memory if row["process"] == number]
            axis.plot(*zip(*points), color=color, label=None if number > 1 else key)
    axis.set(xlabel="minutes; each line a process", ylabel="MiB", ylim=(0, None))
    axis.legend()
    figure.savefig(path, dpi=110)


def soak_checks(memory, kills, out, pauses):
    """The soak's table and figure, and all that must be true of it: [(what, whether)].

    What counts is anonymous memory, which is what the process asked for: of the pages of mapped
    files (libraries, a checkpoint) the kernel keeps as many as it likes.
    """
    draw(memory, out / "memory.png")
    settled = steady(memory, config(out / "run"))
    parts = quarters(settled) if len(settled) > 1 else [[]]
    if not all(parts):
        raise ValueError(f"{len(settled)} steady measurements are too few: choose more --minutes, "
                         "or longer pauses between --kill-minutes")
    print("quarter  processes  median anonymous MiB  max  median resident MiB")
    for i, part in enumerate(parts):
        of = {key: [row[key] for row in part] for key in ("process", "rss_mib", "anon_mib")}
        print(f"{i + 1:7}  {len(set(of['process'])):9}  {median(of['anon_mib']):20.1f}  "
              f"{max(of['anon_mib']):.0f}  {median(of['rss_mib']):19.1f}")
    first, last = (median(row["anon_mib"] for row in part) for part in (parts[0], parts[-1]))
    within = {key: growth(settled, key) for key in ("rss_mib", "anon_mib")}
    hours = max(pauses) / 60
    print("within a process: {anon_mib:+.1f} MiB an hour, {rss_mib:+.1f} resident".format(**within))
    trained, evaluated = (steps(keys(rows(out / "run")), kind) for kind in ("train", "eval"))
    expected = range(0, len(trained), config(out / "run")["eval_every"] or len(trained) + 1)
    change = last / first - 1
    return [
        (f"killed {kills} times, resumed, and stopped by SIGTERM", kills > 0),
        (f"{len(trained)} training steps, none missing, none twice",
         trained == list(range(len(trained)))),
        (f"{len(evaluated)} evaluations, none missing, none twice", evaluated == list(expected)),
        (f"from the first to the last quarter memory changed by {change:+.2%}, at most "
         f"{MOST_GROWTH:.0%}", abs(change) <= MOST_GROWTH),
        (f"in {60 * hours:g} minutes a process grows by {within['anon_mib'] * hours / first:+.2%}, "
         f"at most {MOST_GROWTH:.0%}", within["anon_mib"] * hours <= MOST_GROWTH * first),
    ]


def main(argv=None, train=TRAIN):
    form = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=form)
    p.error = runs.fail
    minute = runs.number(float, 0)
    p.add_argument("--kills", type=runs.number(int, 1), default=30, help="of the kill test")
    p.add_argument("--minutes", type=minute, help="of the soak; None: the kill test")
    p.add_argument("--kill-minutes", type=minute, nargs=2, default=(5, 8), help="between kills of "
                   "the soak, from and to")
    p.add_argument("--out", required=True, help="folder to make")
    p.add_argument("--rng-seed", type=int, default=0, help="of the moments to kill at")
    p.add_argument("flags", nargs="*", help="behind --: flags of train.py")
    args = p.parse_args(argv)
    out, rng = Path(args.out), random.Random(args.rng_seed)
    if out.exists() and any(out.iterdir()):
        runs.fail(f"--out {out}: there is something in it; nothing is overwritten")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the training would stay behind
    if args.minutes:
        memory, kills = runs.or_fail(soak, train, LONG + args.flags, out / "run", args.minutes,
                                     args.kill_minutes, rng)
        checks = runs.or_fail(soak_checks, memory, kills, out, args.kill_minutes)
    else:
        checks = runs.or_fail(
            kill_test, train, SMALL + args.flags, out, aims_of(args.kills), rng)
    for what, is_true in checks:
        print(f"{'ok' if is_true else 'FAILED':6}  {what}")
    return 0 if all(is_true for _, is_true in checks) else 1


if __name__ == "__main__":
    runs.main(main)
