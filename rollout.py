"""Sampling from a policy, and scoring what was sampled.

One layout, to sample as to score (`p` prompt, `s` prefix, `c` continuation, `.` padding): prompts
are padded on the left, so that all responses *start* in one column. In every [B, T] tensor below,
t = 0 is the first response token, prefix or not.

    .....ppppp|sssccc.
    pppppppppp|ccccccc

To sample, one `generate` call continues seeded and unseeded rows together: in the first k columns
of a seeded row it is only allowed the token of the prefix. (A prefix in the prompt would be worked
out in one pass, but so would be as many columns of padding in every row without one.)

A prefix is token ids from end to end. It is never decoded and encoded again: that may give other
ids, and its recorded log-probs would then belong to tokens that nobody sampled.

Shapes: B rows, P longest prompt, T longest response, V vocabulary, L the cap on response tokens.
"""

import contextlib
import hashlib
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria


def stream(*key):
    """A seed for torch.manual_seed as a function of its key, e.g. (rng_seed, step, "rollout").

    Every part of a step reseeds before it draws, so no part disturbs another: an evaluation in
    between, or a step without seeds, leaves all later draws as they were.
    """
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


# ------------------------------------------------------------------------------------- the model


def load_model(path, device):
    """The model at `path` (a folder or Hub id) in float32 without dropout, and its tokenizer.

    Only safetensors are read: a pickle may run what it likes. ValueError where weights are missing,
    which the library would fill with random ones.
    """
    config = AutoConfig.from_pretrained(path)
    for name, value in vars(config).items():
        # Dropout would make pi_theta another policy at every forward pass, and its ratios noise.
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
    model, info = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=torch.float32, output_loading_info=True, use_safetensors=True)
    if info["missing_keys"]:
        raise ValueError(f"it lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}, ...")
    return model.to(device), AutoTokenizer.from_pretrained(path)


def stop_ids(model, tokenizer):
    """Every id that ends a response. Chat models have several; the tokenizer names only one, and a
    base model with a chat template may not even know how that ends a turn."""
    ids = model.generation_config.eos_token_id
    ids = {*(ids if isinstance(ids, list) else [ids]), tokenizer.eos_token_id} - {None}
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "~"}]
        with contextlib.suppress(Exception):  # a template that fails is told of where it is used
            rest = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("~")[2]
            after = tokenizer(rest, add_special_tokens=False)["input_ids"]
            ids |= {*after[:1]} & {*tokenizer.all_special_ids}
    return sorted(ids)


def response_text(tokenizer, ids, stop):
    """What a reward gets to see: the response without its stop id, and with any other special token
    spelt out, so that none can hide inside an answer."""
    return tokenizer.decode(ids[:-1] if ids[-1] in stop else ids, skip_special_tokens=False)


# -------------------------------------------------------------------------------------- sampling


class RowStop(StoppingCriteria):
    """Ends every row at a stop id, and keeps the lengths.

    All masks come from these lengths: looking for the first pad or EOS in the ids afterwards would
    be wrong wherever the two share an id.
    """

    def __init__(self, start, rows, stop):
        self.start, self.stop = start, stop
        self.lengths = torch.zeros(rows, dtype=torch.long, device=stop.device)  # 0: still open

    def __call__(self, input_ids, scores, **kwargs):
        ends = torch.isin(input_ids[:, -1], self.stop)
        self.lengths[ends & (self.lengths == 0)] = input_ids.shape[1] - self.start
        return self.lengths > 0


class Prefixes(LogitsProcessor):
    """Makes every row begin with its prefix (token ids, maybe none)."""

    def __init__(self, start, prefixes, device):
        self.start = start
        self.ids, self.mask = _pad(prefixes, device, left=False)

    def __call__(self, input_ids, scores):
        t = input_ids.shape[1] - self.start
        if t < self.ids.shape[1]:
            given = self.mask[:, t].nonzero().squeeze(1)
            scores[given] = -torch.inf
            scores[given, self.ids[given, t]] = 0.0
        return scores


@torch.no_grad()
def sample(model, prompts, cap, temperature, stop, prefixes=None):
    """Responses to B prompts (token ids) as B id lists of at most `cap` tokens, a stop id included.

    prefixes: what they begin with, B id lists; one that ends in a stop id or fills the cap is a
    whole response, and not given to `generate`. Temperature 0 is greedy. Draws from torch's global
    generator: reseed first, see `stream`.
    """
    responses = [list(x) for x in prefixes or [[]] * len(prompts)]
    rows = [i for i, x in enumerate(responses) if len(x) < cap and not {*x[-1:]} & {*stop}]
    if not rows:
        return responses
    ids, mask = _pad([prompts[i] for i in rows], model.device, left=True)
    ends = RowStop(ids.shape[1], len(rows), torch.tensor(stop, device=model.device).long())
    # What is sampled is what is scored: every knob that reshapes the distribution is pinned.
    # (top_k=None would mean 50.)
    pins = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    settings = GenerationConfig(
        do_sample=temperature > 0, **pins, repetition_penalty=1.0, max_new_tokens=cap,
        eos_token_id=stop or None, pad_token_id=stop[0] if stop else 0)  # padding is never read
    # A checkpoint brings settings of its own (top_k, min_p, no_repeat_ngram_size, ...), and
    # `generate` fills in from them whatever the caller left open. For this call they are away; then
    # they come back, since they are saved with the model.
    own, model.generation_config = model.generation_config, GenerationConfig()
    model.eval()
    try:
        full = model.generate(
            ids, attention_mask=mask.long(), generation_config=settings, stopping_criteria=[ends],
            logits_processor=[Prefixes(ids.shape[1], [responses[i] for i in rows], model.device)])
    finally:
        model.generation_config = own
    lengths = ends.lengths.tolist()
    for i, row, length in zip(rows, full[:, ids.shape[1] :].tolist(), lengths, strict=True):
        responses[i] = row[: length or cap]
    return responses


def rollout(model, prompts, prefixes, cap, temperature, stop):
    """A Batch of one response per prompt: the given prefix, maybe empty, continued by the model."""
    responses = sample(model, prompts, cap, temperature, stop, prefixes)
    return make_batch(prompts, responses, stop, model.device)


# ---------------------------------------------------------------------------- the batch, scoring


@dataclass
class Batch:
    """The rows of one step, one [B, ...] tensor each; log-probs are at the sampling temperature.

    Masks are made from lengths. The stop id that was sampled is a response token like any other
    (stopping is to be learnt as well); nothing after it is.
    """

    prompt_ids: torch.Tensor  # [B, P] left-padded
    prompt_lengths: torch.Tensor  # [B]
    response_ids: torch.Tensor  # [B, T] right-padded: prefix, then continuation
    lengths: torch.Tensor  # [B] response tokens, at least 1
    ended: torch.Tensor  # [B] bool: by a stop id, not by the cap
    from_snapshot: torch.Tensor | None = None  # [B, T] bool: the snapshot wrote the token
    snapshot_logp: torch.Tensor | None = None  # [B, T] of the snapshot, 0 where it did not write
    old_logp: torch.Tensor | None = None  # [B, T] of the policy as it sampled, on the prefix too
    ref_logp: torch.Tensor | None = None  # [B, T] of the reference, with a KL term
    advantages: torch.Tensor | None = None  # [B]
    weights: torch.Tensor | None = None  # [B] of a row's tokens in the loss of its minibatch

    @property
    def mask(self):  # [B, T] bool
        return _below(self.lengths, self.response_ids.shape[1])

    def responses(self):
        """The B responses as id lists."""
        return [row[:n] for row, n in zip(self.response_ids.tolist(), self.lengths.tolist())]

    def __getitem__(self, rows):
        """The given rows (an index tensor), trimmed to their longest prompt and response."""
        part = {name: x[rows] for name, x in vars(self).items() if x is not None}
        P, T = part["prompt_lengths"].max(), part["lengths"].max()
        for name, x in part.items():
            if x.dim() == 2:
                part[name] = x[:, -P:] if name == "prompt_ids" else x[:, :T]
        return Batch(**part)

    def micro_batches(self, rows, size):
        """Some rows (an index tensor) as index tensors of `size`: rows of like length together, so
        that little of what is computed is padding."""
        lengths = self.prompt_lengths[rows] + self.lengths[rows]
        return rows[lengths.argsort(stable=True)].split(size) if len(rows) else ()


def make_batch(prompts, responses, stop, device):
    """A Batch from id lists; who wrote which token, and the log-probs, are still missing."""
    prompt_ids, prompt_mask = _pad(prompts, device, left=True)
    response_ids, mask = _pad(responses, device, left=False)
    ended = torch.tensor([row[-1] in stop for row in responses], device=device)
    return Batch(prompt_ids, prompt_mask.sum(1), response_ids, mask.sum(1), ended)


def token_logps(model, batch, temperature):
    """log pi(y_t | prompt, y_<t) and the entropy of pi(. | prompt, y_<t), both [B, T] float32.

    The one function for policy, old policy, snapshot and reference: a ratio between two of them is
    a ratio of policies only if both are computed alike. The entropy is detached. Entries past a
    row's length mean nothing.
    """
    prompt_mask = _below(batch.prompt_lengths, batch.prompt_ids.shape[1]).flip(1)
    # Position t predicts token t + 1: nothing is asked of the last one.
    ids = torch.cat([batch.prompt_ids, batch.response_ids], dim=1)[:, :-1]
    attention = torch.cat([prompt_mask, batch.mask], dim=1)[:, :-1].long()  # [B, P + T - 1]
    # One expression, so that no copy of [B, T, V] outlives its use: with a large vocabulary, they
    # are what fills the memory.
    logps = (model(
        input_ids=ids,
        attention_mask=attention,
        # from the mask, or a left-padded row would be scored as if it began later in the text
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=batch.response_ids.shape[1],  # the prompt's would be for nothing
    ).logits.float() / temperature).log_softmax(-1)  # float32 before anything else
    logp = logps.gather(-1, batch.response_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():  # a row at a time, for the same reason; entr(0) = 0, p log p would be nan
        entropy = torch.stack([torch.special.entr(row.exp()).sum(-1) for row in logps])
    return logp, entropy


@torch.no_grad()
def score(model, batch, temperature, micro_batch, rows=None):
    """token_logps of some rows (an index tensor; None: all), `micro_batch` at a time: [B, T] each,
    0 past a row's length and in the rows that were not asked for."""
    model.eval()
    logp = torch.zeros(batch.response_ids.shape, device=model.device)
    entropy = torch.zeros_like(logp)
    rows = torch.arange(len(logp), device=model.device) if rows is None else rows
    for rows in batch.micro_batches(rows, micro_batch):
        part = batch[rows]
        T = part.response_ids.shape[1]
        for whole, values in zip((logp, entropy), token_logps(model, part, temperature)):
            whole[rows, :T] = values.masked_fill(~part.mask, 0.0)
    return logp, entropy


def _below(lengths, width):
    """[B] lengths -> [B, width] bool, True in the first `length` columns."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def _pad(rows, device, left):
    """Id lists -> ids [B, width], padded with id 0, and the mask [B, width] of the real ones."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = _below(lengths, int(lengths.max()))
    mask = mask.flip(1) if left else mask
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids.to(device), mask.to(device)
