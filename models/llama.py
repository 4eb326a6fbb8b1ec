"""The decoder of LLaMA and its relatives: rotary attention, a gated MLP, RMS norms before both."""

from flax import linen as nn
from jaxtyping import Array, Float, Int

from models.decoder import Angles, Attention, Decoder, GatedMLP
from models.inputs import StepInputs
from models.layers import Part, RMSNorm, rotary_angles, rotary_frequencies
from pallas_kernels import KVPages


class Block(Part):
    """One decoder layer, as the layer loop calls it."""

    @nn.compact
    def __call__(
        self, carry: tuple[Array, KVPages], layer: Int[Array, ""], shared: tuple[StepInputs, Angles]
    ) -> tuple[tuple[Array, KVPages], None]:
        x, kv_pages = carry
        eps, dtype = self.config.norm_eps, self.options.dtype
        normed = RMSNorm(eps, dtype, name="attention_norm")(x)
        attended, kv_pages = Attention(self.config, self.options, name="attention")(normed, kv_pages, layer, *shared)
        x = x + attended
        x = x + GatedMLP(self.config, self.options, name="mlp")(RMSNorm(eps, dtype, name="mlp_norm")(x))
        return (x, kv_pages), None


class Llama(Decoder):
    """The model; the head reads the normed output of the last layer."""

    def setup(self) -> None:
        super().setup()
        self.layers = self.stack(Block)
        self.final_norm = RMSNorm(self.config.norm_eps, self.options.dtype)

    def hidden_states(self, inputs: StepInputs, kv_pages: KVPages) -> tuple[Float[Array, "T D"], KVPages]:
        angles = rotary_angles(inputs.positions, rotary_frequencies(self.config, self.options.max_model_len))
        x, kv_pages = self.run_layers(self.embed(inputs.token_ids), kv_pages, (inputs, angles))
        return self.final_norm(x), kv_pages
