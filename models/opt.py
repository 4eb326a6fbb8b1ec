"""The decoder of OPT: learned positions, layer norms before or after, OPT-350M's projected embeddings."""

from flax import linen as nn
from jaxtyping import Array, Float, Int

from models.decoder import Attention, Decoder
from models.families.opt import POSITION_OFFSET
from models.inputs import StepInputs
from models.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, Part
from pallas_kernels import KVPages


class Block(Part):
    """One decoder layer, as the layer loop calls it."""

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


class OPT(Decoder):
    """The model; where embeddings are projected (OPT-350M), the head reads rows of the embedding's width."""

    def setup(self) -> None:
        super().setup()
        config, dtype = self.config, self.options.dtype
        self.layers = self.stack(Block)
        self.positions = Embedding(config.max_position_embeddings + POSITION_OFFSET, config.hidden_size, dtype)
        if config.final_layer_norm:
            self.final_norm = LayerNorm(config.norm_eps, dtype)
        if config.embedding_dim != config.hidden_size:
            self.project_in = Linear((config.hidden_size,), dtype)
            self.project_out = Linear((config.embedding_dim,), dtype)

    def hidden_states(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "T D"], KVPages]:
        projected = self.config.embedding_dim != self.config.hidden_size
        x = self.embed(inputs.token_ids)
        x = self.project_in(x) if projected else x
        x = x + self.positions(inputs.positions + POSITION_OFFSET)
        x, kv_pages = self.run_layers(x, kv_pages, inputs)
        x = self.final_norm(x) if self.config.final_layer_norm else x
        return self.project_out(x) if projected else x, kv_pages
