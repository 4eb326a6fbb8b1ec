"""What a model is: its shape and the options of its blocks.

Lives here: ModelConfig, RopeScaling and the published shapes (PRESETS). Standard library only.
Promises: a config that exists is one the models can run; every error names the field, the value and the remedy.
Must not know: arrays, devices, files. How Hugging Face spells things is in hf_config.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

ARCHITECTURES: dict[str, Literal["opt", "llama"]] = {
    "OPTForCausalLM": "opt",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
}
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
ROPE_SCALINGS = ("linear", "dynamic", "llama3")


def require(ok: bool, field: str, value: object, expected: str) -> None:
    """Nothing, or the ValueError that says which field is wrong, with what value, and what would be right."""
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

    `architecture` is Hugging Face's name; `family` says which module runs it. Options of the other family keep
    their defaults. `dtype` is the checkpoint's own, a hint; None if it does not say.
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
        supported = ", ".join(ARCHITECTURES)
        require(self.architecture in ARCHITECTURES, "architecture", self.architecture, f"one of {supported}")
        for name in _SIZES:
            value: object = getattr(self, name)
            require(_is_int(value, 1), name, value, "a positive integer")
        for name in _FLAGS:
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "true or false")
        require(self.activation in ACTIVATIONS, "activation", self.activation, f"one of {', '.join(ACTIVATIONS)}")
        for name in ("norm_eps", "rope_theta"):
            value = getattr(self, name)
            require(_is_number(value) and getattr(self, name) > 0, name, value, "a positive number")
        self._check_heads()
        self._check_optional_sizes()
        self._check_token_ids()

    def _check_heads(self) -> None:
        divides = self.num_heads % self.num_kv_heads == 0
        require(divides, "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads={self.num_heads}")
        if self.family == "llama":
            require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number (rotary halves)")
        else:
            exact = self.num_heads * self.head_dim == self.hidden_size
            require(exact, "num_heads", self.num_heads, f"a divisor of hidden_size={self.hidden_size}")
            require(self.num_kv_heads == self.num_heads, "num_kv_heads", self.num_kv_heads, "num_heads, in OPT")

    def _check_optional_sizes(self) -> None:
        for name in ("sliding_window", "word_embed_proj_dim"):
            value: object = getattr(self, name)
            require(value is None or _is_int(value, 1), name, value, "a positive integer or null")
        if self.rope_scaling is not None and self.rope_scaling.kind == "dynamic":
            require(self.head_dim > 2, "head_dim", self.head_dim, "more than 2 with dynamic rope scaling")

    def _check_token_ids(self) -> None:
        for name, ids in (("bos_token_id", (self.bos_token_id,)), ("eos_token_ids", self.eos_token_ids)):
            for value in ids:
                require(value is None or _is_int(value, 0), name, value, "an id of at least 0, or null")

    @classmethod
    def from_hf(cls, config: dict[str, Any], generation_config: dict[str, Any] | None = None) -> Self:
        """The config that Hugging Face's config.json (and generation_config.json) describe.

        A missing key means what it means to transformers. Raises ValueError for an architecture or option that the
        models here do not run: nothing is ignored that would change a logit.
        """
        from models.hf_config import fields_from_hf

        return cls(**fields_from_hf(config, generation_config))

    @property
    def family(self) -> Literal["opt", "llama"]:
        """Which module runs this architecture."""
        return ARCHITECTURES[self.architecture]

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
        width, qkv = self.hidden_size, (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        out, ffn = self.num_heads * self.head_dim, self.intermediate_size
        head = 0 if self.tie_word_embeddings else self.vocab_size * self.embedding_dim
        layer = width * (qkv + out) + qkv * self.qkv_bias + width * self.o_bias
        if self.family == "opt":
            layer += 2 * width * ffn + (ffn + width) * self.mlp_bias + 4 * width
            extra = (self.max_position_embeddings + 2) * width + 2 * width * self.final_layer_norm
            if self.embedding_dim != width:
                extra += 2 * self.embedding_dim * width
        else:
            layer += 3 * width * ffn + (2 * ffn + width) * self.mlp_bias + 2 * width + 2 * self.head_dim * self.qk_norm
            extra = width
        return self.vocab_size * self.embedding_dim + head + self.num_layers * layer + extra

    def kv_bytes_per_token(self, itemsize: int, scale_bytes: int = 0) -> int:
        """Bytes that one token's keys and values take in all layers, at `itemsize` bytes an element.

        `scale_bytes`: of the scale that each head of a token has in a quantised pool.
        """
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * itemsize + scale_bytes)


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)
_FLAGS = (
    "tie_word_embeddings",
    "qkv_bias",
    "o_bias",
    "mlp_bias",
    "qk_norm",
    "do_layer_norm_before",
    "final_layer_norm",
)


def _opt(layers: int, width: int, heads: int, **options: Any) -> ModelConfig:
    return ModelConfig(
        architecture="OPTForCausalLM",
        vocab_size=50272,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        intermediate_size=4 * width,
        max_position_embeddings=2048,
        activation="relu",
        norm_eps=1e-5,
        tie_word_embeddings=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        bos_token_id=2,
        eos_token_ids=(2,),
        **options,
    )


def _llama(layers: int, width: int, ffn: int, heads: int, kv_heads: int, **options: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return ModelConfig(
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width // heads,
        intermediate_size=ffn,
        activation="silu",
        **(fields | options),
    )


_LLAMA_3: dict[str, Any] = {
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 128000,
    "eos_token_ids": (128001,),
}
_LLAMA_31: dict[str, Any] = {
    **_LLAMA_3,
    "max_position_embeddings": 131072,
    "rope_scaling": RopeScaling(kind="llama3", factor=8.0),
}
_SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}

PRESETS: dict[str, ModelConfig] = {
    "opt-125m": _opt(12, 768, 12),
    "opt-350m": _opt(24, 1024, 16, do_layer_norm_before=False, final_layer_norm=False, word_embed_proj_dim=512),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "opt-13b": _opt(40, 5120, 40),
    "opt-30b": _opt(48, 7168, 56),
    "opt-66b": _opt(64, 9216, 72),
    "opt-175b": _opt(96, 12288, 96),
    "llama-7b": _llama(32, 4096, 11008, 32, 32),
    "llama-13b": _llama(40, 5120, 13824, 40, 40),
    "llama-3-8b": _llama(32, 4096, 14336, 32, 8, **_LLAMA_3),
    "llama-3.1-8b": _llama(32, 4096, 14336, 32, 8, **_LLAMA_31),
    "llama-3-70b": _llama(80, 8192, 28672, 64, 8, **_LLAMA_3),
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, **_SMOLLM2),
    "smollm2-360m": _llama(32, 960, 2560, 15, 5, **_SMOLLM2),
}
