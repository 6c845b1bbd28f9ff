"""Sampling from a policy, and scoring what was sampled.

Two layouts, because sampling and scoring want different edges to line up (k tokens of prefix `s`,
continuation `c`, padding `.`):

    to sample   ....pppppss|     left-padded: prompt and prefix *end* in one column, so that one
                ppppppppp|       `generate` call continues seeded and unseeded rows together; row i
                                 stops at its own cap of L - k_i new tokens
    to score    ....ppppp|ssccc.  responses *start* in one column: every [B, T] tensor below has t = 0
                ppppppppp|cccccc  at the first response token, prefix or not

A prefix is token ids from end to end. It is never decoded and encoded again: that may give other ids,
and then the log-probs recorded for it belong to tokens that nobody sampled.

Shapes: B rows, P longest prompt, T longest response, V vocabulary, L the cap on response tokens.
"""

import hashlib
from dataclasses import dataclass, fields, replace

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)


def stream(*key):
    """A random stream's seed as a function of its key, e.g. (rng_seed, step, "rollout").

    Every part of a step reseeds before it draws, so parts cannot disturb each other: an evaluation in
    between, or a step without seeds, leaves all later draws as they were.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: what torch.manual_seed takes


# ------------------------------------------------------------------------------------ the model


def load_model(path, device):
    """The model at `path` in float32 without dropout, and its tokenizer."""
    config = AutoConfig.from_pretrained(path)
    for name, value in vars(config).items():
        # Dropout would make pi_theta another policy at every forward pass: ratios of noise.
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32)
    return model.to(device), AutoTokenizer.from_pretrained(path)


def stop_ids(model, tokenizer):
    """Every id that ends a response. Chat models have several, and the tokenizer names only one."""
    ids = model.generation_config.eos_token_id
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({*ids, tokenizer.eos_token_id} - {None})


def response_text(tokenizer, ids, stop):
    """What the task's reward gets to see: the response without its stop id, and with any other
    special token spelt out, so that none can hide inside an answer."""
    return tokenizer.decode(ids[:-1] if ids and ids[-1] in stop else ids, skip_special_tokens=False)


# ------------------------------------------------------------------------------------- sampling


class RowStop(StoppingCriteria):
    """Ends every row at a stop id or at its own cap, and keeps the lengths: all masks come from them.

    Looking for the first pad or EOS afterwards would be wrong wherever the two share an id.
    """

    def __init__(self, start, caps, stop):
        self.start, self.caps, self.stop = start, caps, stop
        self.lengths = torch.zeros_like(caps)  # [B], 0 while the row is open

    def __call__(self, input_ids, scores, **kwargs):
        new = input_ids.shape[1] - self.start
        ends = torch.isin(input_ids[:, -1], self.stop) | (self.caps <= new)
        self.lengths[ends & (self.lengths == 0)] = new
        return self.lengths > 0


@torch.no_grad()
def sample(model, contexts, caps, temperature, stop):
    """Continues each context (token ids) by at most its own cap of new tokens.

    Returns a list of B id lists, a sampled stop id included; [] where the cap is 0, since `generate`
    has no such row (and would sample on after a context that ends in a stop id). Temperature 0 is
    greedy. Draws from torch's global generator: call torch.manual_seed(stream(...)) first.
    """
    out = [[] for _ in contexts]
    rows = [i for i, cap in enumerate(caps) if cap > 0]
    if not rows:
        return out
    device = model.device
    ids, mask = _pad([contexts[i] for i in rows], device, left=True)
    criterion = RowStop(
        ids.shape[1],
        torch.tensor([caps[i] for i in rows], device=device),
        torch.tensor(stop, dtype=torch.long, device=device),
    )
    pad = stop[0] if stop else 0  # never read back
    settings = dict(max_new_tokens=max(caps), pad_token_id=pad, eos_token_id=stop or None)
    if temperature > 0:
        # Every knob that reshapes the distribution is pinned, so that what is sampled is what is
        # scored. top_k=None would mean 50.
        settings |= dict(
            do_sample=True, temperature=temperature, top_k=0, top_p=1.0, repetition_penalty=1.0
        )
    else:
        settings |= dict(do_sample=False, repetition_penalty=1.0)
    # Checkpoints ship settings of their own (top_k, min_p, repetition_penalty, ...), and `generate`
    # fills in from them whatever the caller left open: for this call they are not there. They return
    # afterwards, since they are saved with the model.
    own, model.generation_config = model.generation_config, GenerationConfig()
    model.eval()
    try:
        full = model.generate(
            ids,
            attention_mask=mask.long(),
            generation_config=GenerationConfig(**settings),
            stopping_criteria=StoppingCriteriaList([criterion]),
        )
    finally:
        model.generation_config = own
    lengths = criterion.lengths.tolist()
    for i, row, length in zip(rows, full[:, ids.shape[1] :].tolist(), lengths, strict=True):
        out[i] = row[:length]
    return out


def rollout(model, prompts, prefixes, cap, temperature, stop):
    """A Batch of one response per prompt: the given prefix (maybe empty), continued by the model.

    prompts, prefixes: B id lists. A prefix that ends in a stop id, or fills the cap, is a whole row.
    """
    caps = [0 if x and x[-1] in stop else cap - len(x) for x in prefixes]
    contexts = [p + x for p, x in zip(prompts, prefixes, strict=True)]
    continuations = sample(model, contexts, caps, temperature, stop)
    responses = [x + y for x, y in zip(prefixes, continuations, strict=True)]
    return make_batch(prompts, responses, [len(x) for x in prefixes], stop, model.device)


# --------------------------------------------------------------------------- the batch, scoring


@dataclass
class Batch:
    """The rows of one step; a [B, ...] tensor each. Log-probs are float32, at the sampling temperature.

    Masks are made from lengths. The stop id that was sampled is a response token like any other (the
    policy must learn to stop); nothing after it is.
    """

    prompt_ids: torch.Tensor  # [B, P] left-padded
    prompt_lengths: torch.Tensor  # [B]
    response_ids: torch.Tensor  # [B, T] right-padded: prefix, then continuation
    lengths: torch.Tensor  # [B] response tokens, at least 1
    prefix_lengths: torch.Tensor  # [B] k: the first k response tokens are the snapshot's, 0 if unseeded
    ended: torch.Tensor  # [B] bool: stopped by itself, not by the cap
    old_logp: torch.Tensor | None = None  # [B, T] the policy as it sampled, on the prefix too
    behaviour_logp: torch.Tensor | None = None  # [B, T] whoever wrote the token

    @property
    def mask(self):  # [B, T] bool
        return _below(self.lengths, self.response_ids.shape[1])

    @property
    def from_snapshot(self):  # [B, T] bool
        return _below(self.prefix_lengths, self.response_ids.shape[1])

    def __getitem__(self, rows):
        """The given rows (index tensor) as a Batch, trimmed to its longest prompt and response."""
        part = replace(
            self,
            **{
                f.name: getattr(self, f.name)[rows]
                for f in fields(self)
                if getattr(self, f.name) is not None
            },
        )
        part.prompt_ids = part.prompt_ids[:, -int(part.prompt_lengths.max()) :]
        T = int(part.lengths.max())
        for name in ("response_ids", "old_logp", "behaviour_logp"):
            if getattr(part, name) is not None:
                setattr(part, name, getattr(part, name)[:, :T])
        return part


def make_batch(prompts, responses, prefix_lengths, stop, device):
    """A Batch from id lists, all log-probs still missing."""
    prompt_ids, prompt_mask = _pad(prompts, device, left=True)
    response_ids, mask = _pad(responses, device, left=False)
    return Batch(
        prompt_ids=prompt_ids,
        prompt_lengths=prompt_mask.sum(1),
        response_ids=response_ids,
        lengths=mask.sum(1),
        prefix_lengths=torch.tensor(prefix_lengths, device=device),
        ended=torch.tensor([row[-1] in stop for row in responses], device=device),
    )


def token_logps(model, batch, temperature):
    """log pi(y_t | prompt, y_<t) and the entropy of pi(. | prompt, y_<t), both [B, T] float32.

    The one function for policy, old policy, snapshot and reference: ratios between them are ratios of
    policies only if all are computed alike. Entropy is detached; entries past a row's length are
    meaningless.
    """
    ids = torch.cat([batch.prompt_ids, batch.response_ids], dim=1)  # [B, P + T]
    P, T = batch.prompt_ids.shape[1], batch.response_ids.shape[1]
    prompt_mask = _below(batch.prompt_lengths, P).flip(1)
    attention = torch.cat([prompt_mask, batch.mask], dim=1).long()
    out = model(
        input_ids=ids,
        attention_mask=attention,
        # from the mask, or a left-padded row would be scored as if it began later in the text
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=T + 1,  # prompt logits would be the largest tensor of all, and for nothing
    )
    # Position t predicts token t + 1: drop the last. float32 before the division and the softmax.
    logps = (out.logits[:, :-1].float() / temperature).log_softmax(-1)  # [B, T, V]
    logp = logps.gather(-1, batch.response_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = torch.special.entr(logps.exp()).sum(-1)  # entr(0) = 0, where p log p would be nan
    return logp, entropy


@torch.no_grad()
def score(model, batch, temperature, micro_batch):
    """token_logps over the whole batch, `micro_batch` rows at a time; 0 past a row's length."""
    model.eval()
    logp = torch.zeros(batch.response_ids.shape, device=model.device)
    entropy = torch.zeros_like(logp)
    for rows in torch.arange(len(batch.lengths), device=model.device).split(micro_batch):
        part = batch[rows]
        T, mask = part.response_ids.shape[1], part.mask
        part_logp, part_entropy = token_logps(model, part, temperature)
        logp[rows, :T] = part_logp.masked_fill(~mask, 0.0)
        entropy[rows, :T] = part_entropy.masked_fill(~mask, 0.0)
    return logp, entropy


def _below(lengths, width):
    """[B] lengths -> [B, width] bool, True at the first `length` columns."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def _pad(rows, device, left):
    """Id lists -> ids [B, width] and the mask [B, width] of the real ones. Padding holds id 0."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = _below(torch.tensor([len(row) for row in rows]), width)
    mask = mask.flip(1) if left else mask
    ids[mask] = torch.tensor([token for row in rows for token in row])
    return ids.to(device), mask.to(device)
