"""Do two evaluations differ? Both asked the same problems, so they are compared problem by problem.

    python experiments/compare.py runs/eval-a runs/eval-b

prints, for each task, pass@k of both and the difference b - a with its 95 % interval (a bootstrap
over problems of the paired differences: far narrower than two separate intervals, since problems
differ more than models do), and the problems that only one of the two ever solved.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import runs  # noqa: E402
from eval import bootstrap_interval, pass_at_k, usual_ks  # noqa: E402
from tasks.sets import short_name  # noqa: E402


def read(path):
    """{(task, prompt, which of the problems of this prompt): whether right, of each sample}.

    From a samples.jsonl of eval.py. ValueError for what is no such file, with its line. Where an
    evaluation was stopped, its last line and the problem without all its samples are left out.
    """
    path = Path(path) / "samples.jsonl" if Path(path).is_dir() else Path(path)
    right, problems, lines = {}, {}, path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            task, prompt = short_name(f"{row['task']}"), f"{row['prompt']}"
            same = problems.setdefault((task, prompt), [])
            same += [row["problem"]] if row["problem"] not in same else []
            key = (task, prompt, same.index(row["problem"]))
            right.setdefault(key, []).append(row["reward"] >= 1)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) > 1 and isinstance(error, ValueError):
                runs.note(f"{path}: its last line is cut off")
                continue
            raise ValueError(f"{path}, line {number}: no sample of eval.py ({error!r})") from error
    sizes = [len(each) for each in right.values()]
    if len(sizes) > 1 and sizes[-1] < sizes[-2]:
        runs.note(f"{path}: its last problem has {sizes[-1]} samples only, and is left out")
        del right[key]
    return right


def compare(a, b, ks=None):
    """Rows {k, a, b, difference, low, high} of pass@k over the problems of both; see read.

    ks: each at most the samples of any problem, or ValueError; None for the usual ones.
    """
    shared = [key for key in a if key in b]
    samples = min(len(each[key]) for each in (a, b) for key in shared)
    ks = ks or usual_ks(samples)
    if max(ks) > samples:
        raise ValueError(f"--k {max(ks)}: there is a problem with {samples} samples only")
    rows = []
    for k in ks:
        passed = [[pass_at_k(len(x[key]), sum(x[key]), k) for key in shared] for x in (a, b)]
        differences = [after - before for before, after in zip(*passed)]
        low, high = bootstrap_interval(differences)
        means = fmean(passed[0]), fmean(passed[1])
        rows.append({"k": k, "a": means[0], "b": means[1], "difference": fmean(differences),
                     "low": low, "high": high})
    return rows


def main(argv=None):
    p = argparse.ArgumentParser(description="The paired difference of two evaluations.")
    p.error = runs.fail
    p.add_argument("a", help="folder of an evaluation, or its samples.jsonl")
    p.add_argument("b", help="another one on the same problems")
    p.add_argument("--k", type=runs.number(int, 1), nargs="+", help="of pass@k")
    args = p.parse_args(argv)
    a, b = runs.or_fail(read, args.a), runs.or_fail(read, args.b)
    if not a.keys() & b.keys():
        tasks = [", ".join(sorted({key[0] for key in x})) or "nothing" for x in (a, b)]
        runs.fail(f"no problem is in both {args.a} ({tasks[0]}) and {args.b} ({tasks[1]})")
    for task in sorted({key[0] for key in [*a, *b]}):
        own = [{key: x[key] for key in x if key[0] == task} for x in (a, b)]
        alone = len(own[0].keys() ^ own[1].keys())
        shared = own[0].keys() & own[1].keys()
        print(f"{task}: {len(shared)} problems, {alone} more in one file only")
        if not shared:
            continue
        for row in runs.or_fail(compare, *own, args.k):
            print("  pass@{k}  a {a:.3f}  b {b:.3f}  b - a {difference:+.3f} "
                  "[{low:+.3f}, {high:+.3f}]".format(**row))
        for name, won, lost in (("b", own[1], own[0]), ("a", own[0], own[1])):
            flipped = [key for key in won if key in lost and any(won[key]) and not any(lost[key])]
            print(f"  solved by {name} alone: {len(flipped)}")
            for key in flipped:
                prompt = " ".join(key[1].split())
                print(f"    {sum(won[key])} of {len(won[key])}  {prompt[:80]}")


if __name__ == "__main__":
    runs.main(main)
