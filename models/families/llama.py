# pyright: strict
"""LLaMA and the models that differ from it by flags: Mistral, Qwen2, Qwen3, SmolLM2.

Both of Hugging Face's spellings of rotary parameters are read (rope_theta and rope_scaling; rope_parameters).
"""

from typing import Any, cast

from models.config import ROPE_SCALINGS, ModelConfig, RopeScaling, require
from models.family import Architecture, Family, Fields, GGUFNames
from models.hf_config import activation, head_dim
from models.places import Tensors, attention, embedding_and_head, gated_mlp, norm


def read_llama_like(
    config: Fields, *, ffn: int = 11008, kv_heads: int | None = None, max_positions: int = 2048
) -> Fields:
    """What the llama-like architectures share, with LLaMA's own defaults."""
    width, heads = config.get("hidden_size", 4096), config.get("num_attention_heads", 32)
    each, kv_heads = config.get("head_dim"), config.get("num_key_value_heads", kv_heads)
    max_positions = config.get("max_position_embeddings", max_positions)
    return {
        "hidden_size": width,
        "num_layers": config.get("num_hidden_layers", 32),
        "num_heads": heads,
        "num_kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": head_dim(width, heads) if each is None else each,
        "intermediate_size": config.get("intermediate_size", ffn),
        "max_position_embeddings": max_positions,
        "activation": activation(config, "hidden_act", "silu"),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        **_rope(config, max_positions),
    }


def _llama(config: Fields) -> Fields:
    bias = config.get("attention_bias", False)
    _all_layers_slide(config)
    return {**read_llama_like(config), "qkv_bias": bias, "o_bias": bias, "mlp_bias": config.get("mlp_bias", False)}


def _mistral(config: Fields) -> Fields:
    slides = _all_layers_slide(config)
    window = config.get("sliding_window", 4096)
    fields = read_llama_like(config, ffn=14336, kv_heads=8, max_positions=4096 * 32)
    return {**fields, "sliding_window": None if slides is False else window}


def _qwen2(config: Fields) -> Fields:
    fields = read_llama_like(config, ffn=22016, kv_heads=32, max_positions=32768)
    return {**fields, "qkv_bias": True, "sliding_window": _qwen_window(config, fields["num_layers"])}


def _qwen3(config: Fields) -> Fields:
    bias = config.get("attention_bias", False)
    return {**_qwen2({"head_dim": 128, **config}), "qkv_bias": bias, "o_bias": bias, "qk_norm": True}


def _qwen_window(config: Fields, num_layers: object) -> int | None:
    """The window of every layer, or None. Layers below max_window_layers see everything; a mixture is refused."""
    if not config.get("use_sliding_window", False):
        return None
    slides = _all_layers_slide(config)
    if slides is None:
        full = config.get("max_window_layers", 28)
        require(isinstance(full, int), "max_window_layers", full, "an integer")
        mixed = isinstance(num_layers, int) and 0 < full < num_layers
        require(not mixed, "max_window_layers", full, "0 or at least num_hidden_layers (one window for all layers)")
        slides = full == 0
    return config.get("sliding_window", 4096) if slides else None


def _all_layers_slide(config: Fields) -> bool | None:
    """Whether layer_types says that all layers use the window; None if it says nothing. A mixture is refused."""
    given: object = config.get("layer_types")
    if given is None:
        return None
    kinds = cast(list[object], given) if isinstance(given, list) else []
    known = kinds in (["full_attention"] * len(kinds), ["sliding_attention"] * len(kinds))
    require(bool(kinds) and known, "layer_types", config["layer_types"], "all full_attention or all sliding_attention")
    return kinds[0] == "sliding_attention"


def _rope(config: Fields, max_positions: int) -> Fields:
    """rope_theta and rope_scaling out of either spelling; transformers lets rope_scaling win over rope_parameters."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given: object = config.get(key) or {}
    require(isinstance(given, dict), key, given, "an object or null")
    rope = cast(Fields, given)
    nested = [name for name, value in rope.items() if isinstance(value, dict)]
    require(not nested, key, rope, "one set of parameters for all layers")
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    require(partial in (None, 1, 1.0), "partial_rotary_factor", partial, "1.0")
    theta = rope.get("rope_theta", config.get("rope_theta"))
    kind: object = rope.get("rope_type", rope.get("type", "default"))
    return {
        "rope_theta": 10_000.0 if theta is None else theta,
        "rope_scaling": None if kind == "default" else _rope_scaling(kind, rope, config, max_positions),
    }


def _rope_scaling(kind: object, rope: Fields, config: Fields, max_positions: int) -> RopeScaling:
    require(kind in ROPE_SCALINGS, "rope_type", kind, f"default or one of {', '.join(ROPE_SCALINGS)}")
    needed = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
    for name in needed:
        require(name in rope, f"rope {name}", None, f"a number: rope_type={kind!r} needs it")
    given: Fields = {name: rope[name] for name in needed}
    if kind == "llama3":
        original = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings"))
        given["original_max_position_embeddings"] = max_positions if original is None else original
    return RopeScaling(kind=cast(Any, kind), **given)


def _check(config: ModelConfig) -> None:
    require(config.head_dim % 2 == 0, "head_dim", config.head_dim, "an even number (rotary halves)")
    if config.rope_scaling is not None and config.rope_scaling.kind == "dynamic":
        require(config.head_dim > 2, "head_dim", config.head_dim, "more than 2 with dynamic rope scaling")


def _tensors(config: ModelConfig) -> Tensors:
    width, layer = config.hidden_size, "layers.{}"
    yield from embedding_and_head("embed_tokens", config)
    yield from norm("norm", "final_norm", width)
    yield from attention(f"{layer}.self_attn", "o_proj", config)
    yield from gated_mlp(f"{layer}.mlp", config)
    yield from norm(f"{layer}.input_layernorm", "layers/attention_norm", width)
    yield from norm(f"{layer}.post_attention_layernorm", "layers/mlp_norm", width)


def _preset(layers: int, width: int, ffn: int, heads: int, kv_heads: int, **options: Any) -> Fields:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": ffn}
    counts = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {"model_type": "llama", **sizes, **counts, **options}


_LLAMA_3: Fields = {
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_LLAMA_31: Fields = {
    **_LLAMA_3,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_SMOLLM2: Fields = {
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}

LLAMA = Family(
    name="llama",
    module="models.llama:Llama",
    architectures={
        "LlamaForCausalLM": Architecture(model_type="llama", read=_llama, vocab_size=32000, token_ids=(1, 2)),
        "MistralForCausalLM": Architecture(model_type="mistral", read=_mistral, vocab_size=32000, token_ids=(1, 2)),
        "Qwen2ForCausalLM": Architecture(model_type="qwen2", read=_qwen2, vocab_size=151936),
        "Qwen3ForCausalLM": Architecture(model_type="qwen3", read=_qwen3, vocab_size=151936),
    },
    tensors=_tensors,
    check=_check,
    gguf=GGUFNames(
        architectures={
            "llama": "LlamaForCausalLM",
            "mistral": "MistralForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
        },
        windowed={"llama": "MistralForCausalLM"},
        interleaved=("llama", "mistral"),
        tensors={
            "token_embd": "embed_tokens",
            "output_norm": "norm",
            "output": "lm_head",
            "blk.attn_q": "self_attn.q_proj",
            "blk.attn_k": "self_attn.k_proj",
            "blk.attn_v": "self_attn.v_proj",
            "blk.attn_output": "self_attn.o_proj",
            "blk.attn_q_norm": "self_attn.q_norm",
            "blk.attn_k_norm": "self_attn.k_norm",
            "blk.ffn_gate": "mlp.gate_proj",
            "blk.ffn_up": "mlp.up_proj",
            "blk.ffn_down": "mlp.down_proj",
            "blk.attn_norm": "input_layernorm",
            "blk.ffn_norm": "post_attention_layernorm",
        },
    ),
    presets={
        "llama-7b": _preset(32, 4096, 11008, 32, 32),
        "llama-13b": _preset(40, 5120, 13824, 40, 40),
        "llama-3-8b": _preset(32, 4096, 14336, 32, 8, **_LLAMA_3),
        "llama-3.1-8b": _preset(32, 4096, 14336, 32, 8, **_LLAMA_31),
        "llama-3-70b": _preset(80, 8192, 28672, 64, 8, **_LLAMA_3),
        "smollm2-135m": _preset(30, 576, 1536, 9, 3, **_SMOLLM2),
        "smollm2-360m": _preset(32, 960, 2560, 15, 5, **_SMOLLM2),
    },
)
