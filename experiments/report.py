"""The README's results from the rows of grid.py: tables as markdown, and the figure.

    python experiments/report.py                              prints the tables
    python experiments/report.py --figure experiments/results/grid.png

Intervals are of a mean over rng seeds, 95 %, by Student's t; differences are paired by rng seed:
two methods with the same one begin with the same base policy and the same games in the same order.
What decides a claim is in PROTOCOL.md.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean, stdev

import mpmath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402
from eval import pass_at_k  # noqa: E402
from experiments.grid import ABLATIONS, FINAL, METHODS, SPLITS, TRAIN, WINDOW  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "grid.jsonl"


def late(row, key, share):
    """A metric of training: its mean over the last `share` of the steps."""
    windows = row["curves"][key]
    values = [value for value in windows[-round(share * len(windows)) :] if value is not None]
    return fmean(values) if values else None


def evaluation(key):
    """The measures of one of a row's evaluations, and how they are written."""
    return {"pass@1": (lambda row: row[key]["pass"][0], "{:.3f}"),
            "pass@32": (lambda row: row[key]["pass"][-1], "{:.3f}"),
            "distinct correct": (lambda row: row[key]["distinct_correct"], "{:.2f}"),
            "entropy": (lambda row: row[key]["entropy"], "{:.3f}")}


MEASURES = evaluation("eval") | {  # and of the training
    "effective entropy": (lambda row: late(row, "entropy_effective", 0.2), "{:.3f}"),
    "clip_lost": (lambda row: late(row, "clip_lost", 0.9), "{:.3%}"),
    "on own tokens": (lambda row: late(row, "clip_lost_continuation", 0.9), "{:.3%}"),
    "on the snapshot's": (lambda row: late(row, "clip_lost_prefix", 0.9), "{:.2%}"),
}
TRAINING = {  # how different the seeds are from the policy, what they find, and what it costs
    "KL(snapshot, policy)": (lambda row: late(row, "kl_behaviour_prefix", 0.9), "{:.4f}"),
    "effective share of seeds": (lambda row: late(row, "ess", 0.9), "{:.3f}"),
    "reward, seeded": (lambda row: late(row, "reward_seeded", 0.9), "{:.3f}"),
    "reward, unseeded": (lambda row: late(row, "reward_unseeded", 0.9), "{:.3f}"),
    "groups solved by seeded rows only": (
        lambda row: late(row, "solved_seeded_only", 0.9), "{:.2f}"),
    "by unseeded only": (lambda row: late(row, "solved_unseeded_only", 0.9), "{:.2f}"),
    "tokens a step": (lambda row: row["tokens_generated"] / row["steps"], "{:.0f}"),
    "seconds a step, beside other work": (lambda row: row["seconds"] / row["steps"], "{:.2f}"),
}
SLOWER = "`grpo` at half its rate"
AT_ONE_RATE = "at one learning rate"
CLAIMS = {  # {claim: (measures, comparators, +1 where it is that they are larger)}
    "1": (["pass@1"], ["grpo", "sequence_mix"], 1),
    "2": (["entropy", "effective entropy"], ["grpo"], 1),
    "3, against on-policy training": (["clip_lost"], ["grpo"], -1),
    "3, against sequences": (["clip_lost"], ["sequence_mix"], -1),
    "4": (["pass@32", "distinct correct"], ["grpo"], 1),
    # These decide no claim. The last is a control: does training more slowly do the same?
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
    if len(mine) < len(rows) or len(theirs) < len(others):
        raise ValueError("two rows of one method have the same rng seed")
    if apart := [seed for seed in both if mine[seed]["base"] != theirs[seed]["base"]]:
        raise ValueError(f"rows of rng seed {apart[0]} are of different base policies")
    pairs = [(measure(mine[seed]), measure(theirs[seed])) for seed in both]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return (*interval(differences), len(differences)) if differences else None


def verdict(mean, half, sign, n=len(FINAL)):
    if half is None or n < len(FINAL) or abs(mean) <= half:  # never before all rng seeds are there
        return "undecided"
    return "holds" if mean * sign > 0 else "refuted"


def cell(mean, half, form, sign=""):
    form = form.replace(":", f":{sign}") if "+" not in form else form
    return form.format(mean) + ("" if half is None else f" ± {form.replace('+', '').format(half)}")


def markdown(header, lines):
    rule = "|".join(["---"] * len(header))
    return "\n".join([f"| {' | '.join(header)} |", f"|{rule}|",
                      *(f"| {' | '.join(line)} |" for line in lines)])


def of_phase(rows, phase):
    """{method, or setting of an ablation: its rows}, in the order of METHODS or ABLATIONS."""
    key = "setting" if phase == "ablations" else "method"
    order = ["usual", *ABLATIONS] if phase == "ablations" else ["start", *METHODS]
    found = {name: [row for row in rows if row["phase"] == phase and row[key] == name]
             for name in order}
    return {name: each for name, each in found.items() if each}


def compared(rows):
    """The groups of the main table: the final runs of every method, and the control."""
    control = of_phase(rows, "control").values()
    return {**of_phase(rows, "final"), **{SLOWER: each for each in control}}


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


def table(groups, against, measures=MEASURES, flags=False):
    """A line a method: each measure with its interval, the first also as paired differences."""
    lines, first = [], [*measures][0]
    for name, rows in groups.items():
        line = [code(name), str(len(rows))]
        for key, (measure, form) in measures.items():
            is_there = "curves" in rows[0] or key in evaluation("eval")  # nothing was trained
            values = [*map(measure, rows)] if is_there else [None]
            line.append("-" if None in values
                        else form.format(fmean(values)) if "seconds" in key  # by no chance
                        else cell(*interval(values), form))
            line += [cell(*paired(rows, groups[other], measure)[:2], form, "+")
                     if other in groups and other != name else "-"
                     for other in against if key == first]
        lines.append([*line, *[flags_of(rows[0])] * flags])
    header = ["", "rng seeds", first, *(f"less {code(other)}" for other in against)]
    return markdown([*header, *[*measures][1:], *["flags"] * flags], lines)


def claims(final, same_rate):
    """A line a claim and comparison: the difference of `thinking_seeds`, what it says, and that of
    `decoupled`; and in the last column what all lines of a claim say together."""
    lines = []
    for number, (measures, others, sign) in CLAIMS.items():
        groups = same_rate if AT_ONE_RATE in number else final
        if AT_ONE_RATE in number and "common" not in phases(groups):
            continue  # all have chosen the same rate: it would be the same lines again
        mine = []
        for key in measures:
            measure, form = MEASURES[key]
            for other in others:
                two = [paired(groups[method], groups[other], measure)
                       if method in groups and other in groups else None
                       for method in ("thinking_seeds", "decoupled")]
                said = two[0] and verdict(two[0][0], two[0][1], sign, two[0][2])
                mine.append([number, key, "higher" if sign > 0 else "lower", code(other),
                             *("-" if each is None else cell(*each[:2], form, "+")
                               for each in two), said or "undecided"])
        lines += [[*line, together([line[-1] for line in mine])] for line in mine]
    return markdown(["claim", "measure", "claimed", "than", "`thinking_seeds`", "`decoupled`",
                     "says", "together"], lines)


def phases(groups):
    return {row["phase"] for rows in groups.values() for row in rows}


def together(verdicts):
    """Of all lines of a claim: it holds where all do, and is refuted where one is."""
    if "refuted" in verdicts:
        return "refuted"
    return "undecided" if "undecided" in verdicts else "holds"


def at_one_rate(rows):
    """{method: rows} at the learning rate of grpo, from the final and the common runs."""
    final, common = of_phase(rows, "final"), of_phase(rows, "common")
    rate = final["grpo"][0]["learning_rate"] if "grpo" in final else None
    both = {name: common.get(name) or final.get(name, []) for name in METHODS}
    return {name: each for name, each in both.items()
            if each and each[0]["learning_rate"] == rate}


def origin(rows):
    """Where rows come from: machines, bases and commits, each with its number of rows."""
    lines = []
    for key, of in (("machine", "machine"), ("base policy", "base"), ("commit", "git_commit")):
        for value in sorted({str(row.get(of)) for row in rows}):
            lines.append([key, value, str(sum(str(row.get(of)) == value for row in rows))])
    return markdown(["", "", "trainings"], lines)


def report(rows):
    """Yields (title, markdown) of each table that there are rows for."""
    final = of_phase(rows, "final")
    if final:
        shown = compared(rows)
        yield "What is compared", table(shown, ["grpo", "sequence_mix"], flags=True)
        yield "Claims", claims(shown, at_one_rate(rows))
        trained = {name: each for name, each in shown.items() if name != "start"}
        yield "In training", table(trained, [], TRAINING)
    equal = {name: [{**row, "equal_tokens": row.get("equal_tokens", row["eval"])} for row in each]
             for name, each in final.items() if name != "start"}
    if equal:
        measures = evaluation("equal_tokens") | {
            "at step": (lambda row: row["stop"], "{:.0f}"), "tokens": (generated, "{:.0f}")}
        yield "At equal generated tokens", table(equal, ["grpo"], measures)
        seeded = {name: each for name, each in equal.items() if "eval_seeded" in each[0]}
        measures = evaluation("eval_seeded")
        del measures["entropy"]  # it would be the policy's, at tokens that a snapshot wrote
        for key, (with_seeds, form) in [*measures.items()]:
            without, _form = evaluation("eval")[key]
            measures[f"gain in {key}"] = (
                lambda row, a=with_seeds, b=without: a(row) - b(row), form.replace(":", ":+"))
        measures["gain in pass@32 by 16 of 32"] = (
            lambda row: half_seeded(row) - row["eval"]["pass"][-1], "{:+.3f}")
        yield "Sampled with seeds", table(seeded, [], measures)
    same = at_one_rate(rows)
    if "common" in phases(same):
        rate = same["grpo"][0]["learning_rate"]
        yield f"At one learning rate, {rate}", table(same, ["grpo", "sequence_mix"])
    if ablations := of_phase(rows, "ablations"):
        yield "One factor at a time", table(ablations, ["usual"], flags=True)
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


def draw(rows, path):
    """The figure: means over rng seeds, and for the training's curves the range of all of them."""
    from matplotlib.figure import Figure

    groups = compared(rows)
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, (key, title) in zip(axes.flat, (
            ("entropy", "entropy in training, nats per token"),
            ("clip_lost", "share of the gradient lost to clipping"),
            ("reward", "reward in training"))):
        for color, (name, each) in enumerate(groups.items()):
            if name == "start":
                continue
            windows = [*zip(*(row["curves"][key] for row in each))]
            steps = [WINDOW * (i + 0.5) for i, window in enumerate(windows) if None not in window]
            values = [window for window in windows if None not in window]
            axis.plot(steps, [fmean(window) for window in values], color=f"C{color}")
            axis.fill_between(steps, [*map(min, values)], [*map(max, values)], color=f"C{color}",
                              alpha=0.12, linewidth=0)
        axis.set(title=title, xlabel="step")
    axis = axes.flat[3]
    for color, (name, each) in enumerate(groups.items()):
        for key, style in (("eval", "-"), ("eval_seeded", ":")):
            if key in each[0]:
                curve = [fmean(values) for values in zip(*(row[key]["pass"] for row in each))]
                axis.plot(range(1, len(curve) + 1), curve, style, color=f"C{color}",
                          label=name.replace("`", "") if key == "eval" else None)
    axis.set_xscale("log", base=2)
    ks = [2 ** i for i in range(6)]
    axis.set(title="pass@k, held out (dotted: sampled with seeds)", xlabel="k")
    axis.set_xticks(ks, ks)
    axis.legend(fontsize="small", framealpha=0.4)
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
    for title, text in report(rows):
        print(f"{title}\n\n{text}\n")
    if args.figure:
        draw(rows, Path(args.figure))
    return 0


if __name__ == "__main__":
    runs.main(main)
