# pyright: strict
"""Where each tensor of a Hugging Face checkpoint goes in the parameters, and how large it is.

One table for reading every format, for splitting over devices and for counting: the places of a config cover every
parameter exactly once. The families list their tensors with the functions here.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from models.config import ModelConfig

Index = tuple[int | slice, ...]
EMBEDDING, HEAD = ("embed", "embedding"), ("head", "kernel")
_HEAD_NAME = "lm_head.weight"
_ALL = slice(None)
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")


@dataclass(frozen=True)
class Place:
    """A tensor of `shape` belongs in `params[path[0]][path[1]]...[index]`, reshaped to what is there.

    `split` is the axis of that array (axis 0 is the layer, in `layers`) that several devices divide among them; None:
    it is whole on each. `kv_heads`: its leading rows are kv heads, repeated where there are more devices than heads.
    """

    path: tuple[str, ...]
    index: Index
    shape: tuple[int, ...]
    split: int | None = None
    kv_heads: bool = False


Tensors = Iterator[tuple[str, Place]]
"""Names and places; a name with `{}` occurs in every layer, and its index then lacks the layer."""


def places(config: "ModelConfig") -> dict[str, Place]:
    """Every tensor that the checkpoint of `config` must hold, by canonical name."""
    tensors = list(config.family.tensors(config))
    found = {name: place for name, place in tensors if "{}" not in name}
    for layer in range(config.num_layers):
        for name, place in tensors:
            if "{}" in name:
                found[name.format(layer)] = replace(place, index=(layer, *place.index))
    return found


def count_params(config: "ModelConfig", counts: Callable[[Place], bool] = lambda _: True) -> int:
    """The number of parameters at the places that count; a tied head is no place."""
    tensors = config.family.tensors(config)
    return sum(
        math.prod(place.shape) * (config.num_layers if "{}" in name else 1) for name, place in tensors if counts(place)
    )


def canonical(name: str) -> str:
    """The tensor's name without the wrapper's prefix: both `model.layers.0...` and `layers.0...` occur."""
    return name.removeprefix("model.")


def is_ignored(name: str, config: "ModelConfig") -> bool:
    """Whether a checkpoint may hold this tensor without any use: old buffers, and the head of a tied model."""
    return name.endswith(_IGNORED_SUFFIXES) or (name == _HEAD_NAME and config.tie_word_embeddings)


def linear(
    name: str, path: str, shape: tuple[int, int], *, at: Index = (), bias: bool = False,
    split: Literal["out", "in"] | None = None, kv_heads: bool = False,
) -> Tensors:  # fmt: skip
    """A linear map, `shape` is (out, in); `at` is its part of a fused array. `split` "in" makes it a part of a sum."""
    keys, axis = tuple(path.split("/")), {"out": 1, "in": 2, None: None}[split]
    yield f"{name}.weight", Place((*keys, "kernel"), at, shape, axis, kv_heads)
    if bias:
        yield f"{name}.bias", Place((*keys, "bias"), at, shape[:1], 1 if split == "out" else None, kv_heads)


def norm(name: str, path: str, width: int, *, bias: bool = False) -> Tensors:
    """The scale of a norm, and its bias if it has one."""
    keys = tuple(path.split("/"))
    yield f"{name}.weight", Place((*keys, "scale"), (), (width,))
    if bias:
        yield f"{name}.bias", Place((*keys, "bias"), (), (width,))


def embedding_and_head(name: str, config: "ModelConfig") -> Tensors:
    """The token embedding and, where it is not the same array, the head.

    A table that is looked up is on every device: split, each lookup would need a collective of its own.
    """
    shape = (config.vocab_size, config.embedding_dim)
    yield f"{name}.weight", Place(EMBEDDING, (), shape)
    if not config.tie_word_embeddings:
        yield _HEAD_NAME, Place(HEAD, (), shape, split=0)


def attention(name: str, out: str, config: "ModelConfig") -> Tensors:
    """`models.decoder.Attention`: q, k and v in one `[L, K, G + 2, H, D]`, so that a slice of K is a device's own."""
    width, head_dim = config.hidden_size, config.head_dim
    group = config.num_heads // config.num_kv_heads
    rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    path, bias = "layers/attention", config.qkv_bias
    parts = (("q", slice(0, group), rows), ("k", group, kv_rows), ("v", group + 1, kv_rows))
    for letter, at, size in parts:
        where: Index = (_ALL, at)
        shape, kv = (size, width), letter != "q"
        yield from linear(f"{name}.{letter}_proj", f"{path}/qkv", shape, at=where, bias=bias, split="out", kv_heads=kv)
    yield from linear(f"{name}.{out}", f"{path}/out", (width, rows), bias=config.o_bias, split="in")
    for letter in "qk" if config.qk_norm else "":
        yield from norm(f"{name}.{letter}_norm", f"{path}/{letter}_norm", head_dim)


def gated_mlp(name: str, config: "ModelConfig") -> Tensors:
    """`models.decoder.GatedMLP`: gate and up in one `[L, F, 2, D]`, so that a slice of F holds both."""
    ffn, width, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
    for at, part in enumerate(("gate", "up")):
        yield from linear(
            f"{name}.{part}_proj", "layers/mlp/gate_up", (ffn, width), at=(_ALL, at), bias=bias, split="out"
        )
    yield from linear(f"{name}.down_proj", "layers/mlp/down", (width, ffn), bias=bias, split="in")
