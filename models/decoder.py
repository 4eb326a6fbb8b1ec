"""What decoders share: the model around a stack of blocks, attention with fused projections, the gated MLP.

A decoder is a pure function, `apply({"params": params}, inputs, kv_pages) -> (logits, kv_pages)`, with parameters
stacked by layer. A family fills in its blocks and `hidden_states`.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from models.attention import attend_through_pages
from models.inputs import StepInputs
from models.layers import Embedding, Head, Linear, Part, RMSNorm, gated, rotate
from pallas_kernels import KVPages

Angles = tuple[Float[Array, "T 1 H/2"], Float[Array, "T 1 H/2"]]


class Attention(Part):
    """Grouped-query attention. The fused `qkv` is `[K, G + 2, H, D]`: a kv head's queries, then its key and value."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "T D"], kv_pages: KVPages, layer: Int[Array, ""], inputs: StepInputs,
        angles: Angles | None = None,
    ) -> tuple[Float[Array, "T D"], KVPages]:  # fmt: skip
        """The attention's output, and the pool with this step's tokens in it; `angles` turn queries and keys."""
        config, dtype = self.config, self.options.dtype
        group = config.num_heads // config.num_kv_heads
        fused = (config.num_kv_heads, group + 2, config.head_dim)
        qkv = Linear(fused, dtype, config.qkv_bias, name="qkv")(x)
        q = qkv[:, :, :group].reshape(x.shape[0], config.num_heads, config.head_dim)
        k, v = qkv[:, :, group], qkv[:, :, group + 1]
        if config.qk_norm:
            q = RMSNorm(config.norm_eps, dtype, name="q_norm")(q)
            k = RMSNorm(config.norm_eps, dtype, name="k_norm")(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        window = config.sliding_window
        out, kv_pages = attend_through_pages(q, k, v, inputs, kv_pages, layer, self.options, window=window)
        out = out.reshape(x.shape[0], -1)
        return Linear((config.hidden_size,), dtype, config.o_bias, name="out")(out), kv_pages


class GatedMLP(Part):
    """`down(act(gate x) * up x)`; gate and up are one array `[F, 2, D]`, so that a slice of F holds both."""

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        config, dtype = self.config, self.options.dtype
        both = Linear((config.intermediate_size, 2), dtype, config.mlp_bias, name="gate_up")(x)
        inner = gated(config.activation, both[:, :, 0], both[:, :, 1])
        return Linear((config.hidden_size,), dtype, config.mlp_bias, name="down")(inner)


class Decoder(Part):
    """Embedding, blocks and head. A subclass calls `super().setup()`, sets `self.layers`, and has `hidden_states`."""

    def setup(self) -> None:
        config, dtype = self.config, self.options.dtype
        self.embed = Embedding(config.vocab_size, config.embedding_dim, dtype)
        if not config.tie_word_embeddings:
            self.head = Head(config.vocab_size, dtype)

    def stack(self, block: type[nn.Module]) -> Any:
        """One module that runs all layers as blocks, its parameters stacked on a leading layer axis.

        A block is made of (config, options), called as `block((hidden, kv_pages), layer, shared)`, and gives the pair
        and None. The whole pool rides in the carry: as a scanned input or output it would be copied.
        """
        layers = self.config.num_layers
        scanned = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=layers,
            unroll=min(self.options.scan_unroll, layers),
        )
        return scanned(self.config, self.options, name="layers")

    def run_layers(self, x: Float[Array, "T D"], kv_pages: KVPages, shared: Any) -> tuple[Array, KVPages]:
        """The output of the last layer, and the pool; every layer gets `shared`."""
        carry, _ = self.layers((x, kv_pages), jnp.arange(self.config.num_layers, dtype=jnp.int32), shared)
        return carry

    def hidden_states(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "T D"], KVPages]:
        """What the head reads, for every packed token, and the pool with this step's tokens in it."""
        raise NotImplementedError

    def compute_logits(self, hidden: Float[Array, "Q D"]) -> Float[Array, "Q V"]:
        """Float32 logits of some of the rows of `hidden_states`."""
        return self.embed.attend(hidden) if self.config.tie_word_embeddings else self.head(hidden)

    def __call__(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "Q V"], KVPages]:
        hidden, kv_pages = self.hidden_states(inputs, kv_pages)
        return self.compute_logits(hidden[inputs.sample_rows]), kv_pages
