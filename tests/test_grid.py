"""experiments/grid.py and report.py: what is run for the README's results, and made of it."""

import json
import re
import subprocess
import threading
from pathlib import Path
from statistics import stdev

import pytest

from experiments import grid, report

def row(phase, method, rng_seed, pass_1, rate="4e-5", setting="usual", tokens=100, **more):
    """A row of grid.jsonl with what the tests look at."""
    def evaluation(shift):
        return {"pass": [pass_1 + shift, pass_1 + shift + 0.4], "entropy": pass_1 / 2,
                "distinct_correct": 4 * pass_1, "correct": [0, 32, 1 if shift else 0]}

    clip_lost, none = [None, 0.5, *[pass_1 / 10] * 9], [None] * 11
    return {"phase": phase, "method": method, "rng_seed": rng_seed, "learning_rate": rate,
            "setting": setting, "name": f"{phase}-{method}-{rate}-{setting}-{rng_seed}",
            "eval": evaluation(0), "eval_seeded": evaluation(0.05), "steps": 10, "seconds": 20,
            "flags": f"{grid.TRAIN} --method {method}  --learning-rate {rate} --rng-seed 0",
            "base": "base", "stop": 300, "machine": "a CPU", "git_commit": "abc",
            "skipped_updates": 0,
            "tokens_generated": tokens, "curves": {
                "entropy_effective": [0.9] * 8 + [0.1, 0.3], "clip_lost": clip_lost,
                "clip_lost_continuation": clip_lost,
                "clip_lost_prefix": none if "grpo" in method else clip_lost,
                "kl_behaviour_prefix": none, "ess": clip_lost, "reward_seeded": none,
                "reward_unseeded": clip_lost, "solved_seeded_only": clip_lost,
                "solved_unseeded_only": clip_lost, "snapshot_share": clip_lost,
                "entropy": [pass_1] * 10, "reward": [pass_1] * 10}, **more}


def tuned():
    """Rows of all of tuning: the best rate is 7.5e-6 for grpo, 3e-5 for the rest."""
    rows = []
    for seed in grid.TUNING:
        for method in grid.METHODS:
            for i, rate in enumerate(grid.LEARNING_RATES):
                value = 0.3 - 0.01 * i if method == "grpo" else 0.3 + 0.01 * i
                rows.append(row("tune", method, seed, value, rate,
                                tokens=100 if "grpo" in method else 125))
        for method in grid.SEEDED:
            for i, setting in enumerate([*grid.SEED_SETTINGS][1:]):
                better = method == "suffix" and i == 1
                rows.append(row("seeds", method, seed, 0.5 if better else 0.1, "3e-5", setting,
                                tokens=200))
    return rows


# ------------------------------------------------------------------------------------ the jobs


def test_every_method_is_tuned_over_the_same_values():
    jobs = grid.jobs("tune", [])
    assert len(jobs) == 8 * 3 * 2 == len({job["name"] for job in jobs})
    assert all(job["split"] == "tune" and job["rng_seed"] in grid.TUNING for job in jobs)
    by_method = {m: {j["learning_rate"] for j in jobs if j["method"] == m} for m in grid.METHODS}
    assert all(rates == {*grid.LEARNING_RATES} for rates in by_method.values())


def test_the_final_runs_take_what_was_tuned_and_fresh_rng_seeds():
    rows = tuned()
    with pytest.raises(ValueError, match="grid.py tune"):
        grid.jobs("final", [each for each in rows if each["rng_seed"] == grid.TUNING[0]])
    with pytest.raises(ValueError, match="grid.py seeds"):
        grid.jobs("final", [each for each in rows if each["phase"] == "tune"])
    jobs = grid.jobs("final", rows)
    assert not {*grid.FINAL} & {*grid.TUNING} and len(jobs) == (9 + 3 + 2) * len(grid.FINAL)
    assert [job["rng_seed"] for job in jobs] == sorted(job["rng_seed"] for job in jobs)
    chosen = {job["method"]: (job["learning_rate"], job["setting"], job["stop"])
              for job in jobs if job["phase"] == "final"}
    assert chosen["grpo"] == ("7.5e-6", "usual", grid.STEPS)
    assert chosen["thinking_seeds"] == ("3e-5", "usual", grid.STEPS * 100 // 125)
    assert chosen["suffix"] == ("3e-5", "older", grid.STEPS // 2)
    assert all(job["split"] == "test" for job in jobs)
    flags = next(job["flags"] for job in jobs if job["method"] == "suffix")
    for words in ("--method suffix", "--min-lag 50", "--learning-rate 3e-5"):
        assert words in flags
    common = [job for job in jobs if job["phase"] == "common"]
    assert {job["learning_rate"] for job in common} == {"7.5e-6"}
    assert {job["method"] for job in common} == {*grid.COMMON}
    control = [job for job in jobs if job["phase"] == "control"]
    assert {(job["method"], job["learning_rate"]) for job in control} == {
        ("grpo", "3.8e-06"), ("thinking_seeds", "1.5e-05")}
    ablations = grid.jobs("ablations", rows)
    assert len(ablations) == 3 * (1 + len(grid.ABLATIONS) + len(grid.OTHERS))
    long = grid.jobs("long", rows)
    assert len(long) == 4 * len(grid.LONGER)
    assert not {*grid.LONGER} & {*grid.TUNING, *grid.FINAL}
    assert {(job["phase"], job["method"], job["learning_rate"]) for job in long} == {
        ("long", "grpo", "7.5e-6"), ("long", "thinking_seeds", "3e-5"),
        ("long_control", "grpo", "3.8e-06"), ("long_control", "thinking_seeds", "1.5e-05")}
    assert {job["stop"] for job in long} == {grid.LATE}
    assert {job["steps"] for job in long} == {grid.LONG} and grid.LONG > grid.STEPS
    assert {job["steps"] for job in jobs} == {grid.STEPS}
    other = next(job for job in ablations if job["setting"] == "as decoupled")
    assert other["flags"] == ablations[0]["flags"].replace("thinking_seeds", "decoupled")


def test_all_flags_of_all_jobs_are_train_pys():
    import train

    rows = tuned()
    for phase in ("tune", "seeds", "final", "ablations", "long"):
        for job in grid.jobs(phase, rows):
            if job["method"] != "start":
                args = train.parse_args(job["flags"].split())
                assert args.rng_seed == job["rng_seed"]
                assert args.ring_size  # for seeded inference, of grpo as well
                if args.seeded_rows:
                    train.Ring(args.ring_size, args.snapshot_every, args.min_lag)


def read_train(folder):
    lines = (folder / "train/metrics.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["kind"] == "train"]


def test_a_job_from_start_to_row(tmp_path, monkeypatch):
    monkeypatch.setenv("THINKING_SEEDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(grid, "base_digest", lambda: "base")
    monkeypatch.setattr(grid, "STEPS", 4)
    monkeypatch.setattr(grid, "SPLITS", {"test": (3, 4)})
    monkeypatch.setattr(grid, "TRAIN", (
        "--base-steps 2 --prompts-per-step 2 --group-size 4 --minibatches 1 --save-every 1 "
        "--snapshot-every 1 --min-lag 1 --eval-problems 2 --eval-samples 8"))
    calls, original = [], subprocess.Popen
    monkeypatch.setattr(
        grid.subprocess, "Popen", lambda words, **kw: calls.append(words) or original(words, **kw))
    job = grid.job("final", "thinking_seeds", 0, "1e-3", stop=3)
    got = grid.do(job, tmp_path / "run")
    scripts = [Path(words[1]).name for words in calls if words[0] != "git"]
    assert scripts == ["train.py", "eval.py", "train.py", "eval.py", "eval.py"]
    assert got["steps"] == 4 and len(got["eval"]["pass"]) == 4 == got["eval"]["samples"]
    assert got["eval"]["problems"] == got["equal_tokens"]["problems"] == 3
    made = [each["tokens_generated"] for each in read_train(tmp_path / "run")]
    assert got["equal_tokens"]["tokens_generated"] == sum(made[:3]) < sum(made)
    assert got["eval"] != got["eval_seeded"] and got["curves"]["clip_lost"].__len__() == 1
    train = read_train(tmp_path / "run")
    assert got["tokens_generated"] == sum(each["tokens_generated"] for each in train) > 4 * 8
    rewards = [each["reward"] for each in train]
    assert got["curves"]["reward"] == [pytest.approx(sum(rewards) / 4, rel=1e-4)]
    json.dumps(got, allow_nan=False)
    # again, after a kill in its last evaluation: nothing is trained anew
    calls.clear()
    (tmp_path / "run/seeded/metrics.jsonl").unlink()
    again = grid.do(job, tmp_path / "run")
    assert {**again, "eval_seeded": 0} == {**got, "eval_seeded": 0}
    assert [Path(words[1]).name for words in calls if words[0] != "git"] == ["train.py", "eval.py"]
    # what it was at 3 steps cannot be evaluated any more, and the final model is not taken for it
    (tmp_path / "run/equal/metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="has 4 steps already"):
        grid.do(job, tmp_path / "run")
    # and a failure is told of, as are flags that the run was not begun with
    for folder, flags in (("bad", "--no-such-flag"), ("run", f"{job['flags']} --clip-low 0.1")):
        with pytest.raises(ValueError, match="its last words are in"):
            grid.do({**job, "flags": flags, "stop": None}, tmp_path / folder)


def test_a_longer_training_is_evaluated_on_its_way(tmp_path, monkeypatch):
    calls, rows = [], [{"kind": "train", "tokens_generated": 2, "skipped_updates": 0,
                        **dict.fromkeys(grid.CURVES)}]

    def trained(job, folder, steps):
        calls.append(steps)
        (folder / "train").mkdir(exist_ok=True)
        config = {"versions": {}, "git_commit": "abc"}
        (folder / "train/config.json").write_text(json.dumps(config))
        return rows * steps

    def evaluated(job, folder, name, *more):
        calls.append((name, "--seed-from" in more))
        return {"pass": [0.5]}

    for name, stub in (("trained", trained), ("evaluated", evaluated), ("base_digest", str)):
        monkeypatch.setattr(grid, name, stub)
    job = next(job for job in grid.jobs("long", tuned()) if job["phase"] == "long_control")
    got = grid.do(job, tmp_path / "run")
    assert calls == [400, ("equal", False), 600, ("eval", False), ("seeded", True)]
    assert got["steps"] == 600 and got["tokens_generated"] == 1200
    assert got["late"] == {"pass": [0.5]} and "equal_tokens" not in got


def run_main(results, monkeypatch, do):
    monkeypatch.setattr(grid, "do", do)
    monkeypatch.setattr(grid, "base_digest", lambda: "base")
    monkeypatch.setattr(grid, "STOP", threading.Event())
    return grid.main(["tune", "--results", str(results), "--runs", str(results.parent / "runs")])


def test_a_grid_goes_on_and_stops_at_a_failure(tmp_path, monkeypatch, capsys):
    asked, results = [], tmp_path / "results/grid.jsonl"

    def do(job, folder):
        asked.append(job["name"])
        if len(asked) == 5:
            raise ValueError("the fifth fails")
        return {**row("tune", job["method"], job["rng_seed"], 0.3), **job}

    with pytest.raises(SystemExit):
        run_main(results, monkeypatch, do)
    assert "the fifth fails" in capsys.readouterr().err
    assert len(asked) < 10  # of 48: none is begun after a failure, but those already at work
    had = len(results.read_text().splitlines())
    assert 3 <= had < 10
    with open(results, "a") as file:
        file.write('{"name": "cut')  # a kill in the middle of a row
    assert run_main(results, monkeypatch, do) == 0
    names = [json.loads(line)["name"] for line in results.read_text().splitlines()]
    assert len(names) == 48 == len({*names})
    assert run_main(results, monkeypatch, lambda *_: pytest.fail("all is done")) == 0
    # a row that is there twice, or of other flags than now
    text = results.read_text()
    for bad, named in ((text + text.splitlines()[0] + "\n", "twice"),
                       (text.replace("--clip-high 0.28", "--clip-high 0.3"), "other flags"),
                       (text.replace('"steps": 300', '"steps": 200'), "200 steps, now it would")):
        results.write_text(bad)
        with pytest.raises(SystemExit):
            run_main(results, monkeypatch, do)
        assert named in capsys.readouterr().err


def test_what_is_compared_begins_with_one_base(tmp_path, monkeypatch, capsys):
    there = row("tune", "grpo", 100, 0.3, base="another")
    left = grid.jobs("tune", [])
    with pytest.raises(ValueError, match="another.*rows of rng seed 100"):
        grid.other_bases(left, [there], "base")
    grid.other_bases(left, [there], "another")
    grid.other_bases([job for job in left if job["rng_seed"] == 101], [there], "base")
    for phase, is_compared in (("final", False), ("seeds", True)):
        job = grid.job(phase, "decoupled", 100, "1.5e-5")
        if is_compared:
            with pytest.raises(ValueError, match="another"):
                grid.other_bases([job], [there], "base")
        else:
            grid.other_bases([job], [there], "base")
    results = tmp_path / "grid.jsonl"  # and before anything is run
    results.write_text(json.dumps({**grid.jobs("tune", [])[0], "base": "another"}) + "\n")
    with pytest.raises(SystemExit):
        run_main(results, monkeypatch, lambda *_: pytest.fail("was begun"))
    assert "another" in capsys.readouterr().err


def test_two_grids_do_not_write_to_one_file(tmp_path, monkeypatch, capsys):
    results = tmp_path / "grid.jsonl"
    with grid.runs.alone_in(tmp_path), pytest.raises(SystemExit):
        run_main(results, monkeypatch, None)
    assert "in use" in capsys.readouterr().err


# ---------------------------------------------------------------------------------- the report


def test_intervals_are_students():
    # tables of Student's t, 97.5 %: 12.706, 2.776 and 2.262 for 1, 4 and 9 degrees of freedom
    for degrees, expected in ((1, 12.706), (4, 2.776), (9, 2.262)):
        assert report.t_quantile(degrees) == pytest.approx(expected, abs=5e-4)
    values = [0.1, 0.2, 0.4]
    mean, half = report.interval(values)
    assert mean == pytest.approx(0.7 / 3)
    assert half == pytest.approx(4.303 * stdev(values) / 3 ** 0.5, rel=1e-3)
    assert report.interval([0.3]) == (0.3, None)


def test_differences_are_paired_by_rng_seed():
    # one rng seed is easier than the other by far more than methods differ
    mine = [row("final", "decoupled", seed, value) for seed, value in ((0, 0.52), (1, 0.21))]
    theirs = [row("final", "grpo", seed, value) for seed, value in ((1, 0.20), (0, 0.50), (2, 0))]
    measure = report.MEASURES["pass@1"][0]
    mean, half, n = report.paired(mine, theirs, measure)
    assert (mean, n) == (pytest.approx(0.015), 2)
    assert half == pytest.approx(12.706 * stdev([0.02, 0.01]) / 2 ** 0.5, rel=1e-3)


@pytest.mark.parametrize("mean, half, sign, expected", [
    (0.02, 0.01, 1, "holds"), (-0.02, 0.01, 1, "refuted"), (0.02, 0.03, 1, "undecided"),
    (-0.02, 0.01, -1, "holds"), (0.02, 0.01, -1, "refuted"), (0.02, None, 1, "undecided"),
])
def test_a_claim_is_decided_by_its_interval(mean, half, sign, expected):
    assert report.verdict(mean, half, sign) == expected


def test_the_tables_have_the_numbers_of_the_rows():
    rows = tuned()
    for seed in grid.FINAL:
        start = row("final", "start", seed, 0.2)
        rows.append({key: start[key] for key in start if key not in ("curves", "seconds")})
        for i, method in enumerate(grid.METHODS):
            value = 0.30 + 0.01 * i + 0.001 * seed * (i + 1)
            rows.append(row("final", method, seed, value, "7.5e-6" if method == "grpo" else "3e-5"))
            if method != "grpo":
                rows.append(row("common", method, seed, value + 0.1, "7.5e-6"))
            else:
                rows.append(row("control", method, seed, value - 0.1, "3.8e-06"))
        for setting, value in (("oldest snapshot", 0.3), ("usual", 0.2)):
            rows.append(row("ablations", "thinking_seeds", seed, value, setting=setting))
    tables = dict(report.report(rows, Path("no such folder")))
    slower = report.SLOWER
    assert [*tables] == [
        "What is compared", "Less `grpo`", f"Less {slower}", "Less `sequence_mix`", "Claims",
        "In training", "At equal generated tokens, less `grpo`",
        "At equal generated tokens, less `sequence_mix`", "At equal generated tokens",
        "Sampled with seeds", "At one learning rate, 7.5e-6", "One factor at a time",
        "One factor at a time, less usual", "One factor at a time, less `grpo`", "Tuning",
        "Where the rows come from"]
    lines = tables["What is compared"].splitlines()
    # the start is one base policy: of it the rng seeds tell nothing
    assert len(lines) == 2 + 9 + 1 and lines[2].startswith("| start | 5 | 0.200 | 0.600 |")
    # grpo: 0.300 to 0.304, mean 0.302, sd 0.00158, half 2.776 * 0.00158 / 5 ** 0.5 = 0.00196
    grpo = next(line for line in lines if "| `grpo` |" in line)
    assert "| `grpo` | 5 | 0.302 ± 0.002 | 0.702 ± 0.002 |" in grpo
    # 100 tokens and 20 seconds in 10 steps, the latter without an interval
    assert grpo.endswith("| 10 ± 0 | 2.00 | `--method grpo --learning-rate 7.5e-6` |")
    # effective entropy: the last fifth of 10 windows; clip_lost: all but the first
    assert "0.200 ± 0.000" in grpo and f"{(0.5 + 9 * 0.0302) / 10:.4%}" in grpo
    assert grpo.count("| - |") == 1  # on the snapshot's tokens
    less = tables["Less `grpo`"].splitlines()
    assert len(less) == 2 + 7 + 1 and "| `grpo` |" not in tables["Less `grpo`"]
    # thinking_seeds is 0.02 above it, and 0.002 more a seed: 0.024 +- 2 * 0.00196
    seeds = next(line for line in less if "thinking_seeds" in line)
    assert seeds.startswith("| `thinking_seeds` | 5 | +0.024 ± 0.004 | +0.024 ± 0.004 | +0.10 ±")
    # the same effective entropy in all rows, and not the same in that of mask_prefix
    assert "| +0.000 ± 0.000 |" in seeds
    masked = next(line for line in less if "mask_prefix" in line)
    assert masked.count("| - |") == 2 and "| - | +" in masked
    claimed = tables["Claims"].splitlines()
    # sequence_mix is better: one line of the first claim holds, the other is refuted
    assert claimed[2] == ("| 1 | pass@1 | higher | `grpo` | +0.024 ± 0.004 | +0.036 ± 0.006 "
                          "| holds | refuted |")
    assert "| `sequence_mix` |" in claimed[3] and claimed[3].endswith("| refuted | refuted |")
    assert any("3, against on-policy" in line and "| refuted | refuted |" in line
               for line in claimed)
    # but the slower grpo, 0.1 below grpo, would be a rival that is beaten
    assert any("| control | pass@1 |" in line and "+0.124 ± 0.004 |" in line
               and line.endswith("| holds | - |") for line in claimed)
    # at one rate the others have 0.1 more, and half of it in entropy
    assert any("one learning rate | entropy" in line and "+0.062 ± 0.002" in line
               for line in claimed)
    seeded = tables["Sampled with seeds"].splitlines()[2]
    assert "+0.050 ± 0.000" in seeded  # gained by seeds
    # of three games one is always solved, one never, and one by 1 of 32 seeded samples: by 16 of
    # them in half of all cases. pass@32 without seeds, of the row, is 0.4 more than pass@1
    assert f"| {1.5 / 3 - 0.702:+.3f} ± 0.002 |" in seeded
    assert seeded.endswith("| 0.333 ± 0.000 | 0.000 ± 0.000 |")  # one solved by seeds alone
    trained = tables["In training"].splitlines()
    # what a suffix does to a row depends on what its beginning came to
    assert [line.count(" - ") for line in trained if "suffix" in line] == [5]
    assert [line.count(" - ") for line in trained if "`decoupled`" in line] == [2]
    assert all(" ± " not in line.split("|")[-2] for line in trained)  # skipped updates
    assert tables["Where the rows come from"].endswith("| tuning | a CPU | base | abc | 72 |")
    # 7.5e-6: grpo's final runs, and the common ones of the other methods
    assert tables["At one learning rate, 7.5e-6"].count("\n") == 1 + 8
    assert "| oldest snapshot | 5 |" in tables["One factor at a time"]
    less = tables["One factor at a time, less usual"]
    assert "| oldest snapshot | 5 | +0.100 ± 0.000 |" in less
    assert less.endswith("| `--method thinking_seeds --learning-rate 4e-5` |")
    less = tables["One factor at a time, less `grpo`"]  # 0.3 less 0.30, 0.301 ... 0.304
    assert "| oldest snapshot | 5 | -0.002 ± 0.002 |" in less and "`grpo` |" not in less


def longer_rows():
    rows = []
    for seed in grid.LONGER:
        for i, (method, phase) in enumerate((method, phase) for method in ("grpo", "thinking_seeds")
                                            for phase in ("long", "long_control")):
            each = row(phase, method, seed, (0.3, 0.2, 0.4, 0.5)[i] + seed / 1000, steps=grid.LONG)
            gain = 0.01 * i - (seed - 12) / 500 * (i > 1)
            each["late"] = {"pass": [each["eval"]["pass"][0] - gain]}
            each["held_out"] = [
                {"step": step, "pass@1": i / 10 + step / 10_000 + (seed - 12) / 100,
                 "pass@8": i / 10 + 0.05, "entropy": i / 10 + 0.5} for step in (0, 300, 600)]
            rows.append(each)
    return rows


def test_longer_trainings_have_tables_of_their_own():
    rows = [row("final", "grpo", 0, 0.9), *longer_rows()]
    tables = dict(report.report(rows, Path("no such folder")))
    names = ("`grpo`", "`thinking_seeds`", report.SLOWER, "`thinking_seeds` at half its rate")
    shown = tables["Twice as many steps"].splitlines()[2:]
    assert [line.split(" | ")[0][2:] for line in shown] == [*names]
    assert [line.split(" | ")[2] for line in shown] == [
        "0.312 ± 0.002", "0.412 ± 0.002", "0.212 ± 0.002", "0.512 ± 0.002"]
    less = tables[f"Twice as many steps, less {report.SLOWER}"]
    assert "| `thinking_seeds` | 5 | +0.200 ± 0.000 |" in less
    says = tables["Twice as many steps, by the rules of the claims"].splitlines()
    assert says[2] == "| 1 | pass@1 | higher | `grpo` | +0.100 ± 0.000 | holds |"
    assert {line.split(" | ")[0] for line in says[2:]} == {"| 1", "| 2", "| 4", "| control"}
    course = tables["Twice as many steps, in their course"].splitlines()
    keys = ("pass@1", "pass@8", "entropy")
    assert course[0] == "| step | " + " | ".join(
        f"{key}, {name}" for key in keys for name in names) + " |"
    assert course[3] == ("| 300 | 0.030 | 0.230 | 0.130 | 0.330 | 0.050 | 0.250 | 0.150 | 0.350 "
                         "| 0.500 | 0.700 | 0.600 | 0.800 |")
    # a gain of 0, 0.01, 0.02 and 0.03; of the last two 0.004, 0.002, ... -0.004 aside by rng seed
    gains = tables["Twice as many steps, from step 400 to 600"].splitlines()[2:]
    half = f"{2.776 * stdev([-2, -1, 0, 1, 2]) / 500 / 5 ** 0.5:.3f}"
    assert gains == [f"| {name} | 5 | {gain} | {said} |" for name, gain, said in zip(
        names, ("+0.000 ± 0.000", f"+0.020 ± {half}", "+0.010 ± 0.000", f"+0.030 ± {half}"),
        ("saturated", "rising", "rising", "rising"))]
    assert tables["What is compared"].count("\n") == 2  # the final run alone
    # an rng seed counts when all are there, and nothing is said before all rng seeds are
    few = dict(report.report(rows[:-1], Path("no such folder")))
    assert "| `grpo` | 4 |" in few["Twice as many steps"]
    assert "holds" not in few["Twice as many steps, by the rules of the claims"]
    assert few["Twice as many steps, from step 400 to 600"].count("| not decided |") == 4
    with pytest.raises(ValueError, match="long-grpo.* has 300 steps instead of 600"):
        report.longer([{**each, "steps": 300} for each in rows])
    wide = longer_rows()
    for each in wide:
        each["late"]["pass"][0] = each["eval"]["pass"][0] - 0.005 + (each["rng_seed"] - 12) / 100
    assert "rising" not in report.gains(report.longer(wide))
    assert "saturated" not in report.gains(report.longer(wide))


def test_a_comparator_that_is_not_there_leaves_a_claim_undecided():
    groups = {name: [row("final", name, seed, value + seed / 1000) for seed in grid.FINAL]
              for name, value in (("grpo", 0.2), ("thinking_seeds", 0.3))}
    lines = report.claims(groups, {}).splitlines()
    assert "| holds | undecided |" in lines[2] and "| `sequence_mix` | - | - | undec" in lines[3]


def test_what_generates_more_is_not_compared_as_if_it_did_not():
    groups = {name: [row("final", name, 0, 0.2, tokens=tokens)] for name, tokens in (
        ("grpo", 1000), ("grpo_high", 1004), ("suffix", 1100), ("decoupled", 1100))}
    groups["decoupled"][0]["equal_tokens"] = groups["decoupled"][0]["eval"]
    assert [*report.at_equal_tokens(groups)] == ["grpo", "grpo_high", "decoupled"]


def test_differences_of_a_line_are_of_the_same_pairs():
    groups = {name: [row("final", name, seed, value + seed / 100) for seed in (0, 1)]
              for name, value in (("grpo", 0.2), ("decoupled", 0.3))}
    groups["decoupled"][1]["curves"]["clip_lost_prefix"] = [None] * 11
    grpo = groups["grpo"]
    for each in grpo:
        each["curves"]["clip_lost_prefix"] = [0.1] * 11
    cells = report.differences(groups, "grpo").splitlines()[2].split(" | ")
    assert cells[1:3] == ["2", "+0.100 ± 0.000"] and cells[-1] == "- |"  # that would be of one


def test_seeded_and_unseeded_rows_are_compared_where_there_are_both():
    curves = {"a": [9, None, 5, 3, 4, None], "b": [0, 1, 1, 1, 1, 1]}
    each = {"method": "thinking_seeds", "flags": "", "curves": curves}
    assert report.settled(each, "a") == 4
    assert report.settled(each, "a", "b") == 2.5  # without their first window, where b has more
    assert report.settled({**each, "curves": {"a": [1, 2], "b": [1, 2]}}, "a", "b") is None


def test_the_second_setting_is_read_from_the_metrics_of_trainings(tmp_path):
    def evaluation(value):
        return {"kind": "eval", "pass@1": value, "pass@1_low": value - 0.1,
                "pass@1_high": value + 0.1, "pass@8": 2 * value, "pass@8_low": 0,
                "pass@8_high": 1, "entropy": 1 - value}

    train = [{"kind": "train", "reward": step / 10, "kl_behaviour_prefix": None, "seconds_a": 1,
              "clip_lost": 0.01, "snapshot_share": 0.0, "seconds_b": step} for step in range(4)]
    rows = [evaluation(0.2), *train[:2], evaluation(0.9), *train[2:], evaluation(0.4)]
    assert report.pretrained(tmp_path) is None
    text = "".join(json.dumps(row) + "\n" for row in rows[:3])  # one that is still training
    (tmp_path / "sums-decoupled-0.jsonl").write_text(text)
    assert report.pretrained(tmp_path) is None
    (tmp_path / "sums-grpo-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert report.pretrained(tmp_path).splitlines()[-1] == (
        "| `grpo-0` | 4 | 0.200 [0.100, 0.300] | 0.400 [0.300, 0.500] | 0.400 [0.000, 1.000] "
        "| 0.800 [0.000, 1.000] | 0.800 | 0.600 | 0.250 | - | 1.00% | 0.000 | 2.5 |")


def test_a_measure_of_another_policy_is_not_shown():
    hot = row("ablations", "thinking_seeds", 0, 0.3)
    hot["flags"] += " --temperature 1.2"
    for key, (measure, _form) in report.MEASURES.items():
        assert (measure(hot) is None) == (key not in report.evaluation("eval"))


def test_what_the_slower_control_does_as_well_is_no_evidence():
    def five(phase, method, value):
        return [row(phase, method, seed, value + seed / 1000) for seed in grid.FINAL]

    def said(slow_pass, slow_entropy, grpo_pass=0.2):
        slow = five("control", "grpo", slow_pass)
        for each in slow:
            each["eval"]["entropy"] = slow_entropy
        full = five("final", "grpo", grpo_pass)
        for each in full:
            each["eval"]["entropy"] = 0.1
        groups = {"grpo": full, report.SLOWER: slow,
                  "thinking_seeds": five("final", "thinking_seeds", 0.3)}
        lines = report.claims(groups, {}).splitlines()
        line = next(line for line in lines if line.startswith("| 2 | entropy |"))
        return line.split(" | ")[-2]

    assert said(0.2, 0.0) == "holds"  # above the control in entropy and in pass@1
    assert said(0.4, 0.0) == "holds"  # above it in entropy
    assert said(0.2, 0.9) == "holds"  # below, but with more right answers, also than grpo
    assert said(0.4, 0.9) == "undecided: not above the control"
    assert said(0.2, 0.9, 0.35) == "undecided: not above the control"  # grpo is that much better
    few = {name: [row("final", name, seed, 0.2 + value + seed / 1000) for seed in grid.FINAL]
           for name, value in (("grpo", 0), ("thinking_seeds", 0.1))}
    assert "not above" not in report.claims(few, {})  # it is not known yet
    assert report.together(["holds", "undecided: not above the control"]) == "undecided"


def test_the_figure_has_a_line_a_method(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **kw: drawn.append(figure))
    start = row("final", "start", 0, 0.2)
    del start["curves"], start["eval_seeded"]
    report.draw([start, row("final", "grpo", 0, 0.3), row("final", "mask_prefix", 0, 0.4),
                 row("control", "grpo", 0, 0.1), *longer_rows()], tmp_path / "grid.png")
    lines = {axis.get_title(): [list(line.get_ydata()) for line in axis.lines]
             for axis in drawn[0].axes}
    looks = [(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines]
    assert looks == [("C0", "-"), ("C1", "-"), ("C5", "-"), ("C1", "--")]
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names == ["start", "grpo", "mask_prefix", "grpo at half its rate"]
    assert [*lines].index("pass@k, held out") == 2 and len(lines) == 8
    assert lines["twice as many steps: entropy, held out"] == [
        [pytest.approx(value)] * 3 for value in (0.5, 0.7, 0.6, 0.8)]
    axis = drawn[0].axes[-1]
    assert [*axis.lines[0].get_xdata()] == [0, 300, 600] and len(axis.collections) == 4
    assert [*drawn[0].axes[0].lines[1].get_xdata()][:2] == [10, 30]
    entropy = lines["entropy in training, nats per token"]
    assert entropy == [[], [0.3] * 10, [0.4] * 10, [0.1] * 10]  # not of the start
    assert [len(each) for each in lines["effective entropy in training"]] == [0, 10, 0, 10]
    passed = [[pytest.approx(value), pytest.approx(value + 0.4)] for value in (0.2, 0.3, 0.4, 0.1)]
    assert lines["pass@k, held out"] == passed
    seeded = lines["pass@k, held out, sampled with seeds"]
    assert seeded[0] == passed[0] and seeded[1] == [pytest.approx(0.35), pytest.approx(0.75)]


def test_only_rows_of_one_base_are_pairs():
    mine = [row("final", "decoupled", seed, 0.5) for seed in (0, 1)]
    measure = report.MEASURES["pass@1"][0]
    with pytest.raises(ValueError, match="final-decoupled.*-1 and .*began with different base"):
        report.paired(mine, [row("final", "grpo", 1, 0.4, base="another")], measure)
    assert report.paired(mine, [row("final", "grpo", 7, 0.4)], measure) is None
    assert report.paired(mine, mine, lambda row: None) is None  # where no token had a gradient
    with pytest.raises(ValueError, match="have the same rng seed"):
        report.paired([*mine, mine[0]], mine, measure)


def test_no_verdict_before_all_rng_seeds_are_there():
    final = {method: [row("final", method, seed, value + seed / 1000) for seed in range(4)]
             for method, value in (("grpo", 0.2), ("thinking_seeds", 0.3))}
    assert "holds" not in report.claims(final, {})
    for method, value in (("grpo", 0.2), ("thinking_seeds", 0.3)):
        final[method].append(row("final", method, 4, value))
    assert "holds" in report.claims(final, {})


def test_the_committed_tables_and_the_readmes_are_those_of_the_rows(capsys):
    assert report.main([]) == 0
    assert capsys.readouterr().out == (report.RESULTS.parent / "tables.md").read_text()
    rows = grid.runs.rows_of(report.RESULTS)
    tables, readme = dict(report.report(rows)), (grid.ROOT / "README.md").read_text()
    wanted = [job for job in grid.jobs("final", rows) if job["phase"] == "final"]
    left = {job["name"] for job in wanted} - {row["name"] for row in rows}
    if not left:  # before, the README says that they are under way
        assert tables["What is compared"] in readme and tables["Claims"] in readme
        assert tables["Less `grpo`"] in readme
        assert tables["One factor at a time, less usual"] in readme
        games, samples = grid.SPLITS["test"]
        assert f"{grid.TRAIN} --threads 1 --steps {grid.STEPS} --rng-seed 0 " in readme
        assert f"--problems {games} --samples {samples} --k 1 {samples} --rng-seed 0 " in readme
    assert tables["A pretrained model on sums"] in readme
    assert (report.RESULTS.parent / "drift.md").read_text() in readme


TITLES = {"W": "What is compared", "G": "Less `grpo`", "C": f"Less {report.SLOWER}",
          "S": "Less `sequence_mix`", "EG": "At equal generated tokens, less `grpo`",
          "ES": "At equal generated tokens, less `sequence_mix`", "TR": "In training",
          "SD": "Sampled with seeds", "TU": "Tuning", "SM": "A pretrained model on sums",
          "F": "One factor at a time", "A": "One factor at a time, less usual",
          "AG": "One factor at a time, less `grpo`",
          "L": "Twice as many steps, less `grpo`",
          "LC": f"Twice as many steps, less {report.SLOWER}",
          "LG": f"Twice as many steps, from step {grid.LATE} to {grid.LONG}"}


def quoted(where, tables):
    """The cell that {title|line|column} names, its mean alone with |mean; |upper: the upper end of
    its interval. A line of the table of tuning is named by its first three columns."""
    title, name, column, *part = where.split("|")
    header, _rule, *lines = ([cell.strip() for cell in line.strip("|").split(" | ")]
                             for line in tables[TITLES[title]].replace("`", "").splitlines())
    column = [each.replace("`", "") for each in header].index(column)
    text, = (line[column] for line in lines if name in (line[0], ", ".join(line[:3])))
    mean, *half = text.split(" [")[0].split(" ± ")
    if part == ["upper"]:
        return f"{float(mean) + float(half[0]):.3f}"
    return mean if part else text


def test_the_numbers_of_the_readmes_results_are_those_of_their_cells():
    def one_line(text):
        return " ".join(text.split())

    tables = dict(report.report(grid.runs.rows_of(report.RESULTS)))
    readme = (grid.ROOT / "README.md").read_text()
    prose = readme.split("## The four claims, put to the test")[1].split("\n## ")[0]
    prose = one_line("\n".join(re.findall(r"^(?!\||python).*", prose, re.MULTILINE)))
    for sentence in (Path(__file__).parent / "readme_numbers.txt").read_text().splitlines():
        filled = re.sub(r"\{(.+?)\}", lambda cell: quoted(cell[1], tables), sentence)
        assert filled in prose
        prose = prose.replace(filled, "")
    others = {each.strip() for each in re.findall(r"\d+\.\d{2,}[ %]*", prose)}
    assert others <= {"0.01 %"}  # of a run before the grid, in PROTOCOL.md


def test_what_the_readme_says_of_the_numbers_is_what_the_rows_say():
    rows = grid.runs.rows_of(report.RESULTS)
    readme = " ".join((grid.ROOT / "README.md").read_text().split())
    cells = [line.strip("| ").split(" | ")
             for line in dict(report.report(rows))["Claims"].splitlines()]
    says = {line[0]: line[-1] for line in cells}
    for heading in (f"1, better results: {says['1']}", f"2, entropy: {says['2']}",
                    f"3, clipping: {says['3, against on-policy training']} against on-policy "
                    f"training, {says['3, against sequences']} against sequences",
                    f"4, the space of solutions: {says['4']}"):
        assert f"**{heading}.**" in readme
    final, pass_1 = report.compared(rows), report.MEASURES["pass@1"][0]
    assert "No method is better than `grpo` in pass@1 beyond its interval" in readme
    for name in grid.METHODS:
        if name != "grpo":
            mean, half, _n = report.paired(final[name], final["grpo"], pass_1)
            assert mean <= half
    tuned = {(name, rate): grid.mean_pass(rows, "tune", name, "learning_rate", rate)
             for name in grid.METHODS for rate in grid.LEARNING_RATES}
    assert "3e-5 was worse than 1.5e-5 for every method" in readme
    assert all(tuned[name, "3e-5"] < tuned[name, "1.5e-5"] for name in grid.METHODS)
    assert "got 1.5e-5 by one right sample in 6,400" in readme
    games, samples = grid.SPLITS["tune"]
    seeds = [tuned["thinking_seeds", rate] for rate in ("7.5e-6", "1.5e-5")]
    samples *= games * len(grid.TUNING)
    # rows keep five digits
    assert samples == 6400 and (seeds[1] - seeds[0]) * samples == pytest.approx(1, abs=0.1)


def test_without_rows_it_says_so(tmp_path, capsys):
    with pytest.raises(SystemExit):
        report.main(["--results", str(tmp_path / "none.jsonl")])
    assert "there are no rows" in capsys.readouterr().err
