"""How far has a policy moved away from its snapshots, and at which token?

    python train.py --ring-size 15 --out runs/drift
    python experiments/drift.py runs/drift

takes each snapshot in the run's last checkpoint, samples whole responses from it, and scores them
by the policy that the run ended with. A line of the table is a snapshot, a column a range of tokens
of the response; each cell has KL(snapshot || policy) in nats per token (the k3 estimate), Kish's
effective share of the tokens if each is weighed by w = pi / pi_snapshot, and the share of tokens
whose ratio is outside 1 +- 0.2, where a clip around the snapshot may take the gradient away.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import checkpoint  # noqa: E402
import runs  # noqa: E402
from rollout import load_model, make_batch, sample, score, stop_ids, stream  # noqa: E402
from tasks.problems import load_problems, prompt_ids  # noqa: E402


def ratios(policy, snapshot, prompts, cap, temperature, stop, micro_batch):
    """log w [B, T] of the snapshot's own samples, and which tokens there are [B, T]. Draws from
    torch's global generator: reseed first."""
    responses = sample(snapshot, prompts, cap, temperature, stop)
    batch = make_batch(prompts, responses, stop, policy.device)
    logps = [score(model, batch, temperature, micro_batch)[0] for model in (policy, snapshot)]
    return logps[0] - logps[1], batch.mask


def measures(log_w, mask):
    """(KL, effective share, share outside 1 +- 0.2) of the tokens in mask; None without any."""
    log_w = log_w[mask].double()
    if not len(log_w):
        return None
    w = log_w.exp()
    ess = w.sum() ** 2 / (len(w) * w.square().sum())
    outside = ((w - 1).abs() > 0.2).double().mean()
    return (log_w.expm1() - log_w).mean().item(), ess.item(), outside.item()


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.error = runs.fail
    p.add_argument("run", help="folder of a training that kept a ring")
    p.add_argument("--problems", type=runs.number(int, 1), default=100, help="of its evaluation")
    p.add_argument("--samples", type=runs.number(int, 1), default=8, help="of each problem")
    p.add_argument("--width", type=runs.number(int, 1), default=4, help="tokens in a column")
    args = p.parse_args(argv)
    ring, step, config = runs.or_fail(checkpoint.ring_of, args.run)
    torch.set_num_threads(config.threads)
    policy, tokenizer = runs.or_fail(load_model, str(Path(args.run) / "model"), "cpu")
    rows = runs.or_fail(load_problems, config.eval_task or config.task, config.eval_split,
                        args.problems, 0, config)
    prompts = [ids for row in rows for ids in [prompt_ids(tokenizer, row)] * args.samples]
    cap, stop = config.max_new_tokens, stop_ids(policy, tokenizer)
    starts = range(0, cap, args.width)
    names = [f"tokens {start + 1} to {min(cap, start + args.width)}" for start in starts]
    print("| lag | all tokens | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 2) + "|")
    for taken, _weights in ring.snapshots:
        torch.manual_seed(stream(config.rng_seed, taken, "drift"))
        log_w, mask = ratios(policy, ring.load(taken, policy), prompts, cap, config.temperature,
                             stop, 8 * config.micro_batch)
        column = torch.arange(mask.shape[1])
        parts = [mask, *(mask & (column // args.width == start // args.width) for start in starts)]
        cells = [measures(log_w, part) for part in parts]
        texts = ["{:.4f}, {:.2f}, {:.1%}".format(*cell) if cell else "-" for cell in cells]
        print(f"| {step - taken} | {' | '.join(texts)} |")
    return 0


if __name__ == "__main__":
    runs.main(main)
