"""The README's results from the rows of grid.py: tables as markdown, and the figure.

    python experiments/report.py                              prints the tables
    python experiments/report.py --figure experiments/results/grid.png

Intervals are of a mean over rng seeds, 95 %, by Student's t; differences are paired by rng seed:
two methods with the same one begin with the same base policy and the same games in the same order.
What decides a claim is in PROTOCOL.md.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, median, stdev

import mpmath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402
from eval import pass_at_k  # noqa: E402
from experiments.grid import (  # noqa: E402
    ABLATIONS, FINAL, LATE, LONG, LONGER, METHODS, OTHERS, SPLITS, TOGETHER, TRAIN, WINDOW)

RESULTS = Path(__file__).resolve().parent / "results" / "grid.jsonl"


def curve(row, key):
    """A metric of training in each window; empty where it would be another measure than that of
    the same name in other rows."""
    is_other = ("--temperature" in row["flags"]  # of the tempered policy
                # without the prefixes, where entropy is highest
                or row["method"] == "mask_prefix" and key == "entropy_effective"
                # a row that ended before the snapshot's turn counts as unseeded: they are chosen
                # by what came out
                or row["method"] == "suffix" and ("_seeded" in key or "_unseeded" in key))
    return [] if is_other else row.get("curves", {}).get(key, [])


def mean(values):
    values = [value for value in values if value is not None]
    return fmean(values) if values else None


def settled(row, key, less=None):
    """A metric of training: the mean from the second window on, for before there are hardly any
    seeds. Less another one: of the windows that have both, but for the first of them, where one may
    be of fewer steps than the other. None if there is no such window."""
    values = curve(row, key)[1:]
    if less:
        pairs = zip(values, curve(row, less)[1:])
        values = [a - b for a, b in pairs if None not in (a, b)][1:]
    return mean(values)


def a_step(row, key):
    return row[key] / row["steps"] if key in row else None  # the start has no steps


def last_fifth(values):
    return values[len(values) - round(len(values) / 5) :]


def evaluation(key):
    """The measures of one of a row's evaluations, and how they are written."""
    return {"pass@1": (lambda row: row[key]["pass"][0], "{:.3f}"),
            "pass@32": (lambda row: row[key]["pass"][-1], "{:.3f}"),
            "distinct correct": (lambda row: row[key]["distinct_correct"], "{:.2f}"),
            "entropy": (lambda row: row[key]["entropy"], "{:.3f}")}


MEASURES = evaluation("eval") | {  # and of the training
    "effective entropy": (lambda row: mean(last_fifth(curve(row, "entropy_effective"))), "{:.3f}"),
    "clip_lost": (lambda row: settled(row, "clip_lost"), "{:.4%}"),
    "on own tokens": (lambda row: settled(row, "clip_lost_continuation"), "{:.4%}"),
    "on the snapshot's": (lambda row: settled(row, "clip_lost_prefix"), "{:.3%}"),
}
TRAINING = {  # how different the seeds are from the policy, and what they find
    "share of the snapshot's tokens": (lambda row: settled(row, "snapshot_share"), "{:.3f}"),
    "KL(snapshot, policy)": (lambda row: settled(row, "kl_behaviour_prefix"), "{:.4f}"),
    "effective share of seeds": (lambda row: settled(row, "ess"), "{:.3f}"),
    "reward": (lambda row: settled(row, "reward"), "{:.3f}"),
    "of seeded less unseeded rows": (
        lambda row: settled(row, "reward_seeded", "reward_unseeded"), "{:+.3f}"),
    "groups solved by seeded rows only": (lambda row: settled(row, "solved_seeded_only"), "{:.2f}"),
    "by unseeded only": (lambda row: settled(row, "solved_unseeded_only"), "{:.2f}"),
    "the first less the second": (
        lambda row: settled(row, "solved_seeded_only", "solved_unseeded_only"), "{:+.2f}"),
    "skipped updates": (lambda row: row["skipped_updates"], "{:.0f}"),
}
COST = {
    "tokens a step": (lambda row: a_step(row, "tokens_generated"), "{:.0f}"),
    "seconds a step": (lambda row: a_step(row, "seconds"), "{:.2f}"),  # beside other work
}
SHORT = ("pass@1", "pass@32", "distinct correct", "entropy", "clip_lost")
PLAIN = ("seconds a step", "skipped updates", "at step")  # shown without an interval
HALF = " at half its rate"
SLOWER = f"`grpo`{HALF}"  # the control: does training more slowly do the same?
CONTROLLED = ("2", "4")  # claims that count only beyond it
DECIDED = ("1", "2", "3, against on-policy training", "3, against sequences", "4")
AT_ONE_RATE = "at one learning rate"
CLAIMS = {  # {claim: (measures, comparators, +1 where it is that they are larger)}
    "1": (["pass@1"], ["grpo", "sequence_mix"], 1),
    "2": (["entropy", "effective entropy"], ["grpo"], 1),
    "3, against on-policy training": (["clip_lost"], ["grpo"], -1),
    "3, against sequences": (["clip_lost"], ["sequence_mix"], -1),
    "4": (["pass@32", "distinct correct"], ["grpo"], 1),
    # These decide no claim.
    f"1, {AT_ONE_RATE}": (["pass@1"], ["grpo", "sequence_mix"], 1),
    f"2, {AT_ONE_RATE}": (["entropy", "effective entropy"], ["grpo"], 1),
    f"4, {AT_ONE_RATE}": (["pass@32", "distinct correct"], ["grpo"], 1),
    "3, of the snapshot's tokens": (["on the snapshot's"], ["sequence_mix"], -1),
    "control": (["pass@1", "entropy", "effective entropy", "pass@32", "distinct correct"],
                [SLOWER], 1),
}


def t_quantile(degrees):
    """The 97.5 % quantile of Student's t distribution."""
    def tail(t):  # P(|T| > t)
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)

    return float(mpmath.findroot(lambda t: tail(t) - 0.05, (1.9, 13), solver="anderson"))


def interval(values):
    """(mean, half the width of its 95 % interval, None of a single value)."""
    n = len(values)
    half = t_quantile(n - 1) * stdev(values) / n ** 0.5 if n > 1 else None
    return fmean(values), half


def paired(rows, others, measure):
    """interval() of the differences rows - others over the rng seeds that both have, and how many;
    None without a pair of values. ValueError if one has an rng seed twice, or a pair would be of
    different base policies."""
    mine, theirs = ({row["rng_seed"]: row for row in each} for each in (rows, others))
    both = sorted(seed for seed in mine if seed in theirs)
    for each, by_seed in ((rows, mine), (others, theirs)):
        if len(by_seed) < len(each):
            raise ValueError(f"two rows like {each[0]['name']} have the same rng seed")
    if apart := [seed for seed in both if mine[seed]["base"] != theirs[seed]["base"]]:
        names = " and ".join(each[apart[0]]["name"] for each in (mine, theirs))
        raise ValueError(f"{names} began with different base policies")
    pairs = [(measure(mine[seed]), measure(theirs[seed])) for seed in both]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return (*interval(differences), len(differences)) if differences else None


LONG_CLAIMS = {number: (measures, [other for other in others if other != "sequence_mix"], sign)
               for number, (measures, others, sign) in CLAIMS.items()
               if number in ("1", "2", "4", "control")}


def verdict(mean, half, sign, n=len(FINAL)):
    if half is None or n < len(FINAL) or abs(mean) <= half:  # never before all rng seeds are there
        return "undecided"
    return "holds" if mean * sign > 0 else "refuted"


def cell(mean, half, form, sign=""):
    form = form.replace(":", f":{sign}") if "+" not in form else form
    if not form.format(abs(mean)).strip("+0.%"):
        mean = 0.0  # instead of -0.000
    return form.format(mean) + ("" if half is None else f" ± {form.replace('+', '').format(half)}")


def markdown(header, lines):
    rule = "|".join(["---"] * len(header))
    return "\n".join([f"| {' | '.join(header)} |", f"|{rule}|",
                      *(f"| {' | '.join(line)} |" for line in lines)])


def of_phase(rows, phase):
    """{method, or setting of an ablation: its rows}, in the order of METHODS or ABLATIONS."""
    key = "setting" if phase == "ablations" else "method"
    settings = ["usual", *ABLATIONS, *(f"as {method}" for method in OTHERS)]
    order = settings if phase == "ablations" else ["start", *METHODS]
    found = {name: [row for row in rows if row["phase"] == phase and row[key] == name]
             for name in order}
    return {name: each for name, each in found.items() if each}


def compared(rows, phase="final", control="control"):
    """The groups of the main table: the final runs of every method, and those at half the rate.
    phase and control are "long" and "long_control" for the longer trainings."""
    control = of_phase(rows, control).items()
    return {**of_phase(rows, phase),
            **{code(method) + HALF: each for method, each in control}}


def code(name):
    return f"`{name}`" if name in METHODS else name


def flags_of(row):
    """What a training's command has beside the flags that all have, and its rng seed."""
    words = row["flags"].removeprefix(TRAIN).split(" --rng-seed")[0].split()
    return "-" if row["method"] == "start" else f"`{' '.join(words)}`"


def generated(row):
    """Tokens generated up to what is evaluated at equal tokens."""
    return row["equal_tokens"].get("tokens_generated", row["tokens_generated"])


def half_seeded(row):
    """pass@32 of 16 samples without seeds and 16 with them: the chance that one is right."""
    n = SPLITS["test"][1]
    return fmean(1 - (1 - pass_at_k(n, a, n // 2)) * (1 - pass_at_k(n, b, n // 2))
                 for a, b in zip(row["eval"]["correct"], row["eval_seeded"]["correct"]))


def alone(row, other):
    """The share of games with a right sample in this evaluation, and none in the other one."""
    return fmean(a > 0 == b for a, b in zip(row["correct"], other["correct"]))


def with_seeds():
    """The measures of samples that begin with seeds, and what they gain over those that do not."""
    measures = evaluation("eval_seeded")
    del measures["entropy"]  # it would be the policy's, at tokens that a snapshot wrote
    for key, (seeded, form) in [*measures.items()]:
        without, _form = evaluation("eval")[key]
        measures[f"gain in {key}"] = (
            lambda row, a=seeded, b=without: a(row) - b(row), form.replace(":", ":+"))
    measures["gain in pass@32 by 16 of 32"] = (
        lambda row: half_seeded(row) - row["eval"]["pass"][-1], "{:+.3f}")
    measures["games solved with seeds only"] = (
        lambda row: alone(row["eval_seeded"], row["eval"]), "{:.3f}")
    measures["without only"] = (lambda row: alone(row["eval"], row["eval_seeded"]), "{:.3f}")
    return measures


def table(groups, measures=MEASURES, flags=False):
    """A line a method: each measure with its interval over rng seeds."""
    lines = []
    for name, rows in groups.items():
        line = [code(name), str(len(rows))]
        for key, (measure, form) in measures.items():
            values = [*map(measure, rows)]
            # of the start, and of these, the rng seeds tell nothing
            is_plain = "curves" not in rows[0] or key in PLAIN
            line.append("-" if None in values else form.format(fmean(values)) if is_plain
                        else cell(*interval(values), form))
        lines.append([*line, *[flags_of(rows[0])] * flags])
    return markdown(["", "rng seeds", *measures, *["flags"] * flags], lines)


def differences(groups, other, measures=MEASURES, flags=False):
    """A line a method: what each measure is above that of the other method, paired by rng seed."""
    lines = []
    for name, rows in groups.items():
        found = {key: paired(rows, groups[other], measure)
                 for key, (measure, _form) in measures.items()}
        pairs = max((each[2] for each in found.values() if each), default=0)
        if name not in (other, "start") and pairs:
            lines.append([code(name), str(pairs), *(
                cell(*each[:2], measures[key][1], "+") if each and each[2] == pairs else "-"
                for key, each in found.items()), *[flags_of(rows[0])] * flags])
    return markdown(["", "pairs", *measures, *["flags"] * flags], lines)


def claims(final, same_rate, lines_of=CLAIMS):
    """A line a claim and comparison: the difference of `thinking_seeds`, that of `decoupled`, and
    what the first says; in the last column what all lines of a claim say together. Of the longer
    trainings, which decide nothing, neither that nor `decoupled`."""
    decides = lines_of is CLAIMS
    def compared_to(other, measure, groups, method="thinking_seeds"):
        is_there = method in groups and other in groups
        return paired(groups[method], groups[other], measure) if is_there else None

    def says(found, sign):
        return verdict(found[0], found[1], sign, found[2]) if found else "undecided"

    def beyond_control(measure, groups):
        """What says whether `thinking_seeds` is above the control: in the measure, or in pass@1 and
        there above `grpo` as well, or not having got as far would do."""
        pass_1 = MEASURES["pass@1"][0]
        found = [compared_to(SLOWER, measure, groups), compared_to(SLOWER, pass_1, groups),
                 compared_to("grpo", pass_1, groups)]
        own, slower, full = [says(each, 1) == "holds" for each in found]
        return own or slower and full, all(each and each[2] == len(FINAL) for each in found)

    lines = []
    for number, (measures, others, sign) in lines_of.items():
        groups = same_rate if AT_ONE_RATE in number else final
        if AT_ONE_RATE in number and "common" not in phases(groups):
            continue  # all have chosen the same rate: it would be the same lines again
        mine = []
        for key in measures:
            measure, form = MEASURES[key]
            for other in others:
                two = [compared_to(other, measure, groups, method)
                       for method in ("thinking_seeds", "decoupled")]
                said = says(two[0], sign)
                if number in CONTROLLED and said == "holds":
                    is_beyond, is_known = beyond_control(measure, groups)
                    if not is_beyond:
                        said = "undecided" + ": not above the control" * is_known
                mine.append([number, key, "higher" if sign > 0 else "lower", code(other),
                             *("-" if each is None else cell(*each[:2], form, "+")
                               for each in two[: 1 + decides]), said])
        all_of_it = together([line[-1] for line in mine]) if number in DECIDED else "-"
        lines += [[*line, *[all_of_it] * decides] for line in mine]
    return markdown(["claim", "measure", "claimed", "than", "`thinking_seeds`",
                     *["`decoupled`"] * decides, "says", *["together"] * decides], lines)


def phases(groups):
    return {row["phase"] for rows in groups.values() for row in rows}


def together(verdicts):
    """Of all lines of a claim: it holds where all do, and is refuted where one is."""
    if "refuted" in verdicts:
        return "refuted"
    return "holds" if {*verdicts} == {"holds"} else "undecided"


def at_one_rate(rows):
    """{method: rows} at the learning rate of grpo, from the final and the common runs."""
    final, common = of_phase(rows, "final"), of_phase(rows, "common")
    rate = final["grpo"][0]["learning_rate"] if "grpo" in final else None
    both = {name: common.get(name) or final.get(name, []) for name in METHODS}
    return {name: each for name, each in both.items()
            if each and each[0]["learning_rate"] == rate}


def course(groups):
    """A line an evaluation during training: means over rng seeds, of the 100 games of train.py."""
    steps = sorted({one["step"] for rows in groups.values() for row in rows
                    for one in row["held_out"]})
    keys = ("pass@1", "pass@8", "entropy")

    def at(step, rows, key):
        found = [one[key] for row in rows for one in row["held_out"] if one["step"] == step]
        return f"{fmean(found):.3f}" if len(found) == len(rows) else "-"

    return markdown(["step", *(f"{key}, {code(name)}" for key in keys for name in groups)],
                    [[str(step), *(at(step, rows, key) for key in keys
                                   for rows in groups.values())] for step in steps])


def gains(groups):
    """A line a method: what pass@1 on held-out games gains from step LATE to LONG, and what that
    says by PROTOCOL.md."""
    lines = []
    for name, rows in groups.items():
        mean, half = interval([row["eval"]["pass"][0] - row["late"]["pass"][0] for row in rows])
        says = ("not decided" if len(rows) < len(LONGER) else "rising" if mean > half
                else "saturated" if mean + half < 0.015 else "not decided")
        lines.append([code(name), str(len(rows)), cell(mean, half, "{:+.3f}"), says])
    return markdown(["", "rng seeds", "gain in pass@1", "says"], lines)


def longer(rows):
    """The groups of the longer trainings, with the rng seeds that all of them have; none before
    there is one. ValueError if one had another number of steps."""
    groups = compared(rows, "long", "long_control")
    for each in (row for rows in groups.values() for row in rows):
        if each["steps"] != LONG:
            raise ValueError(f"{each['name']} has {each['steps']} steps instead of {LONG}")
    names = ["grpo", "thinking_seeds", SLOWER, f"`thinking_seeds`{HALF}"]
    seeds = [{row["rng_seed"] for row in groups.get(name, [])} for name in names]
    common = set.intersection(*seeds)
    return {name: [row for row in groups[name] if row["rng_seed"] in common]
            for name in names} if common else {}


def at_equal_tokens(groups):
    """The rows as they were when as much had been generated as by all of `grpo`, without those of
    which this is not known: they generate more, and were evaluated at their end alone."""
    own = [row["tokens_generated"] for row in groups.get("grpo", [])]
    most = 1.005 * fmean(own) if own else float("inf")
    return {name: [{**row, "equal_tokens": row.get("equal_tokens", row["eval"])} for row in rows]
            for name, rows in groups.items()
            if all("equal_tokens" in row or row["tokens_generated"] <= most for row in rows)}


def origin(rows):
    """Where trainings come from: their number for each machine, base and commit of each part."""
    found = Counter((TOGETHER[row["phase"]], row["machine"], row["base"], row["git_commit"])
                    for row in rows if row["method"] != "start")
    lines = [[*each, str(count)] for each, count in sorted(found.items())]
    return markdown(["part", "machine", "base policy", "commit", "trainings"], lines)


def pretrained(folder):
    """A line a training of the second setting that has ended: metrics.jsonl of train.py, kept as
    sums-NAME.jsonl. Brackets are intervals over problems."""
    lines = []
    for path in sorted(folder.glob("sums-*.jsonl")):
        evals, train = ([row for row in runs.rows_of(path) if row["kind"] == kind]
                        for kind in ("eval", "train"))
        if len(evals) < 2:
            continue
        before, after = evals[0], evals[-1]
        line = [f"`{path.stem.removeprefix('sums-')}`", str(len(train))]
        for key in ("pass@1", "pass@8"):
            line += ["{:.3f} [{:.3f}, {:.3f}]".format(
                *(row[key + end] for end in ("", "_low", "_high"))) for row in (before, after)]
        line += [f"{row['entropy']:.3f}" for row in (before, after)]
        for key, form in (("reward", "{:.3f}"), ("kl_behaviour_prefix", "{:.4f}"),
                          ("clip_lost", "{:.2%}"), ("snapshot_share", "{:.3f}")):
            value = mean(row[key] for row in train[len(train) // 2 :])
            line.append("-" if value is None else form.format(value))
        seconds = median(sum(row[key] for key in row if "seconds_" in key) for row in train)
        lines.append([*line, f"{seconds:.1f}"])
    return markdown([
        "method and rng seed", "steps", "pass@1 before", "after", "pass@8 before", "after",
        "entropy before", "after", "of the second half of the steps: reward",
        "KL(snapshot, policy)", "clip_lost", "share of the snapshot's tokens", "seconds a step",
    ], lines) if lines else None


def report(rows, folder=RESULTS.parent):
    """Yields (title, markdown) of each table that there are rows for."""
    final = of_phase(rows, "final")
    if final:
        shown = compared(rows)
        yield "What is compared", table(shown, MEASURES | COST, flags=True)
        for other in ("grpo", SLOWER, "sequence_mix"):
            if other in shown:
                yield f"Less {code(other)}", differences(shown, other)
        yield "Claims", claims(shown, at_one_rate(rows))
        trained = {name: each for name, each in shown.items() if name != "start"}
        yield "In training", table(trained, TRAINING)
        measures, equal = evaluation("equal_tokens"), at_equal_tokens(trained)
        for other in ("grpo", "sequence_mix"):
            if other in equal:
                yield (f"At equal generated tokens, less {code(other)}",
                       differences(equal, other, measures))
        measures |= {"at step": (lambda row: row["stop"] or row["steps"], "{:.0f}"),
                     "tokens": (generated, "{:.0f}")}
        yield "At equal generated tokens", table(equal, measures)
        seeded = {name: each for name, each in trained.items()
                  if all("eval_seeded" in row for row in each)}
        yield "Sampled with seeds", table(seeded, with_seeds())
    same = at_one_rate(rows)
    if "common" in phases(same):
        rate = same["grpo"][0]["learning_rate"]
        yield f"At one learning rate, {rate}", table(same)
    if long := longer(rows):
        yield "Twice as many steps", table(long, MEASURES | COST, flags=True)
        for other in ("grpo", SLOWER):
            yield f"Twice as many steps, less {code(other)}", differences(long, other)
        yield "Twice as many steps, by the rules of the claims", claims(long, {}, LONG_CLAIMS)
        yield "Twice as many steps, in training", table(long, TRAINING)
        yield "Twice as many steps, in their course", course(long)
        yield f"Twice as many steps, from step {LATE} to {LONG}", gains(long)
        yield "Twice as many steps, sampled with seeds", table(long, with_seeds())
    if ablations := of_phase(rows, "ablations"):
        short = {key: MEASURES[key] for key in SHORT}
        yield "One factor at a time", table(ablations, flags=True)
        if "usual" in ablations:
            yield "One factor at a time, less usual", differences(
                ablations, "usual", short, flags=True)
            if "grpo" in final:  # its final runs have the same rng seeds, games and base
                yield "One factor at a time, less `grpo`", differences(
                    {**ablations, "grpo": final["grpo"]}, "grpo", short)
    tuned = {}
    for row in rows:
        if row["phase"] in ("tune", "seeds"):
            key = row["method"], row["learning_rate"], row["setting"]
            tuned.setdefault(key, []).append(row)
    shown = ("pass@1", "pass@32", "distinct correct", "entropy", "clip_lost", "on the snapshot's")
    lines = [[code(method), rate, setting, str(len(each)), *(
                  "-" if None in (values := [*map(MEASURES[key][0], each)])
                  else MEASURES[key][1].format(fmean(values)) for key in shown)]
             for (method, rate, setting), each in sorted(
                 tuned.items(), key=lambda one: (one[0][0], float(one[0][1]), one[0][2]))]
    if lines:
        header = ["", "learning rate", "setting of seeds", "rng seeds", *shown]
        yield "Tuning", markdown([key.replace("32", "16") for key in header], lines)
    yield "Where the rows come from", origin(rows)
    if second := pretrained(folder):
        yield "A pretrained model on sums", second


def band(axis, steps, values, look):
    """Draws the mean over rng seeds, and their range: `values` has a tuple a step."""
    axis.plot(steps, [*map(fmean, values)], **look)
    axis.fill_between(steps, [*map(min, values)], [*map(max, values)], color=look["color"],
                      alpha=0.1, linewidth=0)


def draw(rows, path):
    """The figure: means over rng seeds, and for all curves by step the range of them."""
    from matplotlib.figure import Figure

    groups = compared(rows)
    long, names = longer(rows), ["start", *METHODS]
    # a method has one colour at both rates
    looks = {name: {"color": f"C{names.index(name.removesuffix(HALF).strip('`'))}",
                    "linestyle": "--" if name.endswith(HALF) else "-"}
             for name in {**groups, **long}}
    width = 4 if long else 3
    figure = Figure(figsize=(5.5 * width, 9), layout="constrained")
    axes = iter(figure.subplots(2, width).T.flat)
    for key, title in (("entropy", "entropy in training, nats per token"),
                       ("entropy_effective", "effective entropy in training"),
                       ("clip_lost", "share of the gradient lost to clipping"),
                       ("reward", "reward in training")):
        axis = next(axes)
        for name, each in groups.items():
            windows = [*zip(*(curve(row, key) for row in each))]
            steps = [WINDOW * (i + 0.5) for i, window in enumerate(windows) if None not in window]
            band(axis, steps, [window for window in windows if None not in window], looks[name])
        axis.set(title=title, xlabel="step")
        if key == "clip_lost":
            axis.set_yscale("symlog", linthresh=1e-5)
            axis.set_ylim(bottom=0)
    ks = [2 ** i for i in range(6)]
    for key, title in (("eval", "pass@k, held out"),
                       ("eval_seeded", "pass@k, held out, sampled with seeds")):
        axis = next(axes)
        for name, each in groups.items():
            if key not in each[0] and name != "start":
                continue
            shown = key if key in each[0] else "eval"  # there are no seeds before training
            passed = [fmean(values) for values in zip(*(row[shown]["pass"] for row in each))]
            look = looks[name] if shown == key else {**looks[name], "linestyle": ":"}
            axis.plot(range(1, len(passed) + 1), passed, **look, label=name.replace("`", ""))
        if key == "eval":  # where no line is dotted
            legend = axis.get_legend_handles_labels()
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="k", ylim=(0.2, 0.92))
        axis.set_xticks(ks, ks)
    for key in ("pass@1", "entropy") if long else ():
        axis = next(axes)
        for name, each in long.items():
            steps = [one["step"] for one in each[0]["held_out"]]
            band(axis, steps, [*zip(*([one[key] for one in row["held_out"]] for row in each))],
                 looks[name])
        axis.set(title=f"twice as many steps: {key}, held out", xlabel="step")
    figure.legend(*legend, loc="outside lower center", ncols=6)
    with runs.writing(path):
        figure.savefig(path, dpi=100)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.error = runs.fail
    p.add_argument("--results", default=str(RESULTS), help="rows of grid.py")
    p.add_argument("--figure", help="PNG to draw")
    args = p.parse_args(argv)
    rows = runs.or_fail(runs.rows_of, Path(args.results))
    if not rows:
        runs.fail(f"--results {args.results}: there are no rows; run experiments/grid.py first")
    for title, text in runs.or_fail(lambda: [*report(rows, Path(args.results).parent)]):
        print(f"{title}\n\n{text}\n")
    if args.figure:
        draw(rows, Path(args.figure))
    return 0


if __name__ == "__main__":
    runs.main(main)
