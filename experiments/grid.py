"""The grid of trainings behind the README's results: methods x rng seeds x settings.

    python experiments/grid.py tune         learning rates, on tuning games and tuning rng seeds
    python experiments/grid.py seeds        settings of the seeds, the same
    python experiments/grid.py final        what is compared: fresh rng seeds, held-out games
    python experiments/grid.py ablations    one factor at a time
    python experiments/grid.py long         twice as many steps

PROTOCOL.md says what is decided by what, and was written before the final runs. A training that is
done is a row of results/grid.jsonl, which report.py reads; one that was killed is resumed. Two run
at a time, each with one thread. `--dry-run` lists what is left to do.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import runs  # noqa: E402
from experiments.compare import read  # noqa: E402

# Meant to be where on-policy training saturates while its entropy falls: a finite set of games,
# seen again and again, as real sets of math problems are. A longer training is evaluated at step
# LATE as well: has it gained since?
STEPS, LONG, LATE = 300, 600, 400
TRAIN = ("--task countdown --train-problems 512 --prompts-per-step 8 --group-size 8 "
         "--minibatches 4 --save-every 50 --eval-every 100 --eval-problems 100 --eval-samples 8")
SPLITS = {"tune": (200, 16), "test": (300, 32)}  # games, samples of each
METHODS = {  # grpo keeps a ring as well, for seeded inference alone
    "grpo": "--method grpo --ring-size 4",
    "grpo_high": "--method grpo --ring-size 4 --clip-high 0.28",
    **{method: f"--method {method}" for method in (
        "thinking_seeds", "decoupled", "mask_prefix", "no_correction", "sequence_mix", "suffix")},
}
COMMON = ("thinking_seeds", "decoupled", "sequence_mix")  # also trained at the rate of grpo
SEEDED = [name for name, flags in METHODS.items() if "grpo" not in name]
LEARNING_RATES = ("7.5e-6", "1.5e-5", "3e-5")
SEED_SETTINGS = {  # the first are train.py's defaults
    "usual": "",
    "old": "--snapshot-every 25 --min-lag 25",
    "older": "--snapshot-every 50 --min-lag 50",
}
# rng seeds
TUNING, FINAL, ABLATION, LONGER = (100, 101), (0, 1, 2, 3, 4), (0, 1, 2), (10, 11, 12, 13, 14)
ABLATIONS = {
    "prefix length 0.05 to 0.25": "--prefix-min 0.05 --prefix-max 0.25",
    "prefix length 0.5 to 0.95": "--prefix-min 0.5 --prefix-max 0.95",
    "ring of 1, lag 10 to 19": "--ring-size 2 --min-lag 10 --snapshot-choice oldest",
    "ring of 12, lag 10 to 119": "--ring-size 12",
    "a quarter seeded": "--seed-fraction 0.25",
    "three quarters seeded": "--seed-fraction 0.75",
    "oldest snapshot": "--snapshot-choice oldest",
    "newest snapshot": "--snapshot-choice newest",
    "prefix clip 0.5": "--prefix-clip-low 0.5 --prefix-clip-high 0.5",
    "upper clip 0.28": "--clip-high 0.28",
    "temperature 0.8": "--temperature 0.8",
    "temperature 1.2": "--temperature 1.2",
}
OTHERS = ("decoupled", "mask_prefix", "no_correction")  # the method as the factor, all else alike
# Rows that are compared with each other, where they have the same rng seed.
TOGETHER = {"tune": "tuning", "seeds": "tuning", "final": "final", "common": "final",
            "control": "final", "ablations": "ablations", "long": "long", "long_control": "long"}
CURVES = ("reward reward_seeded reward_unseeded zero_std_groups solved_seeded_only "
          "solved_unseeded_only entropy entropy_prefix "
          "entropy_continuation entropy_effective entropy_effective_prefix "
          "entropy_effective_continuation clip_lost clip_lost_prefix clip_lost_continuation "
          "clip_frac_low clip_frac_high snapshot_share ess ratio_max_prefix "
          "kl_behaviour_prefix").split()
WINDOW = 20  # steps whose mean is a point of a curve


# ----------------------------------------------------------------------- what there is to do


def mean_pass(rows, phase, method, key, value):
    """pass@1 on tuning games where `key` is `value`, the mean over tuning rng seeds; None before
    all of them are there."""
    found = [row["eval"]["pass"][0] for row in rows
             if row["phase"] == phase and row["method"] == method and row[key] == value]
    return fmean(found) if len(found) == len(TUNING) else None


def best(rows, phase, method, key, values):
    """The value of `key` with the best mean pass@1; ValueError if some run is still missing."""
    means = {value: mean_pass(rows, phase, method, key, value) for value in values}
    if None in means.values():
        raise ValueError(f"{method} has not been tuned yet: run `grid.py {phase}` first")
    return max(means, key=means.get)


def learning_rate(rows, method):
    return best(rows, "tune", method, "learning_rate", LEARNING_RATES)


def seed_setting(rows, method):
    """The name of a method's best seed setting; the usual one was already run in `tune`."""
    if method not in SEEDED:
        return "usual"
    rate = learning_rate(rows, method)
    usual = [{**row, "phase": "seeds"} for row in rows
             if row["phase"] == "tune" and row["learning_rate"] == rate]
    return best([*rows, *usual], "seeds", method, "setting", SEED_SETTINGS)


def tokens(rows, method):
    """Tokens that a training of this method generates, as it was tuned."""
    rate, setting = learning_rate(rows, method), seed_setting(rows, method)
    return fmean(row["tokens_generated"] for row in rows
                 if row["method"] == method and row["learning_rate"] == rate
                 and row["setting"] == setting and row["phase"] in ("tune", "seeds"))


def job(phase, method, rng_seed, rate, setting="usual", more="", split="test", stop=None,
        steps=None):
    name = f"{phase}-{method}-{rate}-{setting}-{rng_seed}"
    flags = f"{TRAIN} {METHODS.get(method, '')} {SEED_SETTINGS.get(setting, more)}"
    return {"name": re.sub(r"[^\w.-]+", "_", name), "phase": phase, "method": method,
            "rng_seed": rng_seed, "learning_rate": rate, "setting": setting, "split": split,
            "flags": f"{flags} --learning-rate {rate} --rng-seed {rng_seed}", "stop": stop,
            "steps": steps or STEPS}


def half(rate):
    """Half a learning rate, as a flag's value."""
    return f"{float(rate) / 2:.2g}"


def jobs(phase, rows):
    """The jobs of a phase. ValueError if it rests on one that is not done."""
    if phase == "tune":
        return [job(phase, method, seed, rate, split="tune")
                for seed in TUNING for rate in LEARNING_RATES for method in METHODS]
    if phase == "seeds":
        return [job(phase, method, seed, learning_rate(rows, method), setting, split="tune")
                for seed in TUNING for method in SEEDED for setting in [*SEED_SETTINGS][1:]]
    if phase == "ablations":
        rate, settings = learning_rate(rows, "thinking_seeds"), {"usual": "", **ABLATIONS}
        return [each for seed in ABLATION for each in (
            *(job(phase, "thinking_seeds", seed, rate, *one) for one in settings.items()),
            *(job(phase, method, seed, rate, f"as {method}") for method in OTHERS))]
    rates = {method: learning_rate(rows, method) for method in METHODS}
    settings = {method: seed_setting(rows, method) for method in METHODS}
    if phase == "long":
        return [job(phase, method, seed, rate, settings[method], stop=LATE, steps=LONG)
                for seed in LONGER for method in ("grpo", "thinking_seeds")
                for phase, rate in (("long", rates[method]), ("long_control", half(rates[method])))]
    # On the way, the step at which as many tokens are generated as by all of grpo.
    stops = {method: round(STEPS * min(1, tokens(rows, "grpo") / tokens(rows, method)))
             for method in METHODS}
    found = []
    for seed in FINAL:  # all of one before the next: it has to be of one base policy
        found += [job("final", "start", seed, "0"), *(
            job("final", method, seed, rates[method], settings[method], stop=stops[method])
            for method in METHODS)]
        found += [job("common", method, seed, rates["grpo"], settings[method])
                  for method in COMMON if rates[method] != rates["grpo"]]
        found += [job("control", method, seed, half(rates[method]), settings[method])
                  for method in ("grpo", "thinking_seeds")]
    return found


# ------------------------------------------------------------------------------- how it is done

STOP, RUNNING = threading.Event(), set()


def script(name, words, log):
    """Runs one of our scripts with one thread. ValueError, with its last words, if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if STOP.is_set():
        raise ValueError("the grid was stopped")
    with open(log, "a") as file:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / name), *words, "--threads", "1"], cwd=ROOT, stdout=file,
            stderr=file, stdin=subprocess.DEVNULL, env=environment)
        RUNNING.add(process)
        code = process.wait()
        RUNNING.remove(process)
    if code:
        raise ValueError(f"{name} ended with code {code}; its last words are in {log}")


def trained(job, folder, steps):
    """Trains to a step, from where it stands."""
    out, words = folder / "train", [*job["flags"].split(), "--eval-split", job["split"]]
    if (out / "config.json").exists():  # flags must then agree with those that it was begun with
        words += ["--resume", str(out)]
        steps = max(steps, json.loads((out / "config.json").read_text())["steps"])
    else:
        words += ["--out", str(out)]
    script("train.py", [*words, "--steps", str(steps)], folder / "log.txt")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def evaluated(job, folder, name, *more):
    """The evaluation of the model as it is: all that report.py needs of it."""
    out, (games, samples) = folder / name, SPLITS[job["split"]]
    if not (out / "metrics.jsonl").exists() or not runs.rows_of(out / "metrics.jsonl"):
        shutil.rmtree(out, ignore_errors=True)
        script("eval.py", [
            *more, "--split", job["split"], "--problems", str(games), "--samples", str(samples),
            "--rng-seed", str(job["rng_seed"]), "--out", str(out),
            "--k", *map(str, range(1, samples + 1))], folder / "log.txt")
    row = json.loads((out / "metrics.jsonl").read_text())
    keys = "problems samples distinct distinct_correct entropy length no_answer".split()
    kept = {"pass": [round(row[f"pass@{k}"], 5) for k in range(1, samples + 1)],
            **{key: row[key] for key in keys}}
    if job["split"] == "test":  # of each game: which are solved with seeds alone, or without?
        kept["correct"] = [sum(right) for right in read(out).values()]
    return kept


def curves(rows):
    """{metric: its mean over each window of steps, None where there was nothing to average}."""
    def mean(key, some):
        values = [row[key] for row in some if row[key] is not None]
        return float(f"{fmean(values):.5g}") if values else None

    windows = [rows[i : i + WINDOW] for i in range(0, len(rows), WINDOW)]
    return {key: [mean(key, window) for window in windows] for key in CURVES}


def do(job, folder):
    """Trains and evaluates. Returns the row for grid.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {**job, "machine": machine(), "base": base_digest()}
    if job["method"] == "start":  # before any training
        return {**kept, "eval": evaluated(job, folder, "eval")}
    model, extra = ["--model", str(folder / "train" / "model")], {}
    if job["stop"] and job["stop"] < job["steps"]:
        if not (folder / "equal" / "metrics.jsonl").exists():  # before the model trains on
            rows = trained(job, folder, job["stop"])
            if (steps := sum(row["kind"] == "train" for row in rows)) != job["stop"]:
                raise ValueError(f"{folder} has {steps} steps already, so what it was after "
                                 f"{job['stop']} cannot be evaluated: remove it")
        at_stop = "equal_tokens" if job["phase"] == "final" else "late"
        extra[at_stop] = evaluated(job, folder, "equal", *model)
    rows = trained(job, folder, job["steps"])
    extra["eval"] = evaluated(job, folder, "eval", *model)
    if job["phase"] in ("final", "long", "long_control"):
        extra["eval_seeded"] = evaluated(
            job, folder, "seeded", *model, "--seed-from", str(folder / "train"))
    train = [row for row in rows if row["kind"] == "train"]
    if extra.get("equal_tokens"):
        extra["equal_tokens"]["tokens_generated"] = sum(
            row["tokens_generated"] for row in train[: job["stop"]])
    held_out = [{key: row[key] for key in ("step", "pass@1", "pass@8", "entropy")}
                for row in rows if row["kind"] == "eval"]
    config = json.loads((folder / "train" / "config.json").read_text())
    return {
        **kept, "steps": len(train), "versions": config["versions"],
        "git_commit": config["git_commit"],
        "seconds": round(sum(row[key] for row in train for key in row if "seconds_" in key), 1),
        "tokens_generated": sum(row["tokens_generated"] for row in train),
        "skipped_updates": sum(row["skipped_updates"] for row in train),
        **extra, "held_out": held_out, "curves": curves(train),
    }


def done(results, wanted):
    """The rows that there are. ValueError if two are of one training, or one of other flags than
    those wanted now. A last one that a kill cut off goes, or the next would be glued to it."""
    rows = runs.rows_of(results)
    if results.exists() and not results.read_text().endswith("\n"):
        with runs.writing(results), runs.whole_file(results) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    by_name = {row["name"]: row for row in rows}
    if len(by_name) < len(rows):
        raise ValueError(f"{results} has a training twice")
    for job in wanted(rows):
        row = by_name.get(job["name"], job)
        if row["flags"] != job["flags"]:
            raise ValueError(f"{results}: {job['name']} was run with other flags than now")
        if row.get("steps", job["steps"]) != job["steps"]:
            raise ValueError(f"{results}: {job['name']} was run with {row['steps']} steps, now "
                             f"it would be with {job['steps']}")
    return rows


def other_bases(left, rows, base):
    """ValueError if one of the jobs left would be compared with a row of another base policy."""
    def group(one):
        return TOGETHER[one["phase"]], one["rng_seed"]

    for each in left:
        for row in rows:
            if group(row) == group(each) and row["base"] != base:
                raise ValueError(
                    f"{row['name']} began with base policy {row['base']}, {each['name']} would "
                    f"with {base}: to be compared they have to be from one machine. Remove the "
                    f"rows of rng seed {each['rng_seed']} to begin it anew")


def machine():
    info = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return f"{name.group(1) if name else platform.processor()}, {os.cpu_count()} cores"


def base_digest():
    """Of the base policy's weights: runs on different machines should have begun alike."""
    import torch

    from tasks import countdown

    torch.set_num_threads(1)
    weights = (countdown.base_policy(400) / "model.safetensors").read_bytes()
    return hashlib.sha256(weights).hexdigest()[:12]


def main(argv=None):
    form = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    p.error = runs.fail
    p.add_argument("phase", choices=["tune", "seeds", "final", "ablations", "long"])
    p.add_argument("--workers", type=runs.number(int, 1), default=2, help="trainings at a time")
    p.add_argument("--results", default=str(ROOT / "experiments/results/grid.jsonl"))
    p.add_argument("--runs", default="runs/grid", help="folder of the runs, to resume from")
    p.add_argument("--minutes", type=runs.number(float, 0), help="begin none after so long")
    p.add_argument("--dry-run", action="store_true", help="only list what is left to do")
    args = p.parse_args(argv)
    results = Path(args.results).resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    with runs.alone_in(results.parent):
        return run(args, results)


def run(args, results):
    """All that is left of a phase."""
    started, lock = time.time(), threading.Lock()
    rows = runs.or_fail(done, results, lambda rows: jobs(args.phase, rows))
    names = {row["name"] for row in rows}
    left = [each for each in jobs(args.phase, rows) if each["name"] not in names]
    print(f"{args.phase}: {len(left)} trainings left", flush=True)
    if args.dry_run:
        print("\n".join(each["name"] for each in left))
        return 0
    # The base is made here, before several would.
    runs.or_fail(other_bases, left, rows, base_digest())

    def work(each):
        if STOP.is_set() or args.minutes is not None and time.time() > started + 60 * args.minutes:
            return
        try:
            row = do(each, Path(args.runs).resolve() / each["name"])
        except BaseException:
            STOP.set()  # at once, so that no worker begins another
            raise
        with lock:
            runs.append(results, row)
            print(f"{(time.time() - started) / 60:5.1f} min  {each['name']}: pass@1 "
                  f"{row['eval']['pass'][0]:.3f}, entropy {row['eval']['entropy']:.3f}", flush=True)

    with ThreadPoolExecutor(args.workers) as pool:
        futures = [pool.submit(work, each) for each in left]
        try:
            for future in as_completed(futures):
                runs.or_fail(future.result)
        finally:  # all is done, or not: then what runs ends after its step, to be resumed
            STOP.set()
            for process in [*RUNNING]:
                process.terminate()
    return 0


if __name__ == "__main__":
    runs.main(main)
