"""Write tests/fixtures/tiny/: random checkpoints of every architecture, and their logits in float32.

No two axes of a checkpoint have one size. Configs and safetensors are as Hugging Face transformers saves them, logits
from its eager attention in one full pass. Needs an environment with torch, transformers and safetensors, and nothing of
this project.

    python tests/golden/make_tiny_checkpoints.py
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"
VOCAB, WIDTH, FFN, LAYERS, HEADS = 97, 40, 56, 3, 4
TOKENS = 40  # in each of the two golden sequences, if the model can hold them

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
GQA = COMMON | {"intermediate_size": FFN, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CHECKPOINTS = {
    "opt-pre": (OPTForCausalLM, OPTConfig(**COMMON, ffn_dim=FFN, max_position_embeddings=12)),
    "opt-post": (
        OPTForCausalLM,
        OPTConfig(
            **COMMON,
            ffn_dim=FFN,
            max_position_embeddings=48,
            do_layer_norm_before=False,
            enable_bias=False,
            activation_function="gelu",
        ),
    ),
    "opt-projected": (
        OPTForCausalLM,
        OPTConfig(
            **COMMON, ffn_dim=FFN, max_position_embeddings=48, do_layer_norm_before=False, word_embed_proj_dim=24
        ),
    ),
    "llama": (LlamaForCausalLM, LlamaConfig(**GQA, head_dim=12)),
    "llama-tied": (
        LlamaForCausalLM,
        LlamaConfig(**(GQA | {"num_key_value_heads": 1}), tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**GQA, head_dim=12, sliding_window=7)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**GQA)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GQA, head_dim=14, tie_word_embeddings=True)),
}

# The same weights as "llama" under other rotary parameters: only config.json and logits are stored.
ROPE_VARIANTS = {
    "llama-linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "llama-dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    "llama-llama3": LLAMA3,
}


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Weights large enough that attention is far from uniform and every bias and scale matters."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.copy_(1 + 0.3 * noise)
        else:
            parameter.copy_((0.3 if parameter.ndim == 1 else 0.25) * noise)


@torch.no_grad()
def write_logits(model: torch.nn.Module, folder: Path) -> None:
    limit = model.config.max_position_embeddings if model.config.model_type == "opt" else TOKENS
    ids = torch.randint(3, VOCAB, (2, min(TOKENS, limit)), generator=torch.Generator().manual_seed(11))
    logits = torch.cat([model(row[None]).logits for row in ids])
    np.savez_compressed(folder / "logits.npz", ids=ids.numpy().astype(np.int32), logits=logits.numpy())
    print(folder.name, "logits from", float(logits.min()), "to", float(logits.max()))


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    for name, (kind, config) in CHECKPOINTS.items():
        model = kind(config).eval()
        randomise(model)
        model.tie_weights()
        model.save_pretrained(OUT / name)
        (OUT / name / "model.safetensors").chmod(0o644)
        write_logits(model, OUT / name)
    for name, rope in ROPE_VARIANTS.items():
        short = {"max_position_embeddings": 16} if name == "llama-dynamic" else {}
        config = LlamaConfig(**(GQA | short), head_dim=12, rope_parameters=rope)
        model = LlamaForCausalLM(config).eval()
        randomise(model)
        (OUT / name).mkdir()
        config.architectures = ["LlamaForCausalLM"]
        config.to_json_file(OUT / name / "config.json")
        write_logits(model, OUT / name)
    for extra in OUT.glob("*/generation_config.json"):
        extra.unlink()


if __name__ == "__main__":
    main()
