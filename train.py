"""Trains a policy by RL with seeds from its own past (thinking_seeds), or without them (grpo).

    python train.py                       the embedded task, on a laptop's CPU, in minutes
    python train.py --method grpo         the same without seeds
    python train.py --task gsm8k --model Qwen/Qwen2.5-0.5B-Instruct        real math, on a GPU

The method is `collect` and `update`: problems -> seeds (prefixes) -> rollout (continuations,
log-probs) -> rewards -> loss -> optimizer. --method grpo and --method thinking_seeds differ by one
call, draw_prefixes below, and by one line of loss.py, the prefix term.
"""

import copy
import math
import sys
import time
from functools import partial

import torch
from tqdm import tqdm

import runs
from eval import evaluate, table, usual_ks
from loss import METHODS, REDUCTIONS, add_sums, group_advantages, policy_loss, row_weights
from loss import rollout_metrics, summarize
from rollout import response_text, rollout, score, stop_ids, stream, token_logps
from seeds import Ring, behaviour_logp, draw_prefixes, no_seeds, prefix_bounds, seeded_rows
from tasks.problems import askable, load_problems, open_model, problems_of_step, prompt_ids
from tasks.problems import reward, task_of, warn_of_overlap
from tasks.sets import add_flags, short_name

# ----------------------------------------------------------------------------------------- flags


def parse_args(argv=None):
    p = runs.parser("RL for language models with seeds drawn from the policy's own past.")
    count, natural, share = runs.number(int, 1), runs.number(int, 0), runs.number(float, 0, 1)
    positive, weight = runs.number(float, 1e-6), runs.number(float, 0)
    add = p.add_argument
    add("--task", default="countdown", help="countdown4, gsm8k, math, a file, a Hub id")
    add("--split", default="train", help="of --task")
    add_flags(p)
    add("--method", default="thinking_seeds", choices=METHODS, help="see loss.py")
    add("--steps", type=count, default=150, help="training steps, a rollout each")
    add("--train-problems", type=natural, default=0, help="0: all; countdown: new ones each step")
    # Sampling
    add("--prompts-per-step", type=count, default=16, help="problems in a rollout")
    add("--group-size", type=runs.number(int, 2), default=16, help="responses per problem")
    add("--temperature", type=positive, default=1.0, help="of sampling and of all log-probs")
    # Seeds
    add("--seed-fraction", type=share, help="seeded share of a group; None: 0.5, for grpo 0")
    add("--prefix-min", type=share, default=0.05, help="shortest prefix, part of --max-new-tokens")
    add("--prefix-max", type=share, default=0.5, help="longest prefix; equal: a fixed length")
    add("--ring-size", type=count, default=4, help="snapshots kept, on the CPU")
    add("--snapshot-every", type=count, default=10, help="steps between snapshots")
    add("--min-lag", type=natural, default=10, help="steps until a snapshot may be used")
    # Optimization
    add("--learning-rate", type=weight, default=3e-5, help="of AdamW")
    add("--lr-warmup", type=natural, default=0, help="steps of linear warm-up; constant after")
    add("--weight-decay", type=weight, default=0.0, help="of AdamW")
    add("--max-grad-norm", type=positive, default=1.0, help="longer gradients are scaled down")
    add("--minibatches", type=count, default=4, help="optimizer steps a step, on whole groups")
    add("--micro-batch", type=count, default=64, help="rows per forward: lower to save memory")
    add("--clip-low", type=share, default=0.2, help="ratios are clipped below 1 - this")
    add("--clip-high", type=weight, default=0.2, help="ratios are clipped above 1 + this")
    add("--kl-coef", type=weight, default=0.0, help="weight of the KL to the start; 0: none")
    add("--loss-reduction", default="token", choices=REDUCTIONS, help="see loss.py")
    add("--gradient-checkpointing", action="store_true", help="less memory, slower updates")
    # Logging
    add("--eval-every", type=natural, default=50, help="steps; 0: only before and after")
    add("--eval-problems", type=count, default=300, help="held-out problems, always the same")
    add("--eval-samples", type=count, default=16, help="per problem: pass@k up to this k")
    add("--eval-task", help="what to evaluate on, with columns of the usual names; None: --task")
    add("--eval-split", default="test", help="of --eval-task; countdown: tune, to choose flags by")
    args = p.parse_args(argv)

    if args.seed_fraction is None:
        args.seed_fraction = 0.0 if args.method == "grpo" else 0.5
    args.dtype = args.dtype or runs.usual_dtype(args.device)
    args.max_new_tokens = args.max_new_tokens or max(
        task_of(name).max_new_tokens for name in (args.task, args.eval_task or args.task))
    args.out = args.out or f"runs/{args.method}-{short_name(args.task)}-{args.rng_seed}"
    # Flags that cannot work together fail here, before anything long starts.
    if args.minibatches > args.prompts_per_step:
        runs.fail(f"--minibatches {args.minibatches}: each needs a whole group, and a step has "
                  f"--prompts-per-step {args.prompts_per_step} of them")
    is_same_set = args.eval_task in (None, args.task)
    if args.split == "test" or is_same_set and args.split == args.eval_split:
        runs.fail(f"--split {args.split}: it is to be evaluated on (--eval-split), not trained on")
    if args.method == "grpo" and args.seed_fraction:
        runs.fail(f"--seed-fraction {args.seed_fraction}: grpo has no seeds; thinking_seeds has")
    args.seeded_rows = runs.or_fail(seeded_rows, args.seed_fraction, args.group_size)
    return args


# ------------------------------------------------------------------------------------ the method


def collect(args, step, problems, policy, tokenizer, ring, bounds, reference):
    """One step's rows, G consecutive ones a problem: (batch, seeds, rewards [B], seconds).

    A reward is nan where the grader came to no verdict, and then counts as 0.
    """
    G, cap, stop = args.group_size, args.max_new_tokens, stop_ids(policy, tokenizer)
    prompts = [ids for row in problems for ids in [prompt_ids(tokenizer, row)] * G]
    clock = [time.perf_counter()]

    # 1. Seeds: a past checkpoint writes prefixes for some of the rows. Without this call: GRPO.
    seeds = no_seeds(len(prompts))
    if ring is not None:
        torch.manual_seed(stream(args.rng_seed, step, "prefixes"))
        seeds = draw_prefixes(
            ring, policy, step, prompts, G, args.seeded_rows, bounds, args.temperature, stop,
            args.micro_batch)
    clock.append(time.perf_counter())

    # 2. Rollout: the policy writes the rest of every row.
    torch.manual_seed(stream(args.rng_seed, step, "rollout"))
    batch = rollout(policy, prompts, seeds.ids, cap, args.temperature, stop)
    clock.append(time.perf_counter())

    # 3. Score: the policy's own log-probs as of now, on the snapshot's tokens too.
    batch.old_logp, _entropy = score(policy, batch, args.temperature, args.micro_batch)
    batch.behaviour_logp = behaviour_logp(seeds, batch.old_logp)
    if reference is not None:
        batch.ref_logp, _entropy = score(reference, batch, args.temperature, args.micro_batch)
    # responses() waits for the device: before it, the clock would miss what is still being scored
    texts = [response_text(tokenizer, ids, stop) for ids in batch.responses()]
    clock.append(time.perf_counter())

    # 4. Rewards of prefix and continuation together, and what each row is worth in its group.
    rewards = torch.tensor([float(reward(text, problems[i // G])) for i, text in enumerate(texts)])
    batch.advantages = group_advantages(rewards.nan_to_num(0.0), G).to(policy.device)
    return batch, seeds, rewards, [after - before for before, after in zip(clock, clock[1:])]


def update(args, policy, optimizer, batch):
    """One pass over the batch, an optimizer step a minibatch: (sums, mean gradient norm)."""
    policy.train()
    sums, grad_norms = {}, []
    groups = torch.arange(len(batch.lengths), device=policy.device).view(-1, args.group_size)
    for minibatch in map(torch.flatten, groups.tensor_split(args.minibatches)):
        weights = row_weights(batch.lengths[minibatch], args.loss_reduction, args.max_new_tokens)
        for rows, w in zip(minibatch.split(args.micro_batch), weights.split(args.micro_batch)):
            part = batch[rows]
            logp, entropy = token_logps(policy, part, args.temperature)
            loss, part_sums = policy_loss(
                args.method, logp, part.old_logp, part.behaviour_logp, part.from_snapshot,
                part.mask, part.advantages, w, (args.clip_low, args.clip_high), entropy,
                part.ref_logp, args.kl_coef)
            loss.backward()
            add_sums(sums, part_sums)
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
        grad_norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    return sums, sum(grad_norms) / len(grad_norms)


# -------------------------------------------------------------------------------------- the loop


def train(args, folder, ring, bounds, pool, held_out):
    """Returns {"step N": evaluation}, start first and end last, and whether Ctrl-C cut it short."""
    policy, tokenizer = runs.or_fail(open_model, args, args.task)
    if args.gradient_checkpointing:
        policy.activation_checkpointing_enable()
    fitting = partial(runs.or_fail, askable, policy, tokenizer, args.max_new_tokens)
    pool, held_out = fitting(pool), fitting(held_out)
    reference = copy.deepcopy(policy).requires_grad_(False) if args.kl_coef else None
    optimizer = torch.optim.AdamW(
        policy.parameters(), args.learning_rate, weight_decay=args.weight_decay)
    results, shown = {}, {}

    def evaluate_now(step):  # always on the same problems, and without seeds
        metrics = evaluate(
            policy, tokenizer, held_out, args.eval_samples, args.max_new_tokens, args.temperature,
            8 * args.micro_batch, (args.rng_seed, step, "evaluation"), usual_ks(args.eval_samples))
        runs.append(folder / "metrics.jsonl", {"kind": "eval", "step": step, **metrics})
        results[f"step {step}"] = metrics
        shown["pass@1"] = f"{metrics['pass@1']:.3f}"

    with runs.precision(args), runs.finish_step_on_interrupt() as interrupted:
        for step in (bar := tqdm(range(args.steps), desc=args.method, unit="step")):
            if step == 0 or (args.eval_every and step % args.eval_every == 0):
                evaluate_now(step)
            if ring is not None:
                ring.keep(step, policy)
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * min(1, (step + 1) / max(1, args.lr_warmup))
            problems = problems_of_step(
                args.task, pool, args.prompts_per_step, step, args.rng_seed, args.split)
            batch, seeds, rewards, seconds = collect(
                args, step, problems, policy, tokenizer, ring, bounds, reference)
            started = time.perf_counter()
            sums, grad_norm = update(args, policy, optimizer, batch)
            seconds.append(time.perf_counter() - started)
            if not math.isfinite(grad_norm):
                runs.fail(f"step {step}: the gradient is {grad_norm}; lower --learning-rate")

            names = [f"seconds_{part}" for part in ("prefix", "rollout", "score", "update")]
            metrics = {
                **rollout_metrics(rewards, args.group_size, batch.lengths.cpu(),
                                  batch.prefix_lengths.cpu(), batch.ended.cpu()),
                "snapshot_lag": None if seeds.step is None else step - seeds.step,
                **summarize(sums),
                "grad_norm": grad_norm,
                **dict(zip(names, seconds)),
                "tokens_per_second": batch.lengths.sum().item() / sum(seconds),
            }
            runs.append(folder / "metrics.jsonl", {"kind": "train", "step": step, **metrics})
            responses = batch.responses()
            for i in (0, args.group_size - 1):  # a seeded row and, as a rule, one that is not
                k = len(seeds.ids[i])
                runs.append(folder / "samples.jsonl", {
                    "step": step, "prompt": problems[0]["prompt"],
                    "prefix": tokenizer.decode(responses[i][:k]),
                    "continuation": tokenizer.decode(responses[i][k:]),
                    "reward": rewards.nan_to_num(0.0)[i].item(),
                    "snapshot_step": seeds.step if k else None})
            shown |= {key: f"{metrics[key]:.3f}" for key in ("reward", "entropy")}
            bar.set_postfix(shown)
            if interrupted:
                print(f"stopped after {step + 1} steps, before their evaluation", file=sys.stderr)
                break
        policy.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        if not (stopped := bool(interrupted)):
            evaluate_now(args.steps)
    return results, stopped


def main(argv=None):
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    ring = bounds = None
    if args.seeded_rows:
        ring = runs.or_fail(Ring, args.ring_size, args.snapshot_every, args.min_lag)
        bounds = runs.or_fail(prefix_bounds, args.method, args.prefix_min, args.prefix_max,
                              args.max_new_tokens)
        if args.min_lag >= args.steps:
            runs.note(f"--steps {args.steps} end before a snapshot is --min-lag {args.min_lag} "
                      "steps old: all will be on-policy")
    load = partial(runs.or_fail, load_problems, seed=0, args=args)
    held_out = load(args.eval_task or args.task, args.eval_split, args.eval_problems)
    pool = load(args.task, args.split, args.train_problems)
    runs.or_fail(warn_of_overlap, pool, held_out)
    with runs.new_folder(args.out, vars(args)) as folder:
        results, interrupted = train(args, folder, ring, bounds, pool, held_out)
        curves = runs.draw_curves(folder)
    first, last = list(results)[0], list(results)[-1]
    print(table({first: results[first], last: results[last]}))
    print(f"the trained model: {folder / 'model'}\nits curves: {curves}")
    return 130 if interrupted else 0


if __name__ == "__main__":
    runs.main(main)
