# pyright: strict
"""OPT: learned positions, layer norms before or after, biases everywhere; OPT-350M projects its embeddings."""

from typing import Any

from models.config import ModelConfig, require
from models.family import Architecture, Family, Fields
from models.hf_config import activation, head_dim
from models.places import Place, Tensors, attention, embedding_and_head, linear, norm

POSITION_OFFSET = 2  # row 2 of the learned table is position 0


def _read(config: Fields) -> Fields:
    affine = config.get("layer_norm_elementwise_affine", True)
    require(affine is True, "layer_norm_elementwise_affine", affine, "true")
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    bias, before = config.get("enable_bias", True), config.get("do_layer_norm_before", True)
    return {
        "hidden_size": width,
        "num_layers": config.get("num_hidden_layers", 12),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim(width, heads),
        "intermediate_size": config.get("ffn_dim", 3072),
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "activation": activation(config, "activation_function", "relu"),
        "norm_eps": 1e-5,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
        "do_layer_norm_before": before,
        "final_layer_norm": before is True and not config.get("_remove_final_layer_norm", False),
        "word_embed_proj_dim": config.get("word_embed_proj_dim"),
    }


def _check(config: ModelConfig) -> None:
    exact = config.num_heads * config.head_dim == config.hidden_size
    require(exact, "num_heads", config.num_heads, f"a divisor of hidden_size={config.hidden_size}")
    require(config.num_kv_heads == config.num_heads, "num_kv_heads", config.num_kv_heads, "num_heads, in OPT")


def _tensors(config: ModelConfig) -> Tensors:
    width, embedding, ffn = config.hidden_size, config.embedding_dim, config.intermediate_size
    yield from embedding_and_head("decoder.embed_tokens", config)
    positions = (config.max_position_embeddings + POSITION_OFFSET, width)
    yield "decoder.embed_positions.weight", Place(("positions", "embedding"), (), positions)
    if config.final_layer_norm:
        yield from norm("decoder.final_layer_norm", "final_norm", width, bias=True)
    if embedding != width:
        yield from linear("decoder.project_in", "project_in", (width, embedding))
        yield from linear("decoder.project_out", "project_out", (embedding, width))
    layer = "decoder.layers.{}"
    yield from attention(f"{layer}.self_attn", "out_proj", config)
    yield from linear(f"{layer}.fc1", "layers/fc1", (ffn, width), bias=config.mlp_bias, split="out")
    yield from linear(f"{layer}.fc2", "layers/fc2", (width, ffn), bias=config.mlp_bias, split="in")
    yield from norm(f"{layer}.self_attn_layer_norm", "layers/attention_norm", width, bias=True)
    yield from norm(f"{layer}.final_layer_norm", "layers/mlp_norm", width, bias=True)


def _preset(layers: int, width: int, heads: int, **options: Any) -> Fields:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "ffn_dim": 4 * width}
    return {"model_type": "opt", **sizes, **options}


OPT = Family(
    name="opt",
    module="models.opt:OPT",
    architectures={
        "OPTForCausalLM": Architecture(model_type="opt", read=_read, vocab_size=50272, token_ids=(2, 2)),
    },
    tensors=_tensors,
    check=_check,
    learned_positions=True,
    presets={
        "opt-125m": _preset(12, 768, 12),
        "opt-350m": _preset(24, 1024, 16, do_layer_norm_before=False, word_embed_proj_dim=512),
        "opt-1.3b": _preset(24, 2048, 32),
        "opt-2.7b": _preset(32, 2560, 32),
        "opt-6.7b": _preset(32, 4096, 32),
        "opt-13b": _preset(40, 5120, 40),
        "opt-30b": _preset(48, 7168, 56),
        "opt-66b": _preset(64, 9216, 72),
        "opt-175b": _preset(96, 12288, 96),
    },
)
