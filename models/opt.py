"""OPT: learned positions, layer norms before or after, biases everywhere.

Lives here: the decoder block and the model around it, with OPT-350M's projected embeddings.
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
from models.layers import ACTIVATIONS, Embedding, Head, LayerNorm, Linear, ModelOptions, stack_layers
from pallas_kernels import KVPages

POSITION_OFFSET = 2  # row 2 of the learned table is position 0


class Attention(nn.Module):
    """Multi-head attention. The fused `qkv` is `[N, 3, H, D]`: a head's query, key and value."""

    config: ModelConfig
    options: ModelOptions

    @nn.compact
    def __call__(
        self, x: Float[Array, "T D"], kv_pages: KVPages, layer: Int[Array, ""], inputs: StepInputs
    ) -> tuple[Float[Array, "T D"], KVPages]:
        config, dtype = self.config, self.options.dtype
        fused = (config.num_heads, 3, config.head_dim)
        qkv = Linear(fused, dtype, config.qkv_bias, name="qkv")(x)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        out, kv_pages = attend_through_pages(q, k, v, inputs, kv_pages, layer, self.options)
        out = out.reshape(x.shape[0], -1)
        return Linear((config.hidden_size,), dtype, config.o_bias, name="out")(out), kv_pages


class Block(nn.Module):
    """One decoder layer, as the layer loop calls it."""

    config: ModelConfig
    options: ModelOptions

    @nn.compact
    def __call__(
        self, carry: tuple[Array, KVPages], layer: Int[Array, ""], inputs: StepInputs
    ) -> tuple[tuple[Array, KVPages], None]:
        x, kv_pages = carry
        config, dtype, before = self.config, self.options.dtype, self.config.do_layer_norm_before
        attention_norm = LayerNorm(config.norm_eps, dtype, name="attention_norm")
        mlp_norm = LayerNorm(config.norm_eps, dtype, name="mlp_norm")
        attention = Attention(config, self.options, name="attention")
        attended, kv_pages = attention(attention_norm(x) if before else x, kv_pages, layer, inputs)
        x = x + attended
        x = x if before else attention_norm(x)
        inner = Linear((config.intermediate_size,), dtype, config.mlp_bias, name="fc1")(mlp_norm(x) if before else x)
        x = x + Linear((config.hidden_size,), dtype, config.mlp_bias, name="fc2")(ACTIVATIONS[config.activation](inner))
        x = x if before else mlp_norm(x)
        return (x, kv_pages), None


class OPT(nn.Module):
    """The model: `apply({"params": params}, inputs, kv_pages) -> (logits, kv_pages)`."""

    config: ModelConfig
    options: ModelOptions

    def setup(self) -> None:
        config, dtype = self.config, self.options.dtype
        self.embed = Embedding(config.vocab_size, config.embedding_dim, dtype)
        self.positions = Embedding(config.max_position_embeddings + POSITION_OFFSET, config.hidden_size, dtype)
        self.layers = stack_layers(Block, config, self.options)
        if config.final_layer_norm:
            self.final_norm = LayerNorm(config.norm_eps, dtype)
        if config.embedding_dim != config.hidden_size:
            self.project_in = Linear((config.hidden_size,), dtype)
            self.project_out = Linear((config.embedding_dim,), dtype)
        if not config.tie_word_embeddings:
            self.head = Head(config.vocab_size, dtype)

    def hidden_states(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "T D"], KVPages]:
        """What the head reads, for every packed token (OPT-350M: projected, so D is the embedding's), and the pool."""
        config = self.config
        projected = config.embedding_dim != config.hidden_size
        x = self.embed(inputs.token_ids)
        x = self.project_in(x) if projected else x
        x = x + self.positions(inputs.positions + POSITION_OFFSET)
        numbers = jnp.arange(config.num_layers, dtype=jnp.int32)
        carry: Any = (x, kv_pages)
        (x, kv_pages), _ = self.layers(carry, numbers, inputs)
        x = self.final_norm(x) if config.final_layer_norm else x
        return self.project_out(x) if projected else x, kv_pages

    def compute_logits(self, hidden: Float[Array, "Q D"]) -> Float[Array, "Q V"]:
        """Float32 logits of some of the rows of `hidden_states`."""
        return self.embed.attend(hidden) if self.config.tie_word_embeddings else self.head(hidden)

    def __call__(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "Q V"], KVPages]:
        hidden, kv_pages = self.hidden_states(inputs, kv_pages)
        return self.compute_logits(hidden[inputs.sample_rows]), kv_pages
