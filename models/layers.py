"""The small parts that decoders are made of: linear maps, embeddings, norms, rotary embedding, activations.

Weights of linear maps end in the input axis; norms and rotary angles are float32, whatever the dtype.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from models.config import ModelConfig
from pallas_kernels.numerics import least_rows

_INIT = nn.initializers.normal(0.02)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}


@dataclass(frozen=True)
class ModelOptions:
    """How a model is run: what is no property of the checkpoint."""

    dtype: Any
    max_model_len: int
    attention_implementation: str | None = None
    scan_unroll: int = 1
    interpret: bool = False
    mesh: jax.sharding.Mesh | None = None  # over which the compiler divides the model; kernels run shard by shard


class Part(nn.Module):
    """A part of a decoder that is made of the model's config and of how it is run."""

    config: ModelConfig
    options: ModelOptions


class Linear(nn.Module):
    """A linear map to one or several output axes; `kernel` is `[*features, in]`, `bias` is `[*features]`."""

    features: tuple[int, ...]
    dtype: Any
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "T I"]) -> Float[Array, "T *features"]:
        kernel = self.param("kernel", _INIT, (*self.features, x.shape[-1]), self.dtype)
        # One plain [out, in] product: with several output axes XLA's CPU product was up to 2.5 times slower.
        y = jnp.einsum("ti,oi->to", x, kernel.reshape(-1, x.shape[-1])).reshape(x.shape[0], *self.features)
        if self.use_bias:
            y = y + self.param("bias", nn.initializers.zeros, self.features, self.dtype)
        return y


class Embedding(nn.Module):
    """A table of rows; also the head of a model that ties the two."""

    rows: int
    width: int
    dtype: Any

    def setup(self) -> None:
        self.embedding = self.param("embedding", _INIT, (self.rows, self.width), self.dtype)

    def __call__(self, ids: Int[Array, " T"]) -> Float[Array, "T D"]:
        return jnp.take(self.embedding, ids, axis=0, mode="clip")

    def attend(self, hidden: Float[Array, "T D"]) -> Float[Array, "T V"]:
        """Float32 scores of every row of the table."""
        return head_scores(hidden, self.embedding)


class Head(nn.Module):
    """The output layer of a model that does not tie it to the embedding; `kernel` is `[V, D]`."""

    vocab_size: int
    dtype: Any

    @nn.compact
    def __call__(self, hidden: Float[Array, "T D"]) -> Float[Array, "T V"]:
        kernel = self.param("kernel", _INIT, (self.vocab_size, hidden.shape[-1]), self.dtype)
        return head_scores(hidden, kernel)


def head_scores(hidden: Float[Array, "T D"], rows: Float[Array, "V D"]) -> Float[Array, "T V"]:
    """Float32 logits: one dot product with every row, accumulated and returned in float32."""
    return jnp.einsum("td,vd->tv", hidden, rows, preferred_element_type=jnp.float32)


def mean_of_rows(x: Float[Array, "T *heads D"]) -> Float[Array, "T *heads 1"]:
    """The mean over the last axis, the same bit for bit whatever rows are beside a row (see numerics.py)."""
    rows = x.reshape(-1, x.shape[-1])
    missing = max(0, least_rows(x.shape[-1]) - rows.shape[0])
    means = jnp.mean(jnp.pad(rows, ((0, missing), (0, 0))), axis=-1)
    return means[: rows.shape[0]].reshape(*x.shape[:-1], 1)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, in float32, returned in x's dtype."""

    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(mean_of_rows(jnp.square(wide)) + self.eps)
        return normed.astype(x.dtype) * scale


class LayerNorm(nn.Module):
    """Layer norm over the last axis, in float32, returned in x's dtype."""

    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        centred = wide - mean_of_rows(wide)
        normed = centred * jax.lax.rsqrt(mean_of_rows(jnp.square(centred)) + self.eps)
        return (normed * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def gated(activation: str, gate: Float[Array, "T F"], up: Float[Array, "T F"]) -> Float[Array, "T F"]:
    """`activation(gate) * up` in float32, returned in gate's dtype: rounded once, and on a CPU in half the time that
    bfloat16 arithmetic takes, which XLA rounds after every operation."""
    return (ACTIVATIONS[activation](gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def rotary_frequencies(config: ModelConfig, max_model_len: int) -> np.ndarray:
    """Radians per position for each of the `H / 2` pairs, float32.

    Dynamic (NTK) scaling raises the base by the context length. Hugging Face takes the longest row of the batch;
    here it is `max_model_len`, fixed for the engine's life: cached keys keep the base they were made with, so a
    base that follows the batch would give a token different keys in different company. For a `max_model_len` up to
    the trained context, dynamic equals no scaling. Source of llama3: Llama 3.1's reference code.
    """
    scaling, dim, base = config.rope_scaling, config.head_dim, config.rope_theta
    if scaling is not None and scaling.kind == "dynamic":
        stretch = max(max_model_len, config.max_position_embeddings) / config.max_position_embeddings
        base = base * (scaling.factor * stretch - (scaling.factor - 1)) ** (dim / (dim - 2))
    frequencies = base ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    if scaling is not None and scaling.kind == "llama3":
        turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        frequencies = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    return frequencies.astype(np.float32)


def rotary_angles(
    positions: Int[Array, " T"], frequencies: np.ndarray
) -> tuple[Float[Array, "T 1 H/2"], Float[Array, "T 1 H/2"]]:
    """Cosines and sines of every position, float32, ready to be spread over heads."""
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "T N H"], angles: tuple[Float[Array, "T 1 H/2"], Float[Array, "T 1 H/2"]]
) -> Float[Array, "T N H"]:
    """Heads turned by their position; pairs are (i, i + H / 2), as in Hugging Face's checkpoints."""
    cos, sin = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
