"""Where each tensor of a Hugging Face checkpoint goes in the parameters.

Lives here: the tensor names of both families, their shapes, and their place in the stacked and fused arrays.
Promises: one table for reading every format; the places of a config cover every parameter exactly once.
Must not know: files, dtypes, quantisation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from models.config import ModelConfig

Index = tuple[int | slice, ...]
_ALL = slice(None)
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")


@dataclass(frozen=True)
class Place:
    """A tensor of `shape` belongs in `params[path[0]][path[1]]...[index]`, reshaped to what is there."""

    path: tuple[str, ...]
    index: Index
    shape: tuple[int, ...]


def canonical(name: str) -> str:
    """The tensor's name without the wrapper's prefix: both `model.layers.0...` and `layers.0...` occur."""
    return name.removeprefix("model.")


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a checkpoint may hold this tensor without any use: old buffers, and the head of a tied model."""
    return name.endswith(_IGNORED_SUFFIXES) or (name == "lm_head.weight" and config.tie_word_embeddings)


def places(config: ModelConfig) -> dict[str, Place]:
    """Every tensor that the checkpoint of `config` must hold, by canonical name."""
    return dict(_opt_places(config) if config.family == "opt" else _llama_places(config))


def _linear(
    name: str, path: tuple[str, ...], index: Index, shape: tuple[int, int], bias: Any
) -> Iterator[tuple[str, Place]]:
    yield f"{name}.weight", Place((*path, "kernel"), index, shape)
    if bias:
        yield f"{name}.bias", Place((*path, "bias"), index, shape[:1])


def _layer_norm(name: str, path: tuple[str, ...], index: Index, width: int) -> Iterator[tuple[str, Place]]:
    yield f"{name}.weight", Place((*path, "scale"), index, (width,))
    yield f"{name}.bias", Place((*path, "bias"), index, (width,))


def _head(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    if not config.tie_word_embeddings:
        yield "lm_head.weight", Place(("head", "kernel"), (), (config.vocab_size, config.embedding_dim))


def _llama_places(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    width = config.hidden_size
    yield "embed_tokens.weight", Place(("embed", "embedding"), (), (config.vocab_size, width))
    yield "norm.weight", Place(("final_norm", "scale"), (), (width,))
    yield from _head(config)
    for layer in range(config.num_layers):
        yield from _llama_layer(config, layer)


def _llama_layer(config: ModelConfig, layer: int) -> Iterator[tuple[str, Place]]:
    width, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    group = config.num_heads // config.num_kv_heads
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    name = f"layers.{layer}"
    qkv, out = ("layers", "attention", "qkv"), ("layers", "attention", "out")
    yield from _linear(
        f"{name}.self_attn.q_proj", qkv, (layer, _ALL, slice(0, group)), (q_rows, width), config.qkv_bias
    )
    for letter, at in (("k", group), ("v", group + 1)):
        proj = f"{name}.self_attn.{letter}_proj"
        yield from _linear(proj, qkv, (layer, _ALL, at), (kv_rows, width), config.qkv_bias)
    yield from _linear(f"{name}.self_attn.o_proj", out, (layer,), (width, q_rows), config.o_bias)
    if config.qk_norm:
        for letter in "qk":
            path = ("layers", "attention", f"{letter}_norm", "scale")
            yield f"{name}.self_attn.{letter}_norm.weight", Place(path, (layer,), (head_dim,))
    gate_up, down = ("layers", "mlp", "gate_up"), ("layers", "mlp", "down")
    for at, part in enumerate(("gate", "up")):
        yield from _linear(f"{name}.mlp.{part}_proj", gate_up, (layer, _ALL, at), (ffn, width), config.mlp_bias)
    yield from _linear(f"{name}.mlp.down_proj", down, (layer,), (width, ffn), config.mlp_bias)
    for theirs, ours in (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "mlp_norm")):
        yield f"{name}.{theirs}.weight", Place(("layers", ours, "scale"), (layer,), (width,))


def _opt_places(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    width, embedding = config.hidden_size, config.embedding_dim
    yield "decoder.embed_tokens.weight", Place(("embed", "embedding"), (), (config.vocab_size, embedding))
    positions = (config.max_position_embeddings + 2, width)
    yield "decoder.embed_positions.weight", Place(("positions", "embedding"), (), positions)
    if config.final_layer_norm:
        yield from _layer_norm("decoder.final_layer_norm", ("final_norm",), (), width)
    if embedding != width:
        yield from _linear("decoder.project_in", ("project_in",), (), (width, embedding), False)
        yield from _linear("decoder.project_out", ("project_out",), (), (embedding, width), False)
    yield from _head(config)
    for layer in range(config.num_layers):
        yield from _opt_layer(config, layer)


def _opt_layer(config: ModelConfig, layer: int) -> Iterator[tuple[str, Place]]:
    width, ffn, name = config.hidden_size, config.intermediate_size, f"decoder.layers.{layer}"
    for at, letter in enumerate("qkv"):
        proj = f"{name}.self_attn.{letter}_proj"
        index = (layer, _ALL, at)
        yield from _linear(proj, ("layers", "attention", "qkv"), index, (width, width), config.qkv_bias)
    out = ("layers", "attention", "out")
    yield from _linear(f"{name}.self_attn.out_proj", out, (layer,), (width, width), config.o_bias)
    yield from _linear(f"{name}.fc1", ("layers", "fc1"), (layer,), (ffn, width), config.mlp_bias)
    yield from _linear(f"{name}.fc2", ("layers", "fc2"), (layer,), (width, ffn), config.mlp_bias)
    for theirs, ours in (("self_attn_layer_norm", "attention_norm"), ("final_layer_norm", "mlp_norm")):
        yield from _layer_norm(f"{name}.{theirs}", ("layers", ours), (layer,), width)
