"""Thinking Seeds inside TRL's GRPOTrainer, with the objective of loss.py in place of TRL's own.

    pip install trl==1.16.0
    python experiments/trl_seeds.py --steps 30 --min-lag 10 --threads 1
    python experiments/trl_seeds.py --method grpo --steps 30

TRL has the datasets, the optimizer, accelerate and its checkpoints; this file tells it how a row
comes about and what it is worth. The flags are those of train.py; the ones about evaluation and
checkpoints do nothing here, and it prints a line a step. Two points of TRL are used:

    rollout_func     An argument of GRPOTrainer, documented, but marked experimental. It returns
                     each row's ids and one log-prob a token. TRL pads, shuffles and splits these
                     with the row, and without vLLM it reads them for nothing else (as long as
                     off_policy_mask_threshold is not set).
    compute_loss     A public method of Trainer that is meant to be overridden. What is private,
                     and may change with any version of TRL, are the names of its inputs, which
                     `batch_of` alone reads.

A row's log-probs are the snapshot's where it wrote the token, and nan where the policy did, which
is how its prefix is known again once TRL has shuffled the rows. Four things fail silently if done
the other way:

1. *The instance for snapshots comes first.* GRPOTrainer puts a function into `policy.forward` that
   holds the policy, so a copy made later would answer with the policy's logits, whatever weights
   are loaded into it: every "snapshot" would be the present.
2. *Nothing is divided twice.* The weight of a token is 1 / Z, Z the tokens of the optimizer step
   over all its micro-batches and processes. GRPOTrainer tells Trainer that the loss is scaled for
   accumulation already (loss_is_scaled_for_ga), so that only the mean over processes is undone.
3. *No correction by TRL.* With use_vllm it makes capped weights of pi_old / (the log-probs that it
   was given), for its own loss. The one here does not look at them, and must not.
4. *Training mode comes back.* Sampling is in eval mode, in which gradient checkpointing is off.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import PrinterCallback, TrainerCallback  # noqa: E402

import runs  # noqa: E402
import train  # noqa: E402
from loss import add_sums, policy_loss, summarize  # noqa: E402
from rollout import Batch, response_text, rollout, stop_ids, stream, token_logps  # noqa: E402
from seeds import Ring, by_snapshot, draw_prefixes, no_seeds, prefix_bounds  # noqa: E402
from tasks.problems import askable, load_problems, open_model, problems_of_step  # noqa: E402
from tasks.problems import prompt_ids, reward  # noqa: E402

try:
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    runs.fail(f"{error}: this example needs pip install trl==1.16.0")


class Rollouts(TrainerCallback):
    """TRL's rollout_func, and the snapshots that it draws from."""

    def __init__(self, args, policy, tokenizer, problems):
        self.args, self.stop = args, stop_ids(policy, tokenizer)
        self.ids = {row["prompt"]: prompt_ids(tokenizer, row) for row in problems}
        self.ring = None
        if args.seeded_rows:
            self.bounds = runs.or_fail(
                prefix_bounds, args.method, args.prefix_min, args.prefix_max, args.max_new_tokens)
            self.ring = runs.or_fail(Ring, args.ring_size, args.snapshot_every, args.min_lag)
            self.ring.keep(0, policy)
            self.ring.load(0, policy)  # now, while its forward is its own: see the head, 1

    def on_step_end(self, _args, state, control, model=None, **kwargs):
        step, rest = divmod(state.global_step, self.args.minibatches)
        if self.ring is not None and rest == 0:
            self.ring.keep(step, model)  # as it begins the next step

    def __call__(self, prompts, trainer):
        """A row for each prompt: G consecutive ones are equal, a group, all on this process."""
        args, policy, stop = self.args, trainer.model, self.stop
        step, rank = trainer.state.global_step // args.minibatches, runs.rank()
        asked, seeds = [self.ids[text] for text in prompts], no_seeds(len(prompts))
        torch.manual_seed(stream(args.rng_seed, step, "snapshot"))
        with runs.precision(args):
            if self.ring is not None and (taken := self.ring.choose(
                    step, args.snapshot_choice)) is not None:
                torch.manual_seed(stream(args.rng_seed, step, "prefixes", rank))
                seeds = draw_prefixes(
                    self.ring, policy, taken, asked, args.group_size, args.seeded_rows, self.bounds,
                    args.temperature, stop, args.micro_batch,
                    args.max_new_tokens if args.method == "suffix" else None)
            torch.manual_seed(stream(args.rng_seed, step, "rollout", rank))
            batch = rollout(policy, asked, seeds.ids, args.max_new_tokens, args.temperature, stop)
        policy.train()
        is_its, logp = by_snapshot(seeds, batch)
        logp = zip(logp.masked_fill(~is_its, torch.nan).tolist(), batch.lengths.tolist())
        return {"prompt_ids": asked, "completion_ids": batch.responses(),
                "logprobs": [values[:length] for values, length in logp]}


def batch_of(inputs):
    """TRL's inputs of a micro-batch (the names are its own) as a Batch, and nothing recomputed."""
    lengths, given = inputs["completion_mask"].sum(1), inputs["sampling_per_token_logps"]
    is_its = ~given.isnan() & inputs["completion_mask"].bool()  # padded with 0, not with nan
    batch = Batch(
        inputs["prompt_ids"], inputs["prompt_mask"].sum(1), inputs["completion_ids"], lengths,
        torch.zeros_like(lengths, dtype=torch.bool),  # ended: not needed here
        from_snapshot=is_its, snapshot_logp=given.masked_fill(~is_its, 0.0),
        old_logp=inputs.get("old_per_token_logps"), advantages=inputs["advantages"])
    return batch[torch.arange(len(lengths), device=lengths.device)]  # without columns of padding


class SeedsTrainer(GRPOTrainer):
    """GRPOTrainer with loss.py's objective."""

    def __init__(self, flags, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.flags, self.sums = flags, {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        flags, batch = self.flags, batch_of(inputs)
        logp, entropy = token_logps(model, batch, flags.temperature)
        # TRL scores the rows before the first of several updates, as `collect` does; with one
        # update a step it does not, as the policy is still what it was.
        old_logp = logp.detach() if batch.old_logp is None else batch.old_logp
        behaviour_logp = torch.where(batch.from_snapshot, batch.snapshot_logp, old_logp)
        # row_weights by token. TRL counts the tokens of the whole rollout, on all processes, and
        # shuffles its rows, so with several updates Z is that of the average one. Gradients become
        # a mean over processes; what Z calls for is their sum.
        Z = inputs["num_items_in_batch"] / flags.minibatches
        weights = (self.accelerator.num_processes / Z).expand(len(batch.lengths))
        loss, sums = policy_loss(
            flags.method, logp, old_logp, behaviour_logp, batch.from_snapshot, batch.mask,
            batch.advantages, weights, (flags.clip_low, flags.clip_high),
            (flags.prefix_clip_low, flags.prefix_clip_high), entropy)
        add_sums(self.sums, sums)
        return loss

    def log(self, logs, start_time=None):
        super().log(logs, start_time)  # it adds its own to logs
        if self.sums and self.is_world_process_zero():
            mine = summarize(self.sums)  # of this process; the reward is of all
            step = self.state.global_step // self.flags.minibatches - 1
            print(f"step {step}  reward {logs['reward']:.3f}  snapshot_share "
                  f"{mine['snapshot_share']:.3f}  entropy {mine['entropy']:.3f}", flush=True)
        self.sums = {}


def parse_args(argv=None):
    args = train.parse_args(argv)
    for name, value in ("kl_coef", 0.0), ("loss_reduction", "token"), ("resume", None):
        if getattr(args, name) != value:
            flag = name.replace("_", "-")
            runs.fail(f"--{flag} {getattr(args, name)}: not in this example, but in train.py")
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    rows = args.prompts_per_step * args.group_size // ranks
    if rows % (args.minibatches * args.micro_batch):
        runs.fail(f"--micro-batch {args.micro_batch} x --minibatches {args.minibatches}: must "
                  f"divide the {rows} rows of a process")
    args.accumulated = rows // args.minibatches // args.micro_batch
    if args.device == "cuda":  # the one that TRL will put the policy on
        args.device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    return args


def make_trainer(args):
    policy, tokenizer = runs.or_fail(open_model, args, args.task)
    pool = runs.or_fail(load_problems, args.task, args.split, args.train_problems, 0, args)
    pool = runs.or_fail(askable, policy, tokenizer, args.max_new_tokens, pool)
    problems = [row for step in range(args.steps) for row in problems_of_step(
        args.task, pool, args.prompts_per_step, step, args.rng_seed, args.split)]
    rollouts = Rollouts(args, policy, tokenizer, problems)

    def rewards(completion_ids, problem, **_rest):
        texts = [response_text(tokenizer, ids, rollouts.stop) for ids in completion_ids]
        values = (float(reward(text, problems[i])) for text, i in zip(texts, problem))
        return [0.0 if value != value else value for value in values]  # nan: no verdict

    config = GRPOConfig(
        output_dir=args.out, max_steps=args.steps * args.minibatches,
        per_device_train_batch_size=args.micro_batch, gradient_accumulation_steps=args.accumulated,
        steps_per_generation=args.accumulated * args.minibatches, num_generations=args.group_size,
        num_iterations=1, max_completion_length=args.max_new_tokens, temperature=args.temperature,
        scale_rewards="group", mask_truncated_completions=False, shuffle_dataset=False, beta=0.0,
        learning_rate=args.learning_rate, lr_scheduler_type="constant_with_warmup",
        warmup_steps=args.lr_warmup * args.minibatches, weight_decay=args.weight_decay,
        max_grad_norm=args.max_grad_norm, bf16=args.dtype == "bfloat16", seed=args.rng_seed,
        use_cpu=args.device == "cpu", gradient_checkpointing=args.gradient_checkpointing,
        logging_steps=args.minibatches, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_pin_memory=False)
    rows = [{"prompt": row["prompt"], "problem": i} for i, row in enumerate(problems)]
    trainer = SeedsTrainer(
        args, policy, rewards, config, Dataset.from_list(rows), processing_class=tokenizer,
        callbacks=[rollouts], rollout_func=rollouts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def main(argv=None):
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    if os.environ.get("RANK", "0") == "0" and Path(args.out).exists():
        runs.fail(f"--out {args.out} is there already; no run is overwritten: name another folder")
    trainer = make_trainer(args)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    runs.main(main)
