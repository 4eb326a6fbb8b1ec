# pyright: strict
"""How Hugging Face spells a model: config.json to the fields of ModelConfig, as far as all architectures agree.

What an architecture has of its own is read by its family's record.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from models.config import require

if TYPE_CHECKING:
    from models.family import Architecture

Fields = dict[str, Any]

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


def fields_from_hf(
    config: Fields, generation_config: Fields | None, architectures: "Mapping[str, Architecture]"
) -> Fields:
    """The keyword arguments of ModelConfig. Raises ValueError as ModelConfig.from_hf says."""
    name = _architecture(config, architectures)
    architecture = architectures[name]
    for key in _REFUSED:
        require(config.get(key) is None, key, config.get(key), "a checkpoint without it")
    dtype = config.get("dtype", config.get("torch_dtype"))
    return {
        "architecture": name,
        "vocab_size": config.get("vocab_size", architecture.vocab_size),
        "dtype": dtype if dtype in _DTYPES else None,
        **architecture.read(config),
        **_token_ids(config, generation_config or {}, architecture.token_ids),
    }


def _architecture(config: Fields, architectures: "Mapping[str, Architecture]") -> str:
    names: object = config.get("architectures")
    if names:
        require(isinstance(names, list), "architectures", names, "a list with one name")
        known = [name for name in cast(list[str], names) if name in architectures]
        require(len(known) == 1, "architectures", names, f"one of {', '.join(architectures)}")
        return known[0]
    model_types = {architecture.model_type: name for name, architecture in architectures.items()}
    model_type: object = config.get("model_type")
    require(model_type in model_types, "model_type", model_type, f"one of {', '.join(model_types)}")
    return model_types[cast(str, model_type)]


def _token_ids(config: Fields, generation_config: Fields, defaults: tuple[int | None, int | None]) -> Fields:
    """The ids that begin and end a text; generation_config.json wins where it names them."""
    merged: Fields = {**dict(zip(("bos_token_id", "eos_token_id"), defaults, strict=True)), **config}
    merged |= {key: value for key, value in generation_config.items() if value is not None}
    eos: object = merged["eos_token_id"]
    listed = cast(list[Any], eos) if isinstance(eos, list) else [] if eos is None else [eos]
    return {"bos_token_id": merged["bos_token_id"], "eos_token_ids": tuple(listed)}


def activation(config: Fields, key: str, default: str) -> str:
    """Our name of the activation that `config` names under `key`."""
    value: object = config.get(key, default)
    require(value in _ACTIVATIONS, key, value, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[cast(str, value)]


def head_dim(hidden_size: object, num_heads: object) -> int:
    """The width of a head where config.json does not give it."""
    for name, value in (("hidden_size", hidden_size), ("num_attention_heads", num_heads)):
        require(isinstance(value, int) and value > 0, name, value, "a positive integer")
    width, heads = cast(int, hidden_size), cast(int, num_heads)
    require(width % heads == 0, "num_attention_heads", heads, f"a divisor of hidden_size={width}")
    return width // heads
