"""What a step costs: against GRPO, against TRL, against bare forward passes, and in memory.

    python experiments/benchmark.py --threads 1 --out benchmark.jsonl
    python experiments/benchmark.py --parts sampling memory --repeats 5
    python experiments/benchmark.py --device cuda

prints a table a part, with the time of a step's parts where there are any, and writes every single
figure to --out.

    overhead   a step of thinking_seeds beside one of grpo (target: at most 1.15; the paper: 1.27)
    trl        a step of grpo beside one of TRL's GRPOTrainer (targets: 0.7 of its time, its memory)
    sampling   `sample` beside the same number of bare forward passes with a KV cache
    memory     `score` and `update` as responses get longer; the ring as it gets larger

For the rows against TRL: `pip install trl==1.16.0`, which nothing else here needs; without it they
say that it is not installed.

Every contender is a process of its own that does one step when asked, and they are asked in turn
(A B A B ...), so that what disturbs the machine meanwhile disturbs all alike; after --warm-up
steps, the median of --repeats counts. (All are in memory at once, so a pair needs that of two
trainings.) Memory is that of the process: its peak from the first step on, over what it held before
it, so weights and libraries do not count, but gradients and the optimizer's state do. On a CPU it
is resident memory (Linux only), and the allocator's habits are in it; on a GPU, what tensors hold.

The learning rate is 0: AdamW does all its work, and each step starts from the same policy. The base
policy of the embedded task (`tiny`) plays its game; other models have random weights. To these, and
to all that run beside TRL, every response is as long as the cap: there is no stop id, or, for TRL,
which insists on one, an id beyond the vocabulary. Their reward is 0 and 1 in turn: a real one would
be 0 throughout, and so the gradient.
"""

import argparse
import contextlib
import copy
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
import transformers as hf  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import runs  # noqa: E402
import train  # noqa: E402
from rollout import make_batch, sample, score  # noqa: E402
from seeds import Ring, prefix_bounds  # noqa: E402
from tasks import countdown  # noqa: E402
from tasks.problems import TASKS, Task, open_model, problems_of_step, prompt_ids  # noqa: E402

VOCABULARY = 151_936
SHAPES = {  # hidden, intermediate, layers, heads, KV heads
    "0.5b": (896, 4864, 24, 14, 2),  # Qwen2.5's
    "1.5b": (1536, 8960, 28, 12, 2),
    "wide": (64, 256, 2, 4, 2),  # nearly all vocabulary: its memory is its logits'
}
# The contenders of a part; others are told in multiples of the first.
RACES = {"overhead": ("grpo", "thinking_seeds"), "trl": ("trl", "grpo"),
         "sampling": ("bare", "sample")}
PARTS = (*RACES, "memory")


@dataclass(frozen=True)
class Case:
    """A model, the sizes of its step, and which parts measure it."""

    model: str
    prompts: int
    group: int
    cap: int  # response tokens
    micro_batch: int
    parts: tuple = PARTS
    minibatches: int = 4
    plays: bool = False  # the real task; else responses of one length

    def __str__(self):
        return f"{self.model}, {self.prompts} x {self.group} rows, {self.cap} tokens"


CASES = {
    "cpu": [Case("tiny", 16, 16, 20, 64), Case("0.5b", 2, 4, 16, 8, ("trl", "sampling"))],
    "cuda": [Case("0.5b", 16, 8, 512, 8), Case("1.5b", 16, 8, 512, 4)],
}

# ------------------------------------------------------------------- a contender, in its process


class Clock:
    """Lets this process do a step when the parent asks for one, and answers what it took."""

    def __init__(self, is_gpu):
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print must not get between the answers
        self.is_gpu, self.before = is_gpu, None

    def memory(self):
        """Bytes: (now, the peak)."""
        if self.is_gpu:
            return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        # Not getrusage: its peak may be the parent's, which this process was forked from.
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = dict(line.split(":", 1) for line in lines)
        return tuple(1024 * int(kib[name].split()[0]) for name in ("VmRSS", "VmHWM"))

    def now(self):
        if self.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def answer(self, **row):
        print(json.dumps(row), file=self.answers, flush=True)

    def wait(self):
        """Returns when a step is to begin."""
        if not sys.stdin.readline():
            os._exit(0)  # enough; no trainer is to save anything
        if self.before is None:
            if self.is_gpu:
                torch.cuda.reset_peak_memory_stats()
            else:
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
            self.before, _peak = self.memory()
        self.started = self.now()

    def report(self, **more):
        """A step is done."""
        seconds, (_now, peak) = self.now() - self.started, self.memory()
        self.answer(seconds=seconds, peak=peak, more_memory=peak - self.before, **more)


def random_model(name):
    hidden, intermediate, layers, heads, kv_heads = SHAPES[name]
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=intermediate,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        tie_word_embeddings=True))


def prepare(job):
    """(train.py's args, policy, tokenizer) of a contender."""
    turn = itertools.cycle([0.0, 1.0])
    TASKS["benchmark"] = Task(
        countdown.make_games, lambda response, row: next(turn), base_policy=countdown.base_policy)
    plays = job.plays and job.model == "tiny"
    method = "thinking_seeds" if job.contender == "thinking_seeds" else "grpo"
    args = train.parse_args([str(word) for word in (
        "--task", "countdown" if plays else "benchmark", "--method", method, "--learning-rate", 0,
        "--prompts-per-step", job.prompts, "--group-size", job.group, "--max-new-tokens", job.cap,
        "--minibatches", min(job.minibatches, job.prompts), "--micro-batch", job.micro_batch,
        "--base-steps", job.base_steps, "--device", job.device, "--threads", job.threads)])
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if job.model == "tiny":
        policy, tokenizer = open_model(args, args.task)
    else:
        policy, tokenizer = random_model(job.model).to(args.device), countdown.make_tokenizer()
    if not plays:
        policy.generation_config.eos_token_id = tokenizer.eos_token = None
    return args, policy, tokenizer


def problems_of(args, step):
    return problems_of_step(args.task, [], args.prompts_per_step, step, args.rng_seed)


def run_ours(job, clock):
    """Steps of train.py: the only place that calls collect and update as it does."""
    args, policy, tokenizer = prepare(job)
    optimizer = train.adamw(args, policy)
    ring, bounds, first = None, None, args.ring_size * args.snapshot_every
    if args.seeded_rows:
        bounds = prefix_bounds(args.method, args.prefix_min, args.prefix_max, args.max_new_tokens)
        ring = Ring(args.ring_size, args.snapshot_every, args.min_lag)
        for taken in range(0, first, args.snapshot_every):  # its past: the policy, a little shaken
            past = copy.deepcopy(policy)
            for weight in past.parameters():
                weight.data *= 1 + 0.01 * torch.randn_like(weight)
            ring.keep(taken, past)
            del past
    clock.answer()
    with runs.precision(args):
        for step in itertools.count(first):
            problems = problems_of(args, step)
            clock.wait()
            if ring is not None:
                ring.keep(step, policy)
            batch, _seeds, _rewards, seconds = train.collect(
                args, step, problems, policy, tokenizer, ring, bounds, None)
            started = clock.now()
            train.update(args, policy, optimizer, batch)
            seconds = [*seconds[:3], clock.now() - started]
            clock.report(tokens=batch.lengths.sum().item(), parts=seconds)


def run_trl(job, clock):
    """Steps of TRL's GRPOTrainer, without all that it can do without.

    A step lasts from the end of the one before, so that drawing its prompts, sampling (a part of
    preparing its inputs), the update and the trainer's own work are in it.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    args, policy, tokenizer = prepare(job)
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    parts["model"]["vocab"]["<never>"] = policy.config.vocab_size  # an id that nobody can sample
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(parts)), pad_token="<pad>",
        eos_token="<never>", padding_side="left", clean_up_tokenization_spaces=False)
    tokens = []

    def rewards(completions, completion_ids, **_rest):
        tokens.append(sum(map(len, completion_ids)))
        return [TASKS[args.task].reward(text, None) for text in completions]

    class Steps(hf.TrainerCallback):
        def on_train_begin(self, *_args, **_kwargs):
            clock.wait()

        def on_step_end(self, *_args, **_kwargs):
            clock.report(tokens=tokens.pop())
            clock.wait()

    accumulated = args.prompts_per_step * args.group_size // args.micro_batch
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        # The same step: rows, micro-batches, one update, the loss of --loss-reduction token
        per_device_train_batch_size=args.micro_batch, gradient_accumulation_steps=accumulated,
        steps_per_generation=accumulated, num_iterations=1, num_generations=args.group_size,
        max_completion_length=args.max_new_tokens, temperature=args.temperature, top_k=0, top_p=1.0,
        beta=0.0, loss_type="dapo", scale_rewards="group", mask_truncated_completions=False,
        epsilon=args.clip_low, epsilon_high=args.clip_high, learning_rate=args.learning_rate,
        lr_scheduler_type="constant", weight_decay=args.weight_decay,
        max_grad_norm=args.max_grad_norm, max_steps=job.steps + 1,
        bf16=args.dtype == "bfloat16", use_cpu=args.device == "cpu",
        # Off: what takes time. (By default gradient_checkpointing is on.) Its optimizer is its own
        # choice, fused AdamW; with one update a step it does not score the batch before it either.
        gradient_checkpointing=False, disable_dropout=True, shuffle_dataset=False,
        dataloader_num_workers=0, dataloader_pin_memory=False, logging_strategy="no",
        logging_nan_inf_filter=False, save_strategy="no", report_to="none", disable_tqdm=True)
    rows = [row for step in range(job.steps + 1) for row in problems_of(args, step)]
    trainer = GRPOTrainer(
        policy, rewards, config, Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        processing_class=tokenizer, callbacks=[Steps()])
    settings = {each.name: getattr(config, each.name) for each in fields(config)
                if getattr(config, each.name) != each.default and each.name != "output_dir"}
    clock.answer(settings={name: value for name, value in settings.items()
                           if isinstance(value, str | int | float | bool)})
    trainer.train()


def run_sampling(job, clock):
    """sample: the rollout's own; bare: as many forward passes, and a draw from each."""
    args, policy, tokenizer = prepare(job)
    texts = [row["prompt"] for row in problems_of(args, 0) for _ in range(args.group_size)]
    contexts = [prompt_ids(tokenizer, {"prompt": text}) for text in texts]
    padded = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    caps = [args.max_new_tokens] * len(texts)
    clock.answer()
    with runs.precision(args), torch.no_grad():
        for step in itertools.count():
            torch.manual_seed(step)
            clock.wait()
            if job.contender == "sample":
                sample(policy, contexts, args.max_new_tokens, args.temperature, [])
            else:
                forward_passes(policy.eval(), padded, args)
            clock.report(tokens=sum(caps))


def forward_passes(policy, padded, args):
    ids, mask = (padded[name].to(args.device) for name in ("input_ids", "attention_mask"))
    P, T = ids.shape[1], args.max_new_tokens
    # A mask, as `generate` needs it too: prompts differ in length, so there is padding.
    mask = torch.cat([mask, mask.new_ones(len(mask), T)], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    past, begin, drawn = hf.DynamicCache(config=policy.config), 0, []
    for end in range(P, P + T):
        logits = policy(
            input_ids=ids, attention_mask=mask[:, :end], position_ids=positions[:, begin:end],
            past_key_values=past, use_cache=True, logits_to_keep=1).logits[:, -1]
        ids, begin = torch.multinomial((logits.float() / args.temperature).softmax(-1), 1), end
        drawn.append(ids)
    return torch.cat(drawn, dim=1).tolist()


def run_memory(job, clock):
    """score, update: of random rows that are all as long as the cap."""
    args, policy, _tokenizer = prepare(job)
    optimizer = train.adamw(args, policy)
    rows = args.prompts_per_step * args.group_size

    def call(T):
        prompts, responses = torch.randint(VOCABULARY, (2, rows, T)).tolist()
        batch = make_batch([x[:16] for x in prompts], responses, [], args.device)
        if job.contender == "score":
            return score(policy, batch, args.temperature, args.micro_batch)
        batch.old_logp = batch.snapshot_logp = torch.zeros(rows, T, device=args.device)
        batch.from_snapshot = torch.zeros(rows, T, dtype=torch.bool, device=args.device)
        batch.advantages = torch.ones(rows, device=args.device)
        return train.update(args, policy, optimizer, batch)

    with runs.precision(args):
        call(2)  # so that gradients and the optimizer's state are there before
        clock.answer()
        while True:
            clock.wait()
            call(args.max_new_tokens)
            clock.report()


CONTENDERS = {"grpo": run_ours, "thinking_seeds": run_ours, "trl": run_trl, "sample": run_sampling,
              "bare": run_sampling, "score": run_memory, "update": run_memory}

# ------------------------------------------------------------------------------ the measurements


def race(case, contenders, args, warm_up, repeats):
    """{contender: what it answered to each of `repeats` steps}, taken in turn, and settings."""
    job = {**asdict(case), "device": args.device, "threads": args.threads,
           "base_steps": args.base_steps, "steps": warm_up + repeats}
    # One GPU in sight, as TRL demands; and it is not to look for a network.
    env = {"CUDA_VISIBLE_DEVICES": "0", **os.environ, "HF_HUB_OFFLINE": "1",
           "HF_HUB_DISABLE_TELEMETRY": "1"}
    rows, workers, settings = {name: [] for name in contenders}, {}, {}
    with tempfile.TemporaryFile("w+") as errors:

        def listen(name):
            if line := workers[name].stdout.readline():
                return json.loads(line)
            errors.seek(0)
            runs.fail(f"{name} of {case} ended: {errors.read()[-600:]}")

        try:
            for name in contenders:  # one after the other: nothing is measured while one loads
                job_of = json.dumps({**job, "contender": name})
                workers[name] = subprocess.Popen(
                    [sys.executable, __file__, "--job", job_of], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
                settings |= listen(name)
            record(args, **job, contenders=contenders, **settings)
            turns = itertools.product(range(-warm_up, repeats), workers.items())
            for step, (name, worker) in turns:
                with contextlib.suppress(BrokenPipeError):  # it has died: listen tells of it
                    print(file=worker.stdin, flush=True)
                row = listen(name)
                record(args, case=str(case), minibatches=case.minibatches, contender=name,
                       step=step, **row)
                rows[name] += [row] if step >= 0 else []
        finally:
            for worker in workers.values():
                with contextlib.suppress(BrokenPipeError):
                    worker.stdin.close()
                worker.wait()
    return rows, settings


def record(args, **row):
    if args.out:
        runs.append(args.out, row)


def compare(part, case, args):
    """Rows of a table: the contenders of a part."""
    if part == "trl":
        try:
            title = f"TRL {version('trl')}, {case}"
        except PackageNotFoundError:
            return [[case, "trl: not installed"]]
        if case.prompts * case.group % case.micro_batch:
            runs.fail(f"--micro-batch {case.micro_batch} does not divide the rows of {case}")
    each, settings = race(case, RACES[part], args, args.warm_up, args.repeats)
    if part == "trl":
        print(f"\n{title}, differs from TRL's defaults in {json.dumps(settings['settings'])}")
    table, base = [], each[RACES[part][0]]
    time_base, memory_base = median(row["seconds"] for row in base), base[-1]["more_memory"]
    for name, rows in each.items():
        seconds, more = sorted(row["seconds"] for row in rows), rows[-1]["more_memory"]
        low, high = seconds[len(seconds) // 4], seconds[-1 - len(seconds) // 4]
        parts = [median(values) for values in zip(*[row.get("parts", []) for row in rows])]
        table.append([
            case, name, f"{median(seconds):.3f} ({low:.3f} - {high:.3f})",
            f"{median(seconds) / time_base:.2f}", " + ".join(f"{s:.3f}" for s in parts) or "-",
            f"{sum(row['tokens'] for row in rows) / sum(seconds):.0f}", mib(rows[-1]["peak"]),
            mib(more), f"{more / max(1, memory_base):.2f}"])
    return table


def memory(args):
    table, micro_batch = [], args.micro_batch or 1
    for name, T in itertools.product(("score", "update"), args.caps):
        case = Case("wide", 1, args.rows, T, micro_batch, minibatches=1)
        peak = race(case, (name,), args, 0, 1)[0][name][0]["more_memory"]
        logits = [n * T * VOCABULARY * 4 for n in (args.rows, micro_batch)]
        table.append([name, T, *map(mib, (peak, *logits)), f"{peak / logits[1]:.1f}"])
    policy = random_model("wide").to(args.device)
    one = sum(weight.nbytes for weight in [*policy.parameters(), *policy.buffers()])
    for size in (1, 2, 4, 8):
        ring = Ring(size, every=1, min_lag=0)
        for step in range(size + 2):
            ring.keep(step, policy)
        kept = [weight for _, weights in ring.snapshots for weight in weights.values()]
        total, where = sum(w.nbytes for w in kept), sorted({str(w.device) for w in kept})
        record(args, ring=size, bytes=total, policy_bytes=one, devices=where)
        table.append([f"ring of {size} on {', '.join(where)}", "-", mib(total), "-", "-",
                      f"{total / one:.2f} of a policy"])
    return table


def mib(count):
    return f"{count / 2**20:.0f}"


HEADERS = dict.fromkeys(RACES, (
    "case", "contender", "seconds (quartiles)", "x", "prefix + rollout + score + update",
    "tokens/s", "peak MiB", "over before", "x")) | {"memory": (
        "of", "tokens", "MiB over before", "logits of all rows", "of a micro-batch", "x")}


def show(part, table):
    about = next(line for line in __doc__.splitlines() if line.startswith(f"    {part} "))
    print(f"\n{about.strip()}\n")
    lines = [HEADERS[part], ["---"] * len(HEADERS[part]), *table]
    lines = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in itertools.zip_longest(*lines, fillvalue="")]
    for line in lines:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths)) + " |", flush=True)


def parse_args(argv=None):
    form = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description="What a step costs.", formatter_class=form)
    p.error = runs.fail
    count, add = runs.number(int, 1), p.add_argument
    add("--parts", nargs="+", default=PARTS, choices=PARTS, help="see the top of this file")
    add("--repeats", type=count, default=10, help="measured steps of each contender")
    add("--warm-up", type=runs.number(int, 0), default=2, help="steps before them")
    add("--device", type=runs.device, default="cpu", choices=["cpu", "cuda"],
        help="cuda: other sizes, and bfloat16 as in train.py")
    add("--threads", type=count, default=torch.get_num_threads(), help="of the CPU")
    add("--base-steps", type=count, default=400, help="supervised steps of the tiny policy")
    add("--out", help="JSONL for every single measurement; must not exist yet")
    # Sizes; None: the device's own, see CASES
    add("--models", nargs="+", choices=["tiny", *SHAPES], help="each in all parts")
    add("--prompts", type=count, help="in a step")
    add("--group", type=runs.number(int, 2), help="rows a prompt")
    add("--cap", type=count, help="response tokens a row")
    add("--micro-batch", type=count, help="rows per forward; part memory: None is 1")
    add("--rows", type=runs.number(int, 2), default=32, help="of part memory")
    add("--caps", type=count, nargs="+", default=[64, 128, 256, 512], help="of part memory")
    add("--job", help=argparse.SUPPRESS)  # what a contender's process is started with
    return p.parse_args(argv)


def cases_of(args):
    cases = CASES["cpu" if args.device == "cpu" else "cuda"]
    if args.models:
        known = {case.model: case for case in cases}
        cases = [replace(known.get(model, cases[0]), model=model, parts=PARTS)
                 for model in args.models]
    sizes = {name: getattr(args, name) for name in ("prompts", "group", "cap", "micro_batch")}
    return [replace(case, **{name: size for name, size in sizes.items() if size})
            for case in cases]


def main(argv=None):
    args = parse_args(argv)
    if args.job:
        job = argparse.Namespace(**json.loads(args.job))
        CONTENDERS[job.contender](job, Clock(job.device != "cpu"))
    if args.out:
        runs.or_fail(open, args.out, "x").close()
    torch.set_num_threads(args.threads)
    is_cpu = args.device == "cpu"
    machine = {
        "device": platform.machine() if is_cpu else torch.cuda.get_device_name(args.device),
        "threads": args.threads, "dtype": runs.usual_dtype(args.device),
        "repeats": args.repeats, "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers")}}
    record(args, **machine)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for part in args.parts:
        if part == "memory":
            show(part, memory(args))
            continue
        table = []
        for case in cases_of(args):
            if part not in case.parts:
                continue
            if case.model == "tiny":  # once, before its contenders all look for it
                countdown.base_policy(args.base_steps)
            case = replace(case, plays=part == "overhead", minibatches=1 if part == "trl" else 4)
            table += compare(part, case, args)
        show(part, table)


if __name__ == "__main__":
    runs.main(main)
