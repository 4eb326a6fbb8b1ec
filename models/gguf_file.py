"""GGUF files: a config and Hugging Face tensors, dequantised, out of llama.cpp's names.

An architecture, quantisation or rotary option that is not understood is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape

from models.config import ModelConfig
from models.families import FAMILIES
from models.family import GGUFNames
from models.gguf_header import GGUFHeader, TensorEntry, read_gguf_header

_ROPE_FACTORS = "rope_freqs.weight"


def _names(arch: Any) -> GGUFNames | None:
    """How the family that has llama.cpp's architecture `arch` is spelled; None if none has it."""
    return next((f.gguf for f in FAMILIES.values() if f.gguf and arch in f.gguf.architectures), None)


def _hf_name(name: str, tensors: Mapping[str, str]) -> str:
    """Hugging Face's name of a tensor; the name itself, which then is reported as unexpected, if it has none."""
    base, _, suffix = name.rpartition(".")
    layer = ""
    if base.startswith("blk.") and base.count(".") == 2:
        _, number, part = base.split(".")
        base, layer = f"blk.{part}", f"layers.{number}."
    return f"{layer}{tensors[base]}.{suffix}" if base in tensors else name


def config_of_gguf(path: Path) -> ModelConfig:
    """The config that the file's metadata and tensor list describe. Raises ValueError for what is not supported."""
    header = read_gguf_header(path)
    arch = header.metadata.get("general.architecture")
    if (names := _names(arch)) is None:
        known = (name for family in FAMILIES.values() if family.gguf for name in family.gguf.architectures)
        raise ValueError(f"{path}: GGUF architecture {arch!r} is not supported; use one of {', '.join(known)}")
    return ModelConfig.from_hf(_as_hf(header, arch, names))


def _as_hf(header: GGUFHeader, arch: Any, names: GGUFNames) -> dict[str, Any]:
    def need(key: str) -> Any:
        if (value := header.metadata.get(f"{arch}.{key}")) is None:
            raise ValueError(f"{header.path}: GGUF metadata lacks {arch}.{key}")
        return value

    def get(key: str, default: Any = None) -> Any:
        return header.metadata.get(f"{arch}.{key}", default)

    heads, width = need("attention.head_count"), need("embedding_length")
    head_dim = get("attention.key_length", width // heads if isinstance(heads, int) and heads else None)
    _refuse(header, get, head_dim)
    window = get("attention.sliding_window") or None
    return {
        "architectures": [(names.architectures | names.windowed if window else names.architectures)[arch]],
        "vocab_size": _rows_of(header, "token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": need("feed_forward_length"),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": float(np.float32(need("attention.layer_norm_rms_epsilon"))),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "sliding_window": window,
        "rope_theta": get("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(header, get),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _stop_ids(header),
    }


def _stop_ids(header: GGUFHeader) -> list[int]:
    ids = (header.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return list(dict.fromkeys(token for token in ids if token is not None))


def _rows_of(header: GGUFHeader, name: str) -> int:
    if name not in header.tensors:
        raise ValueError(f"{header.path}: GGUF tensor {name} is missing")
    return header.tensors[name].shape[0]


def _refuse(header: GGUFHeader, get: Any, head_dim: int) -> None:
    for key, right in (("rope.dimension_count", head_dim), ("attention.value_length", head_dim), ("expert_count", 0)):
        if get(key, right) != right:
            raise ValueError(f"{header.path}: GGUF {key}={get(key)!r} is not supported; expected {right!r}")
    if _ROPE_FACTORS in header.tensors:
        factors = _dequantised(header.path, header.tensors[_ROPE_FACTORS])
        if not np.all(factors == 1.0):
            raise ValueError(
                f"{header.path}: GGUF tensor {_ROPE_FACTORS} (Llama 3.1's rotary scaling) is not supported; "
                "use the safetensors checkpoint"
            )


def _rope_scaling(header: GGUFHeader, get: Any) -> dict[str, Any] | None:
    kind, factor = get("rope.scaling.type", "none"), get("rope.scaling.factor", get("rope.scale_linear", 1.0))
    if kind == "none" and factor == 1.0:
        return None
    if kind not in ("none", "linear"):
        raise ValueError(f"{header.path}: GGUF rope.scaling.type={kind!r} is not supported; expected none or linear")
    return {"rope_type": "linear", "factor": factor}


def _dequantised(path: Path, entry: TensorEntry) -> np.ndarray:
    """The tensor in float32, in its shape."""
    try:
        kind = GGMLQuantizationType(entry.ggml_type)
        rows = quant_shape_to_byte_shape(entry.shape, kind)
        return dequantize(np.memmap(path, mode="r", dtype=np.uint8, offset=entry.offset, shape=rows), kind)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ValueError(f"cannot read tensor {entry.name} (type {entry.ggml_type}) of {path}: {error}") from error


class GGUFFile:
    """The tensors of a GGUF file under Hugging Face's canonical names, dequantised."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        header = read_gguf_header(path)
        arch = header.metadata["general.architecture"]
        names = _names(arch)
        assert names is not None, "the config was read from this file"
        self._path = path
        self._entries = {
            _hf_name(name, names.tensors): entry for name, entry in header.tensors.items() if name != _ROPE_FACTORS
        }
        self._heads: dict[str, int] = {}
        if arch in names.interleaved:
            self._heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """One tensor, rows of q and k in Hugging Face's order."""
        tensor = _dequantised(self._path, self._entries[name])
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return tensor
        pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(tensor.shape)
