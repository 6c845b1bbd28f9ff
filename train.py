"""Trains a policy by RL with seeds from its own past (thinking_seeds), or without them (grpo).

    python train.py                       the embedded task, on a laptop's CPU, in minutes
    python train.py --method grpo         the same without seeds
    python train.py --task gsm8k --model Qwen/Qwen2.5-0.5B-Instruct        real math, on a GPU
    python train.py --resume runs/thinking_seeds-countdown-0               go on where it stopped
    torchrun --nproc_per_node 2 train.py                                   on two devices

The method is `collect` and `update`: problems -> seeds (prefixes) -> rollout (continuations,
log-probs) -> rewards -> loss -> optimizer. --method grpo and --method thinking_seeds differ by one
call, draw_prefixes below, and by one line of loss.py, the prefix term.
"""

import copy
import math
import os
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

import checkpoint
import runs
from eval import evaluate, table, usual_ks
from loss import METHODS, REDUCTIONS, add_sums, group_advantages, policy_loss, row_weights
from loss import rollout_metrics, summarize
from rollout import response_text, rollout, score, stop_ids, stream, token_logps
from seeds import CHOICES, Ring, by_snapshot, draw_prefixes, no_seeds, prefix_bounds, seeded_rows
from tasks.problems import askable, load_problems, local, open_model, problems_of_step
from tasks.problems import prompt_ids, reward, task_of, warn_of_overlap
from tasks.sets import add_flags, short_name

# ----------------------------------------------------------------------------------------- flags


def parse_args(argv=None):
    p = runs.parser("RL for language models with seeds drawn from the policy's own past.")
    count, natural, share = runs.number(int, 1), runs.number(int, 0), runs.number(float, 0, 1)
    positive, weight = runs.number(float, 1e-6), runs.number(float, 0)
    add = p.add_argument
    add("--task", default="countdown", type=local, help="countdown4, gsm8k, math, file, Hub id")
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
    add("--ring-size", type=natural, help="snapshots kept, on the CPU; None: 4, for grpo 0")
    add("--snapshot-every", type=count, default=10, help="steps between snapshots")
    add("--min-lag", type=natural, default=10, help="steps until a snapshot may be used")
    add("--snapshot-choice", default="uniform", choices=CHOICES, help="which of those old enough")
    # Optimization
    add("--learning-rate", type=weight, default=3e-5, help="of AdamW")
    add("--lr-warmup", type=natural, default=0, help="steps of linear warm-up; constant after")
    add("--weight-decay", type=weight, default=0.0, help="of AdamW")
    add("--max-grad-norm", type=positive, default=1.0, help="longer gradients are scaled down")
    add("--minibatches", type=count, default=4, help="optimizer steps a step, on whole groups")
    add("--micro-batch", type=count, default=64, help="rows per forward: lower to save memory")
    add("--clip-low", type=share, default=0.2, help="ratios are clipped below 1 - this")
    add("--clip-high", type=weight, default=0.2, help="ratios are clipped above 1 + this")
    add("--prefix-clip-low", type=share, help="of the snapshot's tokens; None: --clip-low")
    add("--prefix-clip-high", type=weight, help="of the snapshot's tokens; None: --clip-high")
    add("--kl-coef", type=weight, default=0.0, help="weight of the KL to the start; 0: none")
    add("--loss-reduction", default="token", choices=REDUCTIONS, help="see loss.py")
    add("--gradient-checkpointing", action="store_true", help="less memory, slower updates")
    # Logging
    add("--eval-every", type=natural, default=50, help="steps; 0: only before and after")
    add("--eval-problems", type=count, default=300, help="held-out problems, always the same")
    add("--eval-samples", type=count, default=16, help="per problem: pass@k up to this k")
    add("--eval-task", type=local, help="what to evaluate on, by columns of the usual names; "
        "None: --task")
    add("--eval-split", default="test", help="of --eval-task; countdown: tune, to choose flags by")
    add("--save-every", type=natural, default=25, help="steps between checkpoints; 0: last only")
    add("--resume", help="folder of a run to go on with; only --steps may differ from its flags")
    args = p.parse_args(argv)
    if args.resume is not None:
        args = checkpoint.flags(p, argv, args)
    if args.seed_fraction is None:
        args.seed_fraction = 0.0 if args.method == "grpo" else 0.5
    if args.ring_size is None:
        args.ring_size = 0 if args.method == "grpo" else 4
    for end in ("low", "high"):
        if vars(args)[f"prefix_clip_{end}"] is None:
            vars(args)[f"prefix_clip_{end}"] = vars(args)[f"clip_{end}"]
    args.dtype = args.dtype or runs.usual_dtype(args.device)
    args.max_new_tokens = args.max_new_tokens or max(
        task_of(name).max_new_tokens for name in (args.task, args.eval_task or args.task))
    args.out = args.out or f"runs/{args.method}-{short_name(args.task)}-{args.rng_seed}"
    # Flags that cannot work together fail here, before anything long starts.
    args.ranks = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1
    groups, rest = divmod(args.prompts_per_step, args.ranks)  # of each process
    if rest or args.minibatches > groups:
        runs.fail(f"--prompts-per-step {args.prompts_per_step}: give a multiple of the number of "
                  f"processes, {args.ranks}, and enough for --minibatches {args.minibatches}, of "
                  "which each needs a group of every process")
    is_same_set = args.eval_task in (None, args.task)
    if args.split == "test" or is_same_set and args.split == args.eval_split:
        runs.fail(f"--split {args.split}: it is to be evaluated on (--eval-split), not trained on")
    if args.method == "grpo" and args.seed_fraction:
        runs.fail(f"--seed-fraction {args.seed_fraction}: grpo has no seeds; thinking_seeds has")
    args.seeded_rows = runs.or_fail(seeded_rows, args.seed_fraction, args.group_size)
    return args


# ------------------------------------------------------------------------------------ the method


def adamw(args, policy):
    # fused: on a CPU, without it, a slow loop with temporaries of the model's size
    return torch.optim.AdamW(
        policy.parameters(), args.learning_rate, weight_decay=args.weight_decay, fused=True)


def minibatches(args, batch):
    """Index tensors of whole groups, one for each optimizer step."""
    groups = torch.arange(len(batch.lengths), device=batch.lengths.device)
    return [*map(torch.flatten, groups.view(-1, args.group_size).tensor_split(args.minibatches))]


def collect(args, step, problems, policy, tokenizer, ring, bounds, reference):
    """One step's rows, G consecutive ones a problem: (batch, seeds, rewards [B], seconds).

    A reward is nan where the grader came to no verdict, and then counts as 0.
    """
    G, cap, stop = args.group_size, args.max_new_tokens, stop_ids(policy, tokenizer)
    prompts = [ids for row in problems for ids in [prompt_ids(tokenizer, row)] * G]
    clock = [time.perf_counter()]

    # 1. Seeds: a past checkpoint writes prefixes for some of the rows. Without this call: GRPO.
    # (What is drawn depends on the rank, but for the snapshot: one for all.)
    seeds = no_seeds(len(prompts))
    torch.manual_seed(stream(args.rng_seed, step, "snapshot"))
    with runs.explained("in sampling: lower --prompts-per-step or --group-size"):
        if args.seeded_rows and (taken := ring.choose(step, args.snapshot_choice)) is not None:
            torch.manual_seed(stream(args.rng_seed, step, "prefixes", runs.rank()))
            seeds = draw_prefixes(
                ring, policy, taken, prompts, G, args.seeded_rows, bounds, args.temperature, stop,
                args.micro_batch, cap if args.method == "suffix" else None)
        clock.append(time.perf_counter())

        # 2. Rollout: the policy writes the rest of every row.
        torch.manual_seed(stream(args.rng_seed, step, "rollout", runs.rank()))
        batch = rollout(policy, prompts, seeds.ids, cap, args.temperature, stop)
        clock.append(time.perf_counter())

    # 3. Score: the policy's own log-probs as of now, on the snapshot's tokens too. Not those of the
    # first minibatch: its update begins with this very policy, and so its forward tells them.
    with runs.explained("in scoring: lower --micro-batch"):
        rows = torch.arange(len(batch.lengths), device=policy.device)
        later = rows[len(minibatches(args, batch)[0]) :]
        batch.old_logp, _entropy = score(policy, batch, args.temperature, args.micro_batch, later)
        batch.from_snapshot, batch.snapshot_logp = by_snapshot(seeds, batch)
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
    """One pass over the batch, an optimizer step a minibatch: (sums, the gradients' norms).

    A minibatch whose loss or gradient is not finite moves nothing; its norm is nan.
    """
    policy.train()
    sums, norms = {}, []
    batch.weights = torch.zeros(len(batch.lengths), device=policy.device)
    for number, minibatch in enumerate(minibatches(args, batch)):
        lengths = torch.cat(runs.gather(batch.lengths[minibatch].cpu()))  # those of every rank
        weights = row_weights(lengths, args.loss_reduction, args.max_new_tokens)
        batch.weights[minibatch] = weights.view(runs.ranks(), -1)[runs.rank()].to(policy.device)
        while (part := gradient(args, policy, batch, minibatch, number == 0)) is None:
            args.micro_batch //= 2  # the gradient is the same
            runs.note(f"out of memory: going on with --micro-batch {args.micro_batch}")
        runs.add_up([part["loss"], *(p.grad for p in policy.parameters())])
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
        is_finite = (norm + part.pop("loss")).isfinite().item()
        norms.append(norm.item() if is_finite else math.nan)
        if is_finite:
            optimizer.step()
        optimizer.zero_grad()  # its memory is of use to the next rollout
        add_sums(sums, part)
    return sums, norms


def gradient(args, policy, batch, minibatch, has_not_moved):
    """Sets .grad to that of the minibatch's loss; returns the sums and, as "loss", the loss.
    None if memory ran out, and there is a smaller micro-batch to try."""
    sums = {"loss": torch.zeros((), device=policy.device)}
    # Where A is 0, so is the gradient (but for a KL term's): a forward for the metrics will do.
    is_live = (batch.advantages[minibatch] != 0) | bool(args.kl_coef)
    policy.zero_grad()
    try:
        for with_grad in (True, False):
            for rows in batch.micro_batches(minibatch[is_live == with_grad], args.micro_batch):
                part = batch[rows]
                with torch.set_grad_enabled(with_grad):
                    logp, entropy = token_logps(policy, part, args.temperature)
                    if has_not_moved:
                        part.old_logp = logp.detach().masked_fill(~part.mask, 0.0)
                        batch.old_logp[rows, : logp.shape[1]] = part.old_logp
                    old_logp = part.old_logp
                    behaviour_logp = torch.where(part.from_snapshot, part.snapshot_logp, old_logp)
                    loss, part_sums = policy_loss(
                        args.method, logp, old_logp, behaviour_logp, part.from_snapshot, part.mask,
                        part.advantages, part.weights, (args.clip_low, args.clip_high),
                        (args.prefix_clip_low, args.prefix_clip_high), entropy,
                        part.ref_logp, args.kl_coef)
                if with_grad:
                    loss.backward()
                add_sums(sums, {"loss": loss.detach(), **part_sums})
        for parameter in policy.parameters():
            if parameter.grad is None:  # no row was live, and AdamW and the ranks need a gradient
                parameter.grad = torch.zeros_like(parameter)
        return sums
    except (RuntimeError, MemoryError) as error:
        if not runs.is_out_of_memory(error):
            raise
        if args.micro_batch == 1:
            runs.fail("out of memory in the update of a single row: lower --max-new-tokens, or add "
                      "--gradient-checkpointing")


# -------------------------------------------------------------------------------------- the loop


def train(args, folder, ring, bounds, pool, held_out):
    """Trains from the folder's checkpoint, if there is one. Returns the number of the signal that
    cut it short, else 0."""
    policy, tokenizer = runs.or_fail(open_model, args, args.task)
    if args.gradient_checkpointing:
        policy.activation_checkpointing_enable()
    fitting = partial(runs.or_fail, askable, policy, tokenizer, args.max_new_tokens)
    pool, held_out = fitting(pool), fitting(held_out)
    reference = copy.deepcopy(policy).requires_grad_(False) if args.kl_coef else None
    optimizer = adamw(args, policy)
    state = runs.or_fail(checkpoint.restore, folder, policy, optimizer, ring)
    start, skipped = state.get("step", 0), state.get("skipped", 0)
    args.micro_batch = state.get("micro_batch", args.micro_batch)
    if len({*runs.gather(start)}) > 1:
        runs.fail(f"--resume {folder}: the machines do not share this folder")
    if args.resume and runs.rank() == 0:
        cut = runs.or_fail(checkpoint.cut_back, folder, start, args.eval_every)
        runs.renew_config(folder, steps=args.steps, ranks=args.ranks)
        runs.note(f"{folder} has {start} of {args.steps} steps in a checkpoint, and " + (
            f"goes on from there; {cut} rows of later ones were cut off, to be made again"
            if start < args.steps else "nothing to do; --steps may grow"))
    rows = runs.gather(runs.rows_of(folder / "metrics.jsonl"))[0]
    evaluated = {row["step"] for row in rows if row["kind"] == "eval"}
    shown, stopped_by = {}, 0

    def evaluate_now(step):  # always on the same problems, and without seeds
        if step in evaluated:  # before this process was resumed
            return
        with runs.explained("lower --micro-batch, an evaluation samples 8 times as many rows"):
            metrics = evaluate(
                policy, tokenizer, held_out, args.eval_samples, args.max_new_tokens,
                args.temperature, 8 * args.micro_batch, (args.rng_seed, step, "evaluation"),
                usual_ks(args.eval_samples))
        runs.append(folder / "metrics.jsonl", {"kind": "eval", "step": step, **metrics})
        shown["pass@1"] = f"{metrics['pass@1']:.3f}"

    bar = tqdm(range(start, args.steps), args.method, args.steps, initial=start, unit="step",
               disable=runs.rank() > 0)
    with runs.precision(args), runs.finish_step_on_interrupt() as signals:
        for step in bar:
            if step == 0 or (args.eval_every and step % args.eval_every == 0):
                evaluate_now(step)
            if ring is not None:
                ring.keep(step, policy)
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * min(1, (step + 1) / max(1, args.lr_warmup))
            problems = problems_of_step(
                args.task, pool, args.prompts_per_step, step, args.rng_seed, args.split)
            problems = problems[runs.rank() :: runs.ranks()]
            batch, seeds, rewards, seconds = collect(
                args, step, problems, policy, tokenizer, ring, bounds, reference)
            started = time.perf_counter()
            sums, norms = update(args, policy, optimizer, batch)
            seconds.append(time.perf_counter() - started)

            row = metrics_of(args, step, batch, seeds, rewards, sums, norms, seconds)
            runs.append(folder / "metrics.jsonl", {"kind": "train", "step": step, **row})
            for sampled in two_samples(args, problems, tokenizer, batch, seeds, rewards):
                runs.append(folder / "samples.jsonl", {"step": step, **sampled})
            shown |= {key: f"{row[key] or 0:.3f}" for key in ("reward", "entropy")}
            bar.set_postfix(shown)

            for norm in norms:
                skipped = 0 if math.isfinite(norm) else skipped + 1
            if row["skipped_updates"]:
                runs.note(f"step {step}: {row['skipped_updates']} of {len(norms)} updates skipped, "
                          f"as loss or gradient is not finite ({skipped} in a row)")
            if skipped >= 10:
                path = checkpoint.save_batch(folder / f"batch-{step}-{runs.rank()}", batch)
                runs.fail(f"{skipped} updates in a row were skipped; the last batch is in {path} "
                          "(the fields of rollout.Batch); start again with a lower --learning-rate")
            # What one rank met with holds for all: out of memory, a signal.
            every = runs.gather((args.micro_batch, max(signals, default=0)))
            args.micro_batch, stopped_by = min(each[0] for each in every), max(e[1] for e in every)
            is_due = args.save_every and (step + 1) % args.save_every == 0
            if runs.rank() == 0 and (is_due or stopped_by or step + 1 == args.steps):
                checkpoint.save(folder, step + 1, policy, optimizer, ring,
                                {"skipped": skipped, "micro_batch": args.micro_batch})
            if stopped_by:
                break
        if runs.rank() == 0:
            with runs.whole_folder(folder / "model") as new:
                policy.save_pretrained(new)
                tokenizer.save_pretrained(new)
        stopped_by = max(stopped_by, *runs.gather(max(signals, default=0)))
    if not stopped_by:
        with runs.precision(args):
            evaluate_now(args.steps)
    return stopped_by


def metrics_of(args, step, batch, seeds, rewards, sums, norms, seconds):
    """A step's row for metrics.jsonl, of the rows of all ranks; the times are this one's."""
    prefix_lengths = batch.from_snapshot.sum(1)
    mine = [x.cpu() for x in (rewards, batch.lengths, prefix_lengths, batch.ended)]
    # whatever was drawn from a model, and then thrown away or not
    generated = seeds.generated + (batch.lengths.sum().item() - sum(map(len, seeds.ids)))
    every = runs.gather((mine, {name: value.cpu() for name, value in sums.items()}, generated))
    rewards, lengths, *rest = map(torch.cat, zip(*(each[0] for each in every)))
    sums = {}
    for _rows, part, _generated in every:
        add_sums(sums, part)
    finite = [norm for norm in norms if math.isfinite(norm)]
    names = [f"seconds_{part}" for part in ("prefix", "rollout", "score", "update")]
    return {
        **rollout_metrics(rewards, args.group_size, lengths, *rest),
        "snapshot_lag": None if seeds.step is None else step - seeds.step,
        **summarize(sums),
        "grad_norm": sum(finite) / len(finite) if finite else None,
        "skipped_updates": len(norms) - len(finite),
        **dict(zip(names, seconds)),
        "tokens_per_second": lengths.sum().item() / sum(seconds),
        "tokens_generated": sum(generated for *_, generated in every),
    }


def two_samples(args, problems, tokenizer, batch, seeds, rewards):
    """A seeded row and, as a rule, one that is not, of the first problem, for samples.jsonl."""
    responses, values = batch.responses(), rewards.nan_to_num(0.0).tolist()
    for i in (0, args.group_size - 1):
        # with `suffix` the snapshot wrote the continuation
        k = seeds.starts[i] or len(seeds.ids[i])
        yield {
            "prompt": problems[0]["prompt"],
            "prefix": tokenizer.decode(responses[i][:k]),
            "continuation": tokenizer.decode(responses[i][k:]),
            "reward": values[i],
            "snapshot_step": seeds.step if seeds.logp[i] else None,
        }


def main(argv=None):
    if dist.is_torchelastic_launched() and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # which is "cuda" from now on
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    ring = bounds = None
    if args.seeded_rows or args.ring_size:  # the ring is also there for eval.py --seed-from
        ring = runs.or_fail(Ring, args.ring_size, args.snapshot_every, args.min_lag)
        bounds = runs.or_fail(prefix_bounds, args.method, args.prefix_min, args.prefix_max,
                              args.max_new_tokens)
    if args.seeded_rows and args.min_lag >= args.steps:
        runs.note(f"--steps {args.steps} end before a snapshot is --min-lag {args.min_lag} steps "
                  "old: all will be on-policy")
    load = partial(runs.or_fail, load_problems, seed=0, args=args)
    held_out = load(args.eval_task or args.task, args.eval_split, args.eval_problems)
    pool = load(args.task, args.split, args.train_problems)
    runs.or_fail(warn_of_overlap, pool, held_out)
    if args.ranks > 1 and not dist.is_initialized():
        dist.init_process_group()
    opened = runs.alone_in(args.out) if args.resume else runs.new_folder(args.out, vars(args))
    opened = nullcontext(Path(args.out)) if runs.rank() else opened
    advice = "model, optimizer and snapshots do not fit: choose a smaller model, a larger device"
    with opened as folder, runs.explained(advice):
        stopped_by = train(args, folder, ring, bounds, pool, held_out)
        if runs.rank() == 0:
            tell(folder, stopped_by)
    return stopped_by and 128 + stopped_by


def tell(folder, stopped_by):
    """Prints what came out: the first and the last evaluation, and where the rest is."""
    curves = runs.draw_curves(folder)
    rows = [row for row in runs.rows_of(folder / "metrics.jsonl") if row.pop("kind") == "eval"]
    rows = {f"step {row.pop('step')}": row for row in rows}
    print(table({step: rows[step] for step in ([*rows][0], [*rows][-1])}))
    print(f"the trained model: {folder / 'model'}\nits curves: {curves}")
    if stopped_by:
        launch = f"torchrun --nproc_per_node {runs.ranks()}" if runs.ranks() > 1 else "python"
        print(f"stopped before its end; go on with: {launch} train.py --resume {folder}")


if __name__ == "__main__":
    runs.main(main)
