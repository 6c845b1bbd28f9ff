"""Trains a policy by RL with seeds from its own past (thinking_seeds), or without (grpo).

    python train.py                       the embedded task, on a laptop's CPU, in minutes
    python train.py --method grpo         the same without seeds

`train` below is the whole method: problems -> seeds (prefixes) -> rollout (continuations, log-probs)
-> rewards -> loss -> optimizer. --method grpo and --method thinking_seeds differ by one call in it,
draw_prefixes, and by one line of loss.py, the prefix term.
"""

import copy
import time

import torch
from tqdm import tqdm

import runs
from eval import evaluate, table
from loss import (
    METHODS,
    REDUCTIONS,
    add_sums,
    group_advantages,
    policy_loss,
    rollout_metrics,
    row_weights,
    summarize,
)
from rollout import load_model, response_text, rollout, score, stop_ids, stream, token_logps
from seeds import Ring, behaviour_logp, draw_prefixes, no_seeds
from tasks.problems import TASKS, load_problems, model_path, reward


def parse_args(argv=None):
    p = runs.Parser(description="RL for language models with seeds drawn from the policy's own past.")
    p.add_argument("--model", default="tiny", help="folder or Hub id; tiny: the task's own base policy")
    p.add_argument("--task", default="countdown", choices=list(TASKS))
    p.add_argument("--method", default="thinking_seeds", choices=METHODS)
    p.add_argument("--steps", type=int, default=150, help="training steps, each one rollout")
    p.add_argument("--train-problems", type=int, default=0,
                   help="a finite set, seen again and again; 0: fresh problems without end")
    p.add_argument("--base-steps", type=int, default=400, help="supervised steps of the tiny base policy")
    # Sampling
    p.add_argument("--prompts-per-step", type=int, default=16)
    p.add_argument("--group-size", type=int, default=16, help="responses per prompt")
    p.add_argument("--max-new-tokens", type=int, default=20, help="cap on a response, prefix included")
    p.add_argument("--temperature", type=float, default=1.0, help="of sampling and of every log-prob")
    # Seeds
    p.add_argument("--seed-fraction", type=float,
                   help="share of each group with a prefix (default: 0 for grpo, else 0.5)")
    p.add_argument("--prefix-min", type=float, default=0.05, help="shortest prefix / --max-new-tokens")
    p.add_argument("--prefix-max", type=float, default=0.5, help="longest; equal: a fixed length")
    p.add_argument("--ring-size", type=int, default=4, help="snapshots kept, on the CPU")
    p.add_argument("--snapshot-every", type=int, default=10, help="steps between snapshots")
    p.add_argument("--min-lag", type=int, default=10, help="youngest age, in steps, of one that is used")
    # Optimization
    p.add_argument("--learning-rate", type=float, default=6e-5)
    p.add_argument("--lr-warmup", type=int, default=0, help="steps of linear warm-up, constant after")
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--max-grad-norm", type=float, default=1.0)
    p.add_argument("--minibatches", type=int, default=4, help="optimizer steps per step, on whole groups")
    p.add_argument("--micro-batch", type=int, default=64, help="rows per forward; lower if out of memory")
    p.add_argument("--clip-low", type=float, default=0.2, help="ratios are clipped below 1 - this")
    p.add_argument("--clip-high", type=float, default=0.2, help="and above 1 + this")
    p.add_argument("--kl-coef", type=float, default=0.0, help="weight of the KL to the start; 0: none")
    p.add_argument("--loss-reduction", default="token", choices=REDUCTIONS)
    # Logging
    p.add_argument("--eval-every", type=int, default=50, help="steps; 0: only before and after")
    p.add_argument("--eval-problems", type=int, default=300)
    p.add_argument("--eval-samples", type=int, default=16, help="per problem: pass@k up to this k")
    p.add_argument("--eval-split", default="test", choices=["test", "tune"],
                   help="tune: choose settings on it")
    p.add_argument("--out", help="folder to make (default: runs/METHOD-TASK-RNG_SEED)")
    p.add_argument("--rng-seed", type=int, default=0, help="of the random generators")
    p.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    p.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    args = p.parse_args(argv)

    if args.seed_fraction is None:
        args.seed_fraction = 0.0 if args.method == "grpo" else 0.5
    args.out = args.out or f"runs/{args.method}-{args.task}-{args.rng_seed}"
    check(args)
    args.device = runs.pick_device(args.device, args.threads)
    return args


def check(args):
    """Ends the program for flags that cannot work, before anything long starts."""
    runs.at_least(args, 1, "steps base_steps prompts_per_step max_new_tokens ring_size snapshot_every "
                           "minibatches micro_batch eval_problems eval_samples threads")
    runs.at_least(args, 0, "train_problems min_lag lr_warmup learning_rate weight_decay max_grad_norm "
                           "clip_low clip_high kl_coef eval_every")
    if args.group_size < 2:
        runs.fail(f"--group-size {args.group_size}: advantages compare rows of a group; at least 2")
    if not args.temperature > 0:
        runs.fail(f"--temperature {args.temperature}: greedy responses of a group are all alike; "
                  "must be above 0 in training")
    if args.minibatches > args.prompts_per_step:
        runs.fail(f"--minibatches {args.minibatches}: a step of --prompts-per-step "
                  f"{args.prompts_per_step} has no more whole groups than that")
    if not 0 <= args.seed_fraction <= 1:
        runs.fail(f"--seed-fraction {args.seed_fraction}: must be between 0 and 1")
    if args.method == "grpo" and args.seed_fraction:
        runs.fail(f"--method grpo --seed-fraction {args.seed_fraction}: grpo has no seeds; "
                  "--method thinking_seeds does")
    if args.seed_fraction and round(args.seed_fraction * args.group_size) == 0:
        runs.fail(f"--seed-fraction {args.seed_fraction}: no row of a --group-size {args.group_size} "
                  f"group would be seeded; use {1 / args.group_size:.3g} or more, or 0")
    if not 0 <= args.prefix_min <= args.prefix_max <= 1:
        runs.fail(f"--prefix-min {args.prefix_min} --prefix-max {args.prefix_max}: "
                  "0 <= min <= max <= 1 must hold")
    if args.seed_fraction and prefix_lengths(args)[1] == 0:
        runs.fail(f"--prefix-max {args.prefix_max}: no token of --max-new-tokens {args.max_new_tokens}")
    oldest = (args.ring_size - 1) * args.snapshot_every
    if args.seed_fraction and args.min_lag > oldest:
        runs.fail(f"--min-lag {args.min_lag}: the oldest of --ring-size {args.ring_size} snapshots, one "
                  f"every --snapshot-every {args.snapshot_every} steps, is {oldest} steps old when a new "
                  f"one comes; use {oldest} or less, or a larger ring")


def prefix_lengths(args):
    """(shortest, longest) prefix in tokens."""
    if args.method == "sequence_mix":  # whole old trajectories
        return args.max_new_tokens, args.max_new_tokens
    longest = round(args.prefix_max * args.max_new_tokens)
    return min(max(1, round(args.prefix_min * args.max_new_tokens)), longest), longest


def problems_of_step(args, pool, step):
    """The step's problems: a function of --rng-seed and the step, with nothing to remember between."""
    P = args.prompts_per_step
    if not pool:
        return load_problems(args.task, "train", P, stream(args.rng_seed, step, "problems"))
    rows = []
    for position in range(step * P, (step + 1) * P):
        epoch, i = divmod(position, len(pool))  # every epoch in an order of its own
        order = torch.Generator().manual_seed(stream(args.rng_seed, epoch, "order"))
        rows.append(pool[torch.randperm(len(pool), generator=order)[i]])
    return rows


def train(args, run, pool, held_out):
    """The loop. Returns {label: evaluation} of the start and of the end, and whether Ctrl-C cut it short."""
    policy, tokenizer = runs.or_fail(
        load_model, runs.or_fail(model_path, args.model, args.task, args.base_steps), args.device
    )
    reference = copy.deepcopy(policy).eval().requires_grad_(False) if args.kl_coef else None
    optimizer = torch.optim.AdamW(policy.parameters(), args.learning_rate, weight_decay=args.weight_decay)
    ring = Ring(args.ring_size, args.snapshot_every, args.min_lag)
    stop, G, cap = stop_ids(policy, tokenizer), args.group_size, args.max_new_tokens
    ks = [k for k in (1, 4, 16, 64) if k < args.eval_samples] + [args.eval_samples]
    results, shown = {}, {}

    def held_out_evaluation(step):
        m = evaluate(policy, tokenizer, held_out, args.eval_samples, ks, cap, args.temperature,
                     8 * args.micro_batch, (args.rng_seed, step, "evaluation"))
        run.log("eval", {"step": step, **m})
        shown["pass@1"] = f"{m['pass@1']:.3f}"
        results[f"step {step}"] = m

    with runs.StopOnInterrupt() as interrupt:
        bar = tqdm(range(args.steps), desc=args.method, unit="step")
        for step in bar:
            if step == 0 or (args.eval_every and step % args.eval_every == 0):
                held_out_evaluation(step)
            ring.keep(step, policy)
            rows = [row for row in problems_of_step(args, pool, step) for _ in range(G)]
            prompts = [tokenizer(row["prompt"])["input_ids"] for row in rows]
            clock = [time.perf_counter()]

            # 1. Seeds: a past checkpoint writes the prefixes of some rows. Without this call: GRPO.
            seeds = no_seeds(len(rows))
            if args.seed_fraction:
                torch.manual_seed(stream(args.rng_seed, step, "prefixes"))
                seeds = draw_prefixes(
                    ring, policy, step, prompts, G, args.seed_fraction, prefix_lengths(args),
                    args.temperature, stop, args.micro_batch,
                )
            clock.append(time.perf_counter())

            # 2. Rollout: the policy writes the rest of every row.
            torch.manual_seed(stream(args.rng_seed, step, "rollout"))
            batch = rollout(policy, prompts, seeds.ids, cap, args.temperature, stop)
            clock.append(time.perf_counter())

            # 3. Score: what the policy thought of each token as it sampled, the snapshot's included.
            batch.old_logp, _entropy = score(policy, batch, args.temperature, args.micro_batch)
            batch.behaviour_logp = behaviour_logp(seeds, batch.old_logp)
            clock.append(time.perf_counter())

            # 4. Rewards, on prefix and continuation together, and what each row is worth in its group.
            responses = [ids[:n] for ids, n in zip(batch.response_ids.tolist(), batch.lengths.tolist())]
            texts = [response_text(tokenizer, ids, stop) for ids in responses]
            rewards = torch.tensor([reward(text, row) for text, row in zip(texts, rows)])
            advantages = group_advantages(rewards, G).to(policy.device)

            # 5. Update: one optimizer step per minibatch of whole groups, one pass over the rows.
            policy.train()
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * min(1, (step + 1) / max(1, args.lr_warmup))
            sums, grad_norms = {}, []
            for groups in torch.arange(len(rows)).view(-1, G).tensor_split(args.minibatches):
                minibatch = groups.flatten().to(policy.device)
                weights = row_weights(batch.lengths[minibatch], args.loss_reduction, cap)
                for index in torch.arange(len(minibatch), device=policy.device).split(args.micro_batch):
                    part = batch[minibatch[index]]
                    logp, entropy = token_logps(policy, part, args.temperature)
                    ref_logp = None
                    if reference is not None:
                        with torch.no_grad():
                            ref_logp, _entropy = token_logps(reference, part, args.temperature)
                    loss, part_sums = policy_loss(
                        args.method, logp, part.old_logp, part.behaviour_logp, part.from_snapshot,
                        part.mask, advantages[minibatch[index]], weights[index], args.clip_low,
                        args.clip_high, entropy, ref_logp, args.kl_coef,
                    )
                    loss.backward()
                    add_sums(sums, part_sums)
                grad_norms.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm))
                optimizer.step()
                optimizer.zero_grad()
            clock.append(time.perf_counter())

            # 6. The record.
            seconds = [after - before for before, after in zip(clock, clock[1:])]
            metrics = {
                "step": step,
                **rollout_metrics(rewards, G, *(
                    x.cpu() for x in (batch.lengths, batch.prefix_lengths, batch.ended))),
                "snapshot_lag": None if seeds.step is None else step - seeds.step,
                **summarize(sums),
                "grad_norm": torch.stack(grad_norms).mean().item(),
                **dict(zip(("seconds_prefix", "seconds_rollout", "seconds_score", "seconds_update"), seconds)),
                "tokens_per_second": batch.lengths.sum().item() / sum(seconds),
            }
            run.log("train", metrics)
            for i in (0, G - 1):  # the first group's first row is seeded, its last one usually not
                k = batch.prefix_lengths[i].item()
                run.sample({
                    "step": step, "prompt": rows[i]["prompt"], "prefix": tokenizer.decode(responses[i][:k]),
                    "continuation": tokenizer.decode(responses[i][k:]), "reward": rewards[i].item(),
                    "snapshot_step": seeds.step if k else None,
                })
            shown["reward"], shown["entropy"] = f"{metrics['reward']:.3f}", f"{metrics['entropy']:.3f}"
            bar.set_postfix(shown)
            if interrupt.asked:
                break
        bar.close()
        if not interrupt.asked:
            held_out_evaluation(args.steps)
        run.save_model(policy, tokenizer)
    return results, interrupt.asked


def main(argv=None):
    args = parse_args(argv)
    held_out = runs.or_fail(load_problems, args.task, args.eval_split, args.eval_problems, seed=0)
    pool = runs.or_fail(load_problems, args.task, "train", args.train_problems, seed=0)
    with runs.Run(args.out, vars(args)) as run:
        results, interrupted = train(args, run, pool, held_out)
        run.draw_curves()
    first, *_, last = [*results, *results]
    print(table({label: results[label] for label in dict.fromkeys([first, last])}))
    print(f"the trained model: {run.folder / 'model'}   the curves: {run.folder / 'curves.png'}")
    return 130 if interrupted else 0


if __name__ == "__main__":
    runs.main(main)
