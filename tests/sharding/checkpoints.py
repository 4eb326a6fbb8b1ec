"""Small checkpoints with heads enough for eight shards, written as Hugging Face writes them.

Weights are large enough that attention is far from uniform and every bias and scale matters.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.config import ModelConfig
from models.places import places

COMMON: dict[str, Any] = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    # Two kv heads: four and eight shards repeat them. 97 rows of the vocabulary divide by nothing.
    "llama": COMMON
    | {
        "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 8,
        "max_position_embeddings": 128, "tie_word_embeddings": False, "mlp_bias": True, "attention_bias": True,
        "eos_token_id": 2,
    },
    "llama-tied": COMMON
    | {
        "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "intermediate_size": 96, "head_dim": 8,
        "max_position_embeddings": 128, "tie_word_embeddings": True, "eos_token_id": 2,
    },
    "opt": COMMON
    | {
        "architectures": ["OPTForCausalLM"], "ffn_dim": 96, "max_position_embeddings": 128, "eos_token_id": 2,
        "do_layer_norm_before": True, "activation_function": "relu", "word_embed_proj_dim": 64,
    },
}  # fmt: skip


def write_checkpoint(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder with config.json and model.safetensors, the same bytes whenever it is written; float32."""
    document = CONFIGS[kind] | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    config = ModelConfig.from_hf(document)
    tensors = {name: _random(name, place.shape) for name, place in places(config).items()}
    save_file({f"model.{name}" if name != "lm_head.weight" else name: t for name, t in tensors.items()},
              str(folder / "model.safetensors"))  # fmt: skip
    return folder


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)
    if len(shape) == 2:
        return noise * np.float32(0.25)
    is_scale = name.endswith("weight")
    return (1 + np.float32(0.3) * noise if is_scale else np.float32(0.3) * noise).astype(np.float32)
