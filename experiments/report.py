"""The README's results from the rows of grid.py: tables as markdown, and the figure.

    python experiments/report.py                              prints the tables
    python experiments/report.py --figure experiments/results/grid.png

Intervals are of a mean over rng seeds, 95 %, by Student's t; differences are paired by rng seed:
two methods with the same one begin with the same steps, and are asked the same games. What decides
a claim is in PROTOCOL.md.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean, stdev

import mpmath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402
from experiments.grid import ABLATIONS, METHODS, WINDOW  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "grid.jsonl"


def late(row, key, share):
    """A metric of training: its mean over the last `share` of the steps."""
    windows = row["curves"][key]
    return fmean(value for value in windows[-round(share * len(windows)) :] if value is not None)


def evaluation(key):
    """The measures of one of a row's evaluations, and how they are written."""
    return {"pass@1": (lambda row: row[key]["pass"][0], "{:.3f}"),
            "pass@32": (lambda row: row[key]["pass"][-1], "{:.3f}"),
            "distinct correct": (lambda row: row[key]["distinct_correct"], "{:.2f}"),
            "entropy": (lambda row: row[key]["entropy"], "{:.3f}")}


MEASURES = evaluation("eval") | {  # and of the training
    "effective entropy": (lambda row: late(row, "entropy_effective", 0.2), "{:.3f}"),
    "clip_lost, %": (lambda row: 100 * late(row, "clip_lost", 0.9), "{:.2f}"),
    "seconds a step": (lambda row: row["seconds"] / row["steps"], "{:.2f}"),
    "tokens a step": (lambda row: row["tokens_generated"] / row["steps"], "{:.0f}"),
}
CLAIMS = [  # (claim, measure, comparator, +1 where the claim is that it is larger)
    (f"({number}) {measure} {'above' if sign > 0 else 'below'} `{other}`", measure, other, sign)
    for number, measures, sign in (
        (1, ["pass@1"], 1), (2, ["entropy", "effective entropy"], 1), (3, ["clip_lost, %"], -1),
        (4, ["pass@32", "distinct correct"], 1))
    for measure in measures
    for other in ("grpo", "sequence_mix") if number in (1, 3) or other == "grpo"]


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
    """interval() of the differences rows - others over the rng seeds that both have, and these."""
    mine, theirs = ({row["rng_seed"]: measure(row) for row in each} for each in (rows, others))
    both = sorted(seed for seed in mine if seed in theirs)
    return (*interval([mine[seed] - theirs[seed] for seed in both]), len(both))


def verdict(mean, half, sign):
    if half is None or abs(mean) <= half:
        return "undecided"
    return "holds" if mean * sign > 0 else "refuted"


def cell(mean, half, form, sign=""):
    form = form.replace(":", f":{sign}")
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


def code(name):
    return f"`{name}`" if name in METHODS else name


def table(groups, against, measures=MEASURES):
    """A line a method: each measure with its interval, the first also as paired differences."""
    lines, first = [], [*measures][0]
    for name, rows in groups.items():
        line = [code(name), str(len(rows))]
        for key, (measure, form) in measures.items():
            is_there = "curves" in rows[0] or key in evaluation("eval")  # nothing was trained
            line.append(cell(*interval([*map(measure, rows)]), form) if is_there else "-")
            line += [cell(*paired(rows, groups[other], measure)[:2], form, "+")
                     if other in groups and other != name else "-"
                     for other in against if key == first]
        lines.append(line)
    header = ["", "rng seeds", first, *(f"less {code(other)}" for other in against)]
    return markdown([*header, *[*measures][1:]], lines)


def claims(groups):
    """A line a claim: what `thinking_seeds` and `decoupled` say of it."""
    lines = []
    for what, key, other, sign in CLAIMS:
        measure, form = MEASURES[key]
        line = [what]
        for method in ("thinking_seeds", "decoupled"):
            if method in groups and other in groups:
                mean, half, _n = paired(groups[method], groups[other], measure)
                line += [cell(mean, half, form, "+"), verdict(mean, half, sign)]
        lines.append(line)
    return markdown(["claim", "`thinking_seeds`", "", "`decoupled`", ""], lines)


def report(rows):
    """Yields (title, markdown) of each table that there are rows for."""
    final = of_phase(rows, "final")
    if final:
        yield "What is compared", table(final, ["grpo", "sequence_mix"])
        yield "Claims", claims(final)
    equal = {name: [{**row, "equal_tokens": row.get("equal_tokens", row["eval"])} for row in each]
             for name, each in final.items() if name != "start"}
    if equal:
        yield "At equal generated tokens", table(equal, ["grpo"], evaluation("equal_tokens"))
        seeded = {name: each for name, each in equal.items() if "eval_seeded" in each[0]}
        yield "Sampled with seeds", table(seeded, ["grpo"], evaluation("eval_seeded"))
    if common := of_phase(rows, "common"):
        rate = common[next(iter(common))][0]["learning_rate"]
        same = {name: each for name, each in final.items() if each[0]["learning_rate"] == rate}
        both = {name: (same | common)[name] for name in METHODS if name in same | common}
        yield f"At one learning rate, {rate}", table(both, ["grpo", "sequence_mix"])
        yield "Claims at one learning rate", claims(both)
    if ablations := of_phase(rows, "ablations"):
        yield "One factor at a time", table(ablations, ["usual"])
    tuned = {}
    for row in rows:
        if row["phase"] in ("tune", "seeds"):
            key = row["method"], row["learning_rate"], row["setting"]
            tuned.setdefault(key, []).append(row["eval"])
    lines = [[code(method), rate, setting, str(len(each)), *(
                  f"{fmean(value(row) for row in each):.3f}"
                  for value in (lambda row: row["pass"][0], lambda row: row["entropy"]))]
             for (method, rate, setting), each in sorted(tuned.items())]
    if lines:
        header = ["", "learning rate", "setting of seeds", "rng seeds", "pass@1", "entropy"]
        yield "Tuning", markdown(header, lines)


def draw(rows, path):
    """The figure: means over rng seeds, and for the training's curves the range of all of them."""
    from matplotlib.figure import Figure

    final = of_phase(rows, "final")
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, (key, title) in zip(axes.flat, (
            ("entropy", "entropy in training, nats per token"),
            ("clip_lost", "share of the gradient lost to clipping"),
            ("reward", "reward in training"))):
        for color, (name, each) in enumerate(final.items()):
            if name == "start":
                continue
            windows = [*zip(*(row["curves"][key] for row in each))]
            steps = [WINDOW * (i + 0.5) for i, window in enumerate(windows) if None not in window]
            values = [window for window in windows if None not in window]
            axis.plot(steps, [fmean(window) for window in values], color=f"C{color}", label=name)
            axis.fill_between(steps, [*map(min, values)], [*map(max, values)], color=f"C{color}",
                              alpha=0.12, linewidth=0)
        axis.set(title=title, xlabel="step")
    axis = axes.flat[3]
    for color, (name, each) in enumerate(final.items()):
        for key, style in (("eval", "-"), ("eval_seeded", ":")):
            if key in each[0]:
                curve = [fmean(values) for values in zip(*(row[key]["pass"] for row in each))]
                axis.plot(range(1, len(curve) + 1), curve, style, color=f"C{color}",
                          label=name if key == "eval" else None)
    axis.set(title="pass@k, held out (dotted: sampled with seeds)", xlabel="k", xscale="log")
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
