# pyright: strict
"""How Hugging Face spells a model: config.json to the fields of ModelConfig.

Lives here: key names, transformers' defaults, and the options that are refused. Standard library only.
Promises: both spellings of rotary parameters are read (rope_theta and rope_scaling; rope_parameters).
Must not know: arrays, files, GGUF.
"""

from collections.abc import Callable
from typing import Any, cast

from models.config import ARCHITECTURES, ROPE_SCALINGS, RopeScaling, require

Fields = dict[str, Any]

_MODEL_TYPES = {
    "opt": "OPTForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_DTYPES = ("float32", "float16", "bfloat16")
_REFUSED = ("quantization_config", "compression_config", "dual_chunk_attention_config")


def fields_from_hf(config: Fields, generation_config: Fields | None) -> Fields:
    """The keyword arguments of ModelConfig. Raises ValueError as ModelConfig.from_hf says."""
    architecture = _architecture(config)
    for key in _REFUSED:
        require(config.get(key) is None, key, config.get(key), "a checkpoint without it")
    dtype = config.get("dtype", config.get("torch_dtype"))
    return {
        "architecture": architecture,
        "vocab_size": config.get("vocab_size", _VOCAB_SIZES[architecture]),
        "dtype": dtype if dtype in _DTYPES else None,
        **_READERS[architecture](config),
        **_token_ids(config, generation_config or {}, architecture),
    }


def _architecture(config: Fields) -> str:
    names: object = config.get("architectures")
    if names:
        require(isinstance(names, list), "architectures", names, "a list with one name")
        known = [name for name in cast(list[str], names) if name in ARCHITECTURES]
        require(len(known) == 1, "architectures", names, f"one of {', '.join(ARCHITECTURES)}")
        return known[0]
    model_type: object = config.get("model_type")
    require(model_type in _MODEL_TYPES, "model_type", model_type, f"one of {', '.join(_MODEL_TYPES)}")
    return _MODEL_TYPES[cast(str, model_type)]


def _token_ids(config: Fields, generation_config: Fields, architecture: str) -> Fields:
    """The ids that begin and end a text; generation_config.json wins where it names them."""
    merged: Fields = {**dict(zip(("bos_token_id", "eos_token_id"), _TOKEN_IDS[architecture], strict=True)), **config}
    merged |= {key: value for key, value in generation_config.items() if value is not None}
    eos: object = merged["eos_token_id"]
    listed = cast(list[Any], eos) if isinstance(eos, list) else [] if eos is None else [eos]
    return {"bos_token_id": merged["bos_token_id"], "eos_token_ids": tuple(listed)}


def _activation(config: Fields, key: str, default: str) -> str:
    value: object = config.get(key, default)
    require(value in _ACTIVATIONS, key, value, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[cast(str, value)]


def _head_dim(hidden_size: object, num_heads: object) -> int:
    for name, value in (("hidden_size", hidden_size), ("num_attention_heads", num_heads)):
        require(isinstance(value, int) and value > 0, name, value, "a positive integer")
    width, heads = cast(int, hidden_size), cast(int, num_heads)
    require(width % heads == 0, "num_attention_heads", heads, f"a divisor of hidden_size={width}")
    return width // heads


def _opt(config: Fields) -> Fields:
    affine = config.get("layer_norm_elementwise_affine", True)
    require(affine is True, "layer_norm_elementwise_affine", affine, "true")
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    bias, before = config.get("enable_bias", True), config.get("do_layer_norm_before", True)
    return {
        "hidden_size": width,
        "num_layers": config.get("num_hidden_layers", 12),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _head_dim(width, heads),
        "intermediate_size": config.get("ffn_dim", 3072),
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "activation": _activation(config, "activation_function", "relu"),
        "norm_eps": 1e-5,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
        "do_layer_norm_before": before,
        "final_layer_norm": before is True and not config.get("_remove_final_layer_norm", False),
        "word_embed_proj_dim": config.get("word_embed_proj_dim"),
    }


def _llama(config: Fields, *, ffn: int = 11008, kv_heads: int | None = None, max_positions: int = 2048) -> Fields:
    """What the llama-like architectures share, with LLaMA's own defaults."""
    width, heads = config.get("hidden_size", 4096), config.get("num_attention_heads", 32)
    head_dim, kv_heads = config.get("head_dim"), config.get("num_key_value_heads", kv_heads)
    max_positions = config.get("max_position_embeddings", max_positions)
    return {
        "hidden_size": width,
        "num_layers": config.get("num_hidden_layers", 32),
        "num_heads": heads,
        "num_kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _head_dim(width, heads) if head_dim is None else head_dim,
        "intermediate_size": config.get("intermediate_size", ffn),
        "max_position_embeddings": max_positions,
        "activation": _activation(config, "hidden_act", "silu"),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        **_rope(config, max_positions),
    }


def _plain_llama(config: Fields) -> Fields:
    bias = config.get("attention_bias", False)
    _all_layers_slide(config)
    return {**_llama(config), "qkv_bias": bias, "o_bias": bias, "mlp_bias": config.get("mlp_bias", False)}


def _mistral(config: Fields) -> Fields:
    slides = _all_layers_slide(config)
    window = config.get("sliding_window", 4096)
    fields = _llama(config, ffn=14336, kv_heads=8, max_positions=4096 * 32)
    return {**fields, "sliding_window": None if slides is False else window}


def _qwen2(config: Fields) -> Fields:
    fields = _llama(config, ffn=22016, kv_heads=32, max_positions=32768)
    return {**fields, "qkv_bias": True, "sliding_window": _qwen_window(config, fields["num_layers"])}


def _qwen3(config: Fields) -> Fields:
    fields = _llama({"head_dim": 128, **config}, ffn=22016, kv_heads=32, max_positions=32768)
    bias = config.get("attention_bias", False)
    window = _qwen_window(config, fields["num_layers"])
    return {**fields, "qkv_bias": bias, "o_bias": bias, "qk_norm": True, "sliding_window": window}


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


_READERS: dict[str, Callable[[Fields], Fields]] = {
    "OPTForCausalLM": _opt,
    "LlamaForCausalLM": _plain_llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}
_VOCAB_SIZES = {
    "OPTForCausalLM": 50272,
    "LlamaForCausalLM": 32000,
    "MistralForCausalLM": 32000,
    "Qwen2ForCausalLM": 151936,
    "Qwen3ForCausalLM": 151936,
}
_TOKEN_IDS: dict[str, tuple[int | None, int | None]] = {
    "OPTForCausalLM": (2, 2),
    "LlamaForCausalLM": (1, 2),
    "MistralForCausalLM": (1, 2),
    "Qwen2ForCausalLM": (None, None),
    "Qwen3ForCausalLM": (None, None),
}
