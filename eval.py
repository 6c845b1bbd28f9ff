"""Problems in, pass@k out: what a model can do, sampled without seeds or, to compare, with them.

    python eval.py --model runs/thinking_seeds-countdown-0/model --samples 16 --k 1 4 16
    python eval.py --model Qwen/Qwen2.5-0.5B-Instruct --task math500 aime24 --samples 32 --k 1 8 32
    python eval.py --seed-from runs/thinking_seeds-countdown-0

train.py calls `evaluate` before, during and after training.
"""

import math
import time
from collections import Counter
from functools import partial
from itertools import chain, compress, zip_longest
from pathlib import Path
from statistics import fmean

import torch
from tqdm import tqdm

import checkpoint
import runs
from rollout import make_batch, response_text, sample, score, stop_ids, stream
from seeds import draw_prefixes, prefix_bounds, weights_of
from tasks.problems import askable, load_problems, merged, open_model, prompt_ids, reward
from tasks.problems import solution_key, task_of
from tasks.sets import add_flags, short_name


def pass_at_k(n, c, k):
    """The chance that at least one of k samples is right, from n samples of which c are.

    1 - C(n - c, k) / C(n, k), unbiased for k <= n (Chen et al., arXiv 2107.03374). Drawing k of the
    n with replacement, as a bootstrap would, is biased low.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def usual_ks(samples):
    return [k for k in (1, 4, 16) if k < samples] + [samples]


def bootstrap_interval(values, resamples=2000):
    """95 % percentile interval of the mean of `values`, one per *problem*, resampled over problems:
    the samples of one problem are not independent draws of the benchmark, the problems are."""
    values = torch.tensor(values, dtype=torch.float64)
    own, n = torch.Generator().manual_seed(0), len(values)  # it disturbs no other draw
    picks = torch.randint(n, (resamples, n), generator=own)
    means = values[picks].mean(dim=1)
    return [means.quantile(edge).item() for edge in (0.025, 0.975)]


def majority(keys, right):
    """The chance that a vote of the samples is right: of the answers with most votes, the share
    that is. keys: a solution key a sample, None without an answer, and so without a vote."""
    votes = Counter(key for key in keys if key is not None)
    winners = [key for key, count in votes.items() if count == max(votes.values())]
    return sum(right[keys.index(key)] for key in winners) / max(1, len(winners))


def evaluate(model, tokenizer, rows, samples, cap, temperature, batch_size, rng_key, ks,
             write=lambda sampled: None, prefixes_of=None):
    """Samples each problem `samples` times; returns the metrics of an evaluation row.

    rows: N problems; cap: response tokens; batch_size: responses per `generate` call (a forward to
    score them takes an eighth); rng_key: see rollout.stream; ks: the k of pass@k, each at most
    `samples`; write: called with a dict a sample; prefixes_of: prompts, cap, stop -> what the
    responses begin with, see seeded_inference. Temperature 0 is greedy, and its entropy None.
    Ranks take the calls in turn, and each returns the metrics of all.
    """
    stop, started = stop_ids(model, tokenizer), time.perf_counter()
    jobs = range(len(rows) * samples)  # job // samples is its problem
    prompts = [prompt_ids(tokenizer, row) for row in rows]
    sampled, right, rank, ranks = {}, 0, runs.rank(), runs.ranks()  # sampled: {job: a dict}
    with tqdm(total=len(jobs), desc="evaluating", unit="sample", leave=False,
              disable=rank > 0) as bar:
        for start in jobs[rank * batch_size :: ranks * batch_size]:
            torch.manual_seed(stream(*rng_key, start))  # the same draws whichever rank it is
            chunk = jobs[start : start + batch_size]
            asked = [prompts[job // samples] for job in chunk]
            prefixes = prefixes_of(asked, cap, stop) if prefixes_of else [[]] * len(asked)
            entropies = []
            responses = sample(model, asked, cap, temperature, stop, prefixes)
            if temperature > 0:
                batch = make_batch(asked, responses, stop, model.device)
                _logp, entropy = score(model, batch, temperature, -(-batch_size // 8))
                entropies = entropy.double().sum(1).tolist()
            for job, ids, prefix, entropy in zip_longest(chunk, responses, prefixes, entropies):
                i = job // samples
                text = response_text(tokenizer, ids, stop)
                value = reward(text, rows[i])
                sampled[job] = {
                    "problem": i, "prompt": rows[i]["prompt"], "response": text,
                    "gold": rows[i].get("answer"), "answer": solution_key(text, rows[i]),
                    "undecided": math.isnan(value),
                    "reward": 0.0 if math.isnan(value) else value,
                    "tokens": len(ids), "prefix_tokens": len(prefix),
                    "entropy": entropy and entropy / len(ids), "cut_off": ids[-1] not in stop}
                write(sampled[job])
                right += value >= 1
            bar.set_postfix_str(f"right {right / len(sampled):.3f}", refresh=False)
            bar.update(len(chunk))
    every = {job: row for part in runs.gather(sampled) for job, row in part.items()}
    groups = [[every[job] for job in jobs[i : i + samples]] for i in jobs[::samples]]
    return metrics_of(groups, rows, ks) | {"seconds": time.perf_counter() - started}


def seeded_inference(folder, model, caps, temperature, micro_batch):
    """The prefixes_of of `evaluate` that begins every response with a seed: how much more can be
    reached from where the policy's past would begin (arXiv 2601.21476)?

    Prefixes, whatever the run's method, with lengths by its --prefix-min and --prefix-max. The
    snapshots that its training could draw from next take turns, whatever --snapshot-choice, so that
    each begins as many samples of a problem. caps: those that will be asked for. ValueError if the
    run has no such snapshot, or a broken or another model's one.
    """
    ring, step, config = checkpoint.ring_of(folder)
    try:
        bounds = {cap: prefix_bounds("thinking_seeds", config.prefix_min, config.prefix_max, cap)
                  for cap in caps}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{folder}/config.json: {error}") from error
    shapes = {name: w.shape for name, w in weights_of(model).items()}
    for taken, weights in ring.snapshots:
        if {name: w.shape for name, w in weights.items()} != shapes:
            raise ValueError(f"{folder}: its snapshot-{taken} is damaged, or of another model than "
                             "--model")
    ring.keep(step, model)  # as training would before it chooses: the oldest may go
    if not (old_enough := ring.eligible(step)):
        raise ValueError(f"no snapshot of {folder} is {ring.min_lag} steps old, its --min-lag")

    def prefixes_of(prompts, cap, stop):
        prefixes, n = [None] * len(prompts), len(old_enough)
        for i, taken in enumerate(old_enough[: len(prompts)]):
            prefixes[i::n] = draw_prefixes(ring, model, taken, prompts[i::n], 1, 1, bounds[cap],
                                           temperature, stop, micro_batch).ids
        return prefixes

    return prefixes_of


def metrics_of(groups, rows, ks):
    """The metrics of N problems from their samples, as evaluate writes them: N lists of n dicts.

    Right is a reward of 1 or more.
    """
    sampled, n = list(chain(*groups)), len(groups[0])
    right = [[each["reward"] >= 1 for each in group] for group in groups]
    answers = [[each["answer"] for each in group] for group in groups]
    keys = list(map(merged, answers, right, rows))
    lengths = sorted(each["tokens"] for each in sampled)
    metrics = {"problems": len(rows), "samples": n}
    for k in ks:
        values = [pass_at_k(n, sum(each), k) for each in right]
        metrics[f"pass@{k}"] = fmean(values)
        metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"] = bootstrap_interval(values)
    return metrics | {
        f"avg@{n}": fmean(map(fmean, right)),  # pass@1, by another name
        f"maj@{n}": fmean(map(majority, keys, right)),
        "distinct": fmean(len({*each} - {None}) for each in keys),
        "distinct_correct": fmean(len({*compress(*pair)}) for pair in zip(keys, right)),
        "no_answer": fmean(each is None for each in chain(*answers)),
        "undecided": fmean(each["undecided"] for each in sampled),
        "entropy": None if sampled[0]["entropy"] is None else math.fsum(
            each["entropy"] * each["tokens"] for each in sampled) / sum(lengths),
        "length": fmean(lengths),
        "length_p95": lengths[math.ceil(0.95 * len(lengths)) - 1],
        "cut_off": fmean(each["cut_off"] for each in sampled),
    }


def table(results):
    """{label: metrics of evaluate} as text: a column a label, pass@k with its 95 % interval."""
    first = next(iter(results.values()))
    names = [name for name in first if not name.endswith(("_low", "_high"))]
    columns = [["", *names]]
    for label, m in results.items():
        cells = ["-" if m[n] is None else f"{m[n]:.3f}" if isinstance(m[n], float) else str(m[n])
                 for n in names]
        for i, n in enumerate(names):
            if f"{n}_low" in m:
                cells[i] += f" [{m[f'{n}_low']:.3f}, {m[f'{n}_high']:.3f}]"
        columns.append([label, *cells])
    widths = [max(map(len, column)) for column in columns]
    lines = [[cell.ljust(w) for cell, w in zip(line, widths)] for line in zip(*columns)]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def parse_args(argv=None):
    count = runs.number(int, 1)
    p = runs.parser("pass@k of a model on tasks, sampled without seeds.")
    add = p.add_argument
    add("--task", nargs="+", default=["countdown"], help="benchmarks, files, Hub ids")
    add("--split", default="test", help="countdown: tune, to choose by")
    add_flags(p)
    add("--problems", type=count, help="of each task at most; None: all, 300 of countdown")
    add("--samples", type=count, default=16, help="responses per problem")
    add("--k", type=count, nargs="+", help="of pass@k; None: 1, 4, 16 and --samples")
    add("--temperature", type=runs.number(float, 0), default=1.0, help="0: greedy")
    add("--batch-size", type=count, default=512, help="responses sampled at once")
    add("--seed-from", type=runs.local, help="folder of a run: all samples begin with a prefix "
        "from the ring of its checkpoint; --model tiny, the default, is then its model")
    args = p.parse_args(argv)

    if args.temperature == 0:  # all samples of a problem would be one and the same
        runs.note("--temperature 0 is greedy: one sample a problem, and pass@1")
        args.samples, args.k = 1, [1]
    args.k = sorted(set(args.k or usual_ks(args.samples)))
    if args.k[-1] > args.samples:
        runs.fail(f"--k {args.k[-1]}: pass@k needs k <= --samples, which is {args.samples}")
    if args.seed_from:
        if args.temperature == 0:
            runs.fail("--seed-from: prefixes are sampled, so --temperature must be above 0")
        args.model = f"{args.seed_from}/model" if args.model == "tiny" else args.model
    args.dtype = args.dtype or runs.usual_dtype(args.device)
    model, tasks = Path(args.model).resolve(), "-".join(map(short_name, args.task))
    name = model.parent.name if model.name == "model" else model.name
    seeded = "-seeded" if args.seed_from else ""
    args.out = args.out or f"runs/eval-{name}-{tasks}{seeded}-{args.rng_seed}"
    return args


def main(argv=None):
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    load, results = partial(runs.or_fail, load_problems, seed=0, args=args), {}
    sets = {task: load(task, args.split, args.problems) for task in args.task}
    caps = {task: args.max_new_tokens or task_of(task).max_new_tokens for task in sets}
    with runs.new_folder(args.out, {**vars(args), "max_new_tokens": caps}) as folder:
        model, tokenizer = runs.or_fail(open_model, args, args.task[0])
        for task in sets:  # what does not fit is told before hours of sampling
            sets[task] = runs.or_fail(askable, model, tokenizer, caps[task], sets[task])
        prefixes_of = args.seed_from and runs.or_fail(
            seeded_inference, args.seed_from, model, caps.values(), args.temperature,
            -(-args.batch_size // 8))
        try:
            with runs.precision(args), runs.explained("lower --batch-size"):
                for task, rows in sets.items():
                    results[task] = evaluate(
                        model, tokenizer, rows, args.samples, caps[task], args.temperature,
                        args.batch_size, (args.rng_seed, 0, "evaluation"), args.k,
                        lambda row: runs.append(folder / "samples.jsonl", {"task": task, **row}),
                        prefixes_of)
                    row = {"kind": "eval", "task": task, **results[task]}
                    runs.append(folder / "metrics.jsonl", row)
        finally:  # Ctrl-C included
            if results:
                print(table(results))
            if (folder / "samples.jsonl").exists():
                print(f"every sample: {folder / 'samples.jsonl'}")


if __name__ == "__main__":
    runs.main(main)
