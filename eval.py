"""Problems in, pass@k out: what a model can do, sampled without seeds.

    python eval.py --model runs/thinking_seeds-countdown-0/model --samples 16 --k 1 4 16

train.py calls `evaluate` before, during and after training.
"""

import math
import time
from pathlib import Path

import torch
from tqdm import tqdm

import runs
from rollout import load_model, make_batch, response_text, sample, score, stop_ids, stream
from tasks.problems import TASKS, load_problems, model_path, reward, solution_key


def pass_at_k(n, c, k):
    """The probability that at least one of k samples is right, from n samples of which c are.

    1 - C(n - c, k) / C(n, k), unbiased for k <= n (Chen et al., arXiv 2107.03374). Resampling k of the
    n with replacement, as a bootstrap would, is biased low.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap_interval(values, resamples=2000):
    """95 % percentile interval of the mean of `values`, one per *problem*, resampled over problems.

    Samples of one problem are not independent draws of the benchmark; problems are.
    """
    values = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)  # of its own: an evaluation disturbs no other draw
    picks = torch.randint(len(values), (resamples, len(values)), generator=generator)
    means = values[picks].mean(dim=1)
    return tuple(means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist())


def evaluate(
    model, tokenizer, rows, samples, ks, cap, temperature, batch_size, rng_key, write=None
):
    """Samples every problem `samples` times and returns the metrics of an evaluation row.

    rows: N problems; ks: the k of pass@k, each at most `samples`; cap: response tokens; batch_size:
    responses per `generate` call; rng_key: see rollout.stream; write: called with a dict per sample.
    A response is right when its reward is at least 1. Temperature 0 is greedy: its entropy is None.
    """
    stop = stop_ids(model, tokenizer)
    prompts = [tokenizer(row["prompt"])["input_ids"] for row in rows]
    jobs = [i for i in range(len(rows)) for _ in range(samples)]  # the problem of every sample
    correct, solutions = [0] * len(rows), [set() for _ in rows]
    tokens = entropy_sum = cut_off = 0
    started = time.perf_counter()
    torch.manual_seed(stream(*rng_key))
    bar = tqdm(total=len(jobs), desc="evaluating", unit="sample", leave=False)
    for start in range(0, len(jobs), batch_size):
        chunk = jobs[start : start + batch_size]
        contexts = [prompts[i] for i in chunk]
        responses = sample(model, contexts, [cap] * len(chunk), temperature, stop)
        batch = make_batch(contexts, responses, [0] * len(chunk), stop, model.device)
        if temperature > 0:
            _logp, entropy = score(model, batch, temperature, batch_size)
            entropy_sum += entropy.double().sum().item()
        tokens += batch.lengths.sum().item()
        cut_off += (~batch.ended).sum().item()
        for i, ids, ended in zip(chunk, responses, batch.ended.tolist(), strict=True):
            text = response_text(tokenizer, ids, stop)
            value = reward(text, rows[i])
            if value >= 1.0:
                correct[i] += 1
                solutions[i].add(solution_key(text, rows[i]))
            if write is not None:
                write({
                    "problem": i, "prompt": rows[i]["prompt"], "response": text, "reward": value,
                    "tokens": len(ids), "cut_off": not ended,
                })
        bar.update(len(chunk))
        done = start + len(chunk)
        bar.set_postfix_str(f"right {sum(correct) / done:.3f}")
    bar.close()
    metrics = {"problems": len(rows), "samples": samples}
    for k in ks:
        values = [pass_at_k(samples, c, k) for c in correct]
        metrics[f"pass@{k}"] = math.fsum(values) / len(values)
        metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"] = bootstrap_interval(values)
    metrics["distinct_correct"] = sum(map(len, solutions)) / len(rows)
    metrics["entropy"] = entropy_sum / tokens if temperature > 0 else None
    metrics["length"] = tokens / len(jobs)
    metrics["cut_off"] = cut_off / len(jobs)
    metrics["seconds"] = time.perf_counter() - started
    return metrics


def table(results):
    """{label: metrics of evaluate} as text: a row a label, pass@k with its 95 % interval."""
    lines = []
    for label, m in results.items():
        cells = {"": label, "problems": str(m["problems"]), "samples": str(m["samples"])}
        for key in (key for key in m if key.startswith("pass@") and f"{key}_low" in m):
            cells[key] = f"{m[key]:.3f} [{m[f'{key}_low']:.3f}, {m[f'{key}_high']:.3f}]"
        cells["distinct correct"] = f"{m['distinct_correct']:.2f}"
        cells["entropy"] = "-" if m["entropy"] is None else f"{m['entropy']:.3f}"
        cells["length"], cells["cut off"] = f"{m['length']:.1f}", f"{m['cut_off']:.3f}"
        lines.append(cells)
    header = {name: name for name in lines[0]}
    widths = {name: max(len(line[name]) for line in [header, *lines]) for name in header}
    return "\n".join(
        "  ".join(line[name].ljust(widths[name]) for name in header).rstrip() for line in [header, *lines]
    )


def parse_args(argv=None):
    p = runs.Parser(description="pass@k of a model on a task, sampled without seeds.")
    p.add_argument("--model", default="tiny", help="folder or Hub id; tiny: the task's own base policy")
    p.add_argument("--task", default="countdown", choices=list(TASKS))
    p.add_argument("--split", default="test", choices=["test", "tune"], help="tune: choose settings on it")
    p.add_argument("--problems", type=int, default=300, help="how many of the split")
    p.add_argument("--samples", type=int, default=16, help="responses per problem")
    p.add_argument("--k", type=int, nargs="+", default=[1, 4, 16], help="the k of pass@k")
    p.add_argument("--max-new-tokens", type=int, default=20, help="cap on a response's tokens")
    p.add_argument("--temperature", type=float, default=1.0, help="0: greedy, one sample a problem")
    p.add_argument("--batch-size", type=int, default=512, help="responses at once; lower if out of memory")
    p.add_argument("--base-steps", type=int, default=400, help="supervised steps of the tiny base policy")
    p.add_argument("--out", help="folder to make (default: runs/eval-MODEL-TASK-RNG_SEED)")
    p.add_argument("--rng-seed", type=int, default=0)
    p.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    p.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    args = p.parse_args(argv)

    model = Path(args.model)
    if args.out is None:
        name = model.parent.name if model.name == "model" else model.name
        args.out = f"runs/eval-{name}-{args.task}-{args.rng_seed}"
    if args.temperature == 0:  # all samples of a problem would be one and the same
        args.samples, args.k = 1, [1]
    args.k = sorted(set(args.k))
    runs.at_least(args, 1, "problems samples max_new_tokens batch_size base_steps threads")
    runs.at_least(args, 0, "temperature")
    if args.k[0] < 1 or args.k[-1] > args.samples:
        runs.fail(f"--k {args.k}: pass@k needs 1 <= k <= --samples, which is {args.samples}")
    args.device = runs.pick_device(args.device, args.threads)
    return args


def main(argv=None):
    args = parse_args(argv)
    rows = runs.or_fail(load_problems, args.task, args.split, args.problems, seed=0)
    with runs.Run(args.out, vars(args)) as run:
        path = runs.or_fail(model_path, args.model, args.task, args.base_steps)
        model, tokenizer = runs.or_fail(load_model, path, args.device)
        metrics = evaluate(
            model, tokenizer, rows, args.samples, args.k, args.max_new_tokens, args.temperature,
            args.batch_size, (args.rng_seed, 0, "evaluation"), run.sample,
        )
        run.log("eval", metrics)
    print(table({args.task: metrics}))
    print(f"every sample: {run.folder / 'samples.jsonl'}")


if __name__ == "__main__":
    runs.main(main)
