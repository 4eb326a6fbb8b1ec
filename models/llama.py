"""LLaMA and the models that differ from it by flags: Mistral, Qwen2, Qwen3, SmolLM2.

Lives here: the decoder block (rotary attention, gated MLP, RMS norms) and the model around it.
Promises: a pure function of (params, inputs, kv_pages); parameters stacked by layer.
Must not know: requests, sampling, checkpoints' names.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from models.attention import attend_through_pages
from models.config import ModelConfig
from models.inputs import StepInputs
from models.layers import (
    Embedding,
    Head,
    Linear,
    ModelOptions,
    RMSNorm,
    gated,
    rotary_angles,
    rotary_frequencies,
    rotate,
    stack_layers,
)
from pallas_kernels import KVPages

Shared = tuple[StepInputs, tuple[Array, Array]]


class Attention(nn.Module):
    """Grouped-query attention. The fused `qkv` is `[K, G + 2, H, D]`: a kv head's queries, then its key and value."""

    config: ModelConfig
    options: ModelOptions

    @nn.compact
    def __call__(
        self, x: Float[Array, "T D"], kv_pages: KVPages, layer: Int[Array, ""], shared: Shared
    ) -> tuple[Float[Array, "T D"], KVPages]:
        inputs, angles = shared
        config, dtype = self.config, self.options.dtype
        group = config.num_heads // config.num_kv_heads
        fused = (config.num_kv_heads, group + 2, config.head_dim)
        qkv = Linear(fused, dtype, config.qkv_bias, name="qkv")(x)
        q = qkv[:, :, :group].reshape(x.shape[0], config.num_heads, config.head_dim)
        k, v = qkv[:, :, group], qkv[:, :, group + 1]
        if config.qk_norm:
            q = RMSNorm(config.norm_eps, dtype, name="q_norm")(q)
            k = RMSNorm(config.norm_eps, dtype, name="k_norm")(k)
        q, k = rotate(q, angles), rotate(k, angles)
        window = config.sliding_window
        out, kv_pages = attend_through_pages(q, k, v, inputs, kv_pages, layer, self.options, window=window)
        out = out.reshape(x.shape[0], -1)
        return Linear((config.hidden_size,), dtype, config.o_bias, name="out")(out), kv_pages


class GatedMLP(nn.Module):
    """`down(act(gate x) * up x)`; gate and up are one array `[F, 2, D]`, so that a slice of F holds both."""

    config: ModelConfig
    options: ModelOptions

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        config, dtype = self.config, self.options.dtype
        both = Linear((config.intermediate_size, 2), dtype, config.mlp_bias, name="gate_up")(x)
        inner = gated(config.activation, both[:, :, 0], both[:, :, 1])
        return Linear((config.hidden_size,), dtype, config.mlp_bias, name="down")(inner)


class Block(nn.Module):
    """One decoder layer, as the layer loop calls it."""

    config: ModelConfig
    options: ModelOptions

    @nn.compact
    def __call__(
        self, carry: tuple[Array, KVPages], layer: Int[Array, ""], shared: Shared
    ) -> tuple[tuple[Array, KVPages], None]:
        x, kv_pages = carry
        eps, dtype = self.config.norm_eps, self.options.dtype
        normed = RMSNorm(eps, dtype, name="attention_norm")(x)
        attended, kv_pages = Attention(self.config, self.options, name="attention")(normed, kv_pages, layer, shared)
        x = x + attended
        x = x + GatedMLP(self.config, self.options, name="mlp")(RMSNorm(eps, dtype, name="mlp_norm")(x))
        return (x, kv_pages), None


class Llama(nn.Module):
    """The model: `apply({"params": params}, inputs, kv_pages) -> (logits, kv_pages)`."""

    config: ModelConfig
    options: ModelOptions

    def setup(self) -> None:
        config, dtype = self.config, self.options.dtype
        self.embed = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = stack_layers(Block, config, self.options)
        self.final_norm = RMSNorm(config.norm_eps, dtype)
        if not config.tie_word_embeddings:
            self.head = Head(config.vocab_size, dtype)

    def hidden_states(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "T D"], KVPages]:
        """The normed output of the last layer for every packed token, and the pool with this step's tokens in it."""
        angles = rotary_angles(inputs.positions, rotary_frequencies(self.config, self.options.max_model_len))
        numbers = jnp.arange(self.config.num_layers, dtype=jnp.int32)
        carry: Any = (self.embed(inputs.token_ids), kv_pages)
        (x, kv_pages), _ = self.layers(carry, numbers, (inputs, angles))
        return self.final_norm(x), kv_pages

    def compute_logits(self, hidden: Float[Array, "Q D"]) -> Float[Array, "Q V"]:
        """Float32 logits of some of the rows of `hidden_states`."""
        return self.embed.attend(hidden) if self.config.tie_word_embeddings else self.head(hidden)

    def __call__(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "Q V"], KVPages]:
        hidden, kv_pages = self.hidden_states(inputs, kv_pages)
        return self.compute_logits(hidden[inputs.sample_rows]), kv_pages
