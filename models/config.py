"""What a model is: its shape and the options of its blocks. Standard library only.

A config that exists is one the models can run; every error names the field, the value and the remedy.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from models.family import Family

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
ROPE_SCALINGS = ("linear", "dynamic", "llama3")


def require(ok: bool, field: str, value: object, expected: str) -> None:
    """Raise the ValueError that says which field is wrong, with what value, and what would be right, unless `ok`."""
    if not ok:
        raise ValueError(f"model config: {field}={value!r} is not supported; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor`. `dynamic` (NTK) raises the base with the context; jpaged fixes the
    base once, from the longest sequence the engine may hold (`max_model_len`), so that a token's key never depends
    on the batch it was computed in. `llama3` divides the low frequencies by `factor` and blends the middle ones.
    """

    kind: Literal["linear", "dynamic", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        require(self.kind in ROPE_SCALINGS, "rope_type", self.kind, f"default or one of {', '.join(ROPE_SCALINGS)}")
        require(_is_number(self.factor) and self.factor >= 1, "rope factor", self.factor, "a number of at least 1")
        for name in ("low_freq_factor", "high_freq_factor"):
            value: object = getattr(self, name)
            require(_is_number(value), f"rope {name}", value, "a number")
        require(
            0 < self.low_freq_factor < self.high_freq_factor,
            "rope low_freq_factor",
            self.low_freq_factor,
            f"more than 0 and less than high_freq_factor={self.high_freq_factor!r}",
        )
        original = self.original_max_position_embeddings
        require(_is_int(original, 1), "rope original_max_position_embeddings", original, "a positive integer")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only model and the options of its blocks.

    `architecture` is Hugging Face's name; `family` is the record of the models that it is run with. Options
    of other families keep their defaults. `dtype` is the checkpoint's own, a hint; None if it does not say.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    activation: str
    norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    # llama family
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    qk_norm: bool = False
    # opt family
    do_layer_norm_before: bool = True
    final_layer_norm: bool = True
    word_embed_proj_dim: int | None = None

    def __post_init__(self) -> None:
        from models.families import architectures

        supported = architectures()
        require(self.architecture in supported, "architecture", self.architecture, f"one of {', '.join(supported)}")
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.type is int:
                require(_is_int(value, 1), field.name, value, "a positive integer")
            elif field.type is bool:
                require(isinstance(value, bool), field.name, value, "true or false")
            elif field.type is float:
                require(_is_number(value) and value > 0, field.name, value, "a positive number")
        for name in ("sliding_window", "word_embed_proj_dim"):
            value = getattr(self, name)
            require(value is None or _is_int(value, 1), name, value, "a positive integer or null")
        for name, ids in (("bos_token_id", (self.bos_token_id,)), ("eos_token_ids", self.eos_token_ids)):
            for value in ids:
                require(value is None or _is_int(value, 0), name, value, "an id of at least 0, or null")
        require(self.activation in ACTIVATIONS, "activation", self.activation, f"one of {', '.join(ACTIVATIONS)}")
        divides = self.num_heads % self.num_kv_heads == 0
        require(divides, "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads={self.num_heads}")
        self.family.check(self)

    @classmethod
    def from_hf(cls, config: dict[str, Any], generation_config: dict[str, Any] | None = None) -> Self:
        """The config that Hugging Face's config.json (and generation_config.json) describe.

        A missing key means what it means to transformers. Raises ValueError for an architecture or option that the
        models here do not run: nothing is ignored that would change a logit.
        """
        from models.families import architectures
        from models.hf_config import fields_from_hf

        return cls(**fields_from_hf(config, generation_config, architectures()))

    @property
    def family(self) -> "Family":
        """The record of the models that this one is run as."""
        from models.families import family_of

        family = family_of(self.architecture)
        assert family is not None, "checked when the config was made"
        return family

    @property
    def embedding_dim(self) -> int:
        """Width of the token embedding: the model's own, save in OPT models that project it (OPT-350M)."""
        return self.word_embed_proj_dim or self.hidden_size

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens that the model was made for; a hard limit in OPT (a learned table)."""
        scaling = self.rope_scaling
        stretched = scaling is not None and scaling.kind in ("linear", "dynamic")
        return int(self.max_position_embeddings * (scaling.factor if scaling and stretched else 1))

    @property
    def num_params(self) -> int:
        """Parameters, exactly; a tied head counts once."""
        from models.places import count_params

        return count_params(self)

    @property
    def num_step_params(self) -> int:
        """Parameters that every step reads: all but an embedding that is only looked up."""
        return self.num_params - (0 if self.tie_word_embeddings else self.vocab_size * self.embedding_dim)

    @property
    def num_matrix_params(self) -> int:
        """Parameters of the token embedding and of the matrices that tensor parallelism splits."""
        from models.places import EMBEDDING, count_params

        return count_params(
            self, lambda place: len(place.shape) == 2 and (place.split is not None or place.path == EMBEDDING)
        )

    def kv_bytes_per_token(self, itemsize: int, scale_bytes: int = 0) -> int:
        """Bytes that one token's keys and values take in all layers, at `itemsize` bytes per element.

        `scale_bytes`: of the scale that each head of a token has in a quantised pool.
        """
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * itemsize + scale_bytes)
