"""Problems in, pass@k out: what a model can do, sampled without seeds.

    python eval.py --model runs/thinking_seeds-countdown-0/model --samples 16 --k 1 4 16

train.py calls `evaluate` before, during and after training.
"""

import math
import time
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import runs
from rollout import make_batch, response_text, sample, score, stop_ids, stream
from tasks.problems import TASKS, load_problems, open_model, prompt_ids, reward, solution_key


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


def evaluate(
    model, tokenizer, rows, samples, cap, temperature, batch_size, rng_key, ks, write=None
):
    """Samples each problem `samples` times; returns the metrics of an evaluation row.

    rows: N problems; cap: response tokens; batch_size: responses per `generate` call (a forward to
    score them takes an eighth); rng_key: see rollout.stream; ks: the k of pass@k, each at most
    `samples`; write: called with a dict a sample.
    Right is a reward of 1 or more. Temperature 0 is greedy, and its entropy None.
    """
    stop, started = stop_ids(model, tokenizer), time.perf_counter()
    jobs = [i for i in range(len(rows)) for _ in range(samples)]  # the problem of every sample
    prompts = [prompt_ids(tokenizer, row) for row in rows]
    correct, solutions = [0] * len(rows), [set() for _ in rows]
    tokens = cut_off = entropy_sum = 0
    torch.manual_seed(stream(*rng_key))
    with tqdm(total=len(jobs), desc="evaluating", unit="sample", leave=False) as bar:
        for start in range(0, len(jobs), batch_size):
            chunk = jobs[start : start + batch_size]
            asked = [prompts[i] for i in chunk]
            responses = sample(model, asked, [cap] * len(chunk), temperature, stop)
            batch = make_batch(asked, responses, [0] * len(chunk), stop, model.device)
            if temperature > 0:
                _logp, entropy = score(model, batch, temperature, -(-batch_size // 8))
                entropy_sum += entropy.double().sum().item()
            tokens += batch.lengths.sum().item()
            cut_off += (~batch.ended).sum().item()
            for i, ids in zip(chunk, responses):
                text = response_text(tokenizer, ids, stop)
                value = reward(text, rows[i])
                if value >= 1:
                    correct[i] += 1
                    solutions[i].add(solution_key(text, rows[i]))
                if write is not None:
                    write({"problem": i, "prompt": rows[i]["prompt"], "response": text,
                           "reward": value, "tokens": len(ids), "cut_off": ids[-1] not in stop})
            bar.set_postfix_str(f"right {sum(correct) / (start + len(chunk)):.3f}", refresh=False)
            bar.update(len(chunk))
    metrics = {"problems": len(rows), "samples": samples}
    for k in ks:
        values = [pass_at_k(samples, c, k) for c in correct]
        metrics[f"pass@{k}"] = math.fsum(values) / len(values)
        metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"] = bootstrap_interval(values)
    metrics["distinct_correct"] = sum(map(len, solutions)) / len(rows)
    metrics["entropy"] = entropy_sum / tokens if temperature > 0 else None
    metrics |= {"length": tokens / len(jobs), "cut_off": cut_off / len(jobs)}
    metrics["seconds"] = time.perf_counter() - started
    return metrics


def table(results):
    """{label: metrics of evaluate} as text: a line a label, pass@k with its 95 % interval."""
    lines = []
    for label, m in results.items():
        cells = {"": label, "problems": str(m["problems"]), "samples": str(m["samples"])}
        for key in (key for key in m if f"{key}_low" in m):
            cells[key] = f"{m[key]:.3f} [{m[f'{key}_low']:.3f}, {m[f'{key}_high']:.3f}]"
        cells["distinct correct"] = f"{m['distinct_correct']:.2f}"
        cells["entropy"] = "-" if m["entropy"] is None else f"{m['entropy']:.3f}"
        cells |= {"length": f"{m['length']:.1f}", "cut off": f"{m['cut_off']:.3f}"}
        lines.append(cells)
    lines.insert(0, {name: name for name in lines[0]})
    widths = {name: max(len(line[name]) for line in lines) for name in lines[0]}
    return "\n".join("  ".join(line[n].ljust(w) for n, w in widths.items()) for line in lines)


def parse_args(argv=None):
    count = runs.number(int, 1)
    p = runs.parser("pass@k of a model on a task, sampled without seeds.")
    p.add_argument("--task", default="countdown", choices=TASKS)
    p.add_argument("--split", default="test", choices=["test", "tune"], help="tune: to choose by")
    p.add_argument("--problems", type=count, default=300, help="how many of the split")
    p.add_argument("--samples", type=count, default=16, help="responses per problem")
    p.add_argument("--k", type=count, nargs="+", help="of pass@k; None: 1, 4, 16 and --samples")
    p.add_argument("--temperature", type=runs.number(float, 0), default=1.0, help="0: greedy")
    p.add_argument("--batch-size", type=count, default=512, help="responses sampled at once")
    args = p.parse_args(argv)

    if args.temperature == 0:  # all samples of a problem would be one and the same
        args.samples, args.k = 1, [1]
    args.k = sorted(set(args.k or usual_ks(args.samples)))
    if args.k[-1] > args.samples:
        runs.fail(f"--k {args.k[-1]}: pass@k needs k <= --samples, which is {args.samples}")
    model = Path(args.model).resolve()
    name = model.parent.name if model.name == "model" else model.name
    args.out = args.out or f"runs/eval-{name}-{args.task}-{args.rng_seed}"
    return args


def main(argv=None):
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    rows = runs.or_fail(load_problems, args.task, args.split, args.problems, seed=0)
    with runs.new_folder(args.out, vars(args)) as folder:
        model, tokenizer = runs.or_fail(
            open_model, args.model, args.task, args.base_steps, args.device)
        metrics = evaluate(
            model, tokenizer, rows, args.samples, args.max_new_tokens, args.temperature,
            args.batch_size, (args.rng_seed, 0, "evaluation"), args.k,
            partial(runs.append, folder / "samples.jsonl"),
        )
        runs.append(folder / "metrics.jsonl", {"kind": "eval", "task": args.task, **metrics})
    print(table({args.task: metrics}))
    print(f"every sample: {folder / 'samples.jsonl'}")


if __name__ == "__main__":
    runs.main(main)
