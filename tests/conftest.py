"""A model so small that a test takes milliseconds, with random weights: any token may come."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tasks import countdown

torch.set_num_threads(1)  # for models of this size a second thread is only in the way


def random_model(**config):
    torch.manual_seed(0)
    settings = dict(
        vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        bos_token_id=None, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(Qwen2Config(**{**settings, **config}))
    with torch.no_grad():  # larger than the usual 0.02, so that distributions are far from uniform
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


@pytest.fixture
def model():
    return random_model()


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a hardly trained base policy; not to be written to."""
    folder = tmp_path_factory.mktemp("base")
    for part in countdown.warm_up(5, 3):
        part.save_pretrained(folder)
    return str(folder)


def easy_reward_of(text, row):
    """Such a policy solves nothing, and without rewards no weight would ever move."""
    return sum(map(ord, text)) % 7 / 6
