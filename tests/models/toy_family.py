"""A model family of one's own in one file: the decoder, how its config.json reads, its tensors, and the record.

The toy's attention and MLP stand side by side behind one norm; the MLP is a squared ReLU without a gate. A test
imports this file, which makes the family known, and serves a checkpoint of it.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from safetensors.numpy import save_file

from models import Architecture, Family
from models.decoder import Attention, Decoder
from models.layers import Linear, Part, RMSNorm, rotary_angles, rotary_frequencies
from models.places import attention, embedding_and_head, linear, norm


class Block(Part):
    @nn.compact
    def __call__(self, carry, layer, shared):
        x, kv_pages = carry
        config, dtype = self.config, self.options.dtype
        normed = RMSNorm(config.norm_eps, dtype, name="norm")(x)
        attended, kv_pages = Attention(config, self.options, name="attention")(normed, kv_pages, layer, *shared)
        inner = jnp.square(jax.nn.relu(Linear((config.intermediate_size,), dtype, name="up")(normed)))
        return (x + attended + Linear((config.hidden_size,), dtype, name="down")(inner), kv_pages), None


class Toy(Decoder):
    def setup(self):
        super().setup()
        self.layers = self.stack(Block)

    def hidden_states(self, inputs, kv_pages):
        angles = rotary_angles(inputs.positions, rotary_frequencies(self.config, self.options.max_model_len))
        return self.run_layers(self.embed(inputs.token_ids), kv_pages, (inputs, angles))


def read(config):
    width, heads = config["n_embd"], config["n_head"]
    return {
        "hidden_size": width,
        "num_layers": config["n_layer"],
        "num_heads": heads,
        "num_kv_heads": config.get("n_head_kv", heads),
        "head_dim": width // heads,
        "intermediate_size": 3 * width,
        "max_position_embeddings": config.get("n_positions", 64),
        "activation": "relu",
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }


def tensors(config):
    width, ffn = config.hidden_size, config.intermediate_size
    yield from embedding_and_head("wte", config)
    yield from norm("h.{}.ln", "layers/norm", width)
    yield from attention("h.{}.attn", "dense", config)
    yield from linear("h.{}.up", "layers/up", (ffn, width), split="out")
    yield from linear("h.{}.down", "layers/down", (width, ffn), split="in")


TOY = Family(
    name="toy",
    module=Toy,
    architectures={"ToyForCausalLM": Architecture(model_type="toy", read=read, vocab_size=97, token_ids=(1, 2))},
    tensors=tensors,
    presets={"toy-nano": {"model_type": "toy", "n_embd": 32, "n_head": 4, "n_head_kv": 2, "n_layer": 2}},
)


def write_checkpoint(folder: Path) -> Path:
    """A folder with config.json and model.safetensors of random weights, under the names that Toy's authors chose."""
    config = {"architectures": ["ToyForCausalLM"], **TOY.presets["toy-nano"]}
    width, kv, layers = 32, 16, 2
    shapes = {"wte.weight": (97, width)}
    for i in range(layers):
        shapes |= {f"h.{i}.ln.weight": (width,), f"h.{i}.attn.q_proj.weight": (width, width)}
        shapes |= {f"h.{i}.attn.k_proj.weight": (kv, width), f"h.{i}.attn.v_proj.weight": (kv, width)}
        shapes |= {f"h.{i}.attn.dense.weight": (width, width)}
        shapes |= {f"h.{i}.up.weight": (3 * width, width), f"h.{i}.down.weight": (width, 3 * width)}
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    return folder


def dense_logits(tensors: dict[str, np.ndarray], ids: Any) -> np.ndarray:
    """Logits `[T, V]` of every position in NumPy and float64: no pages, no cache, no fused arrays."""
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = t["wte.weight"][np.asarray(ids)]
    length, angles = len(x), np.outer(np.arange(len(x)), 10_000.0 ** -(np.arange(0, 8, 2) / 8))

    def heads(rows: np.ndarray, turned: bool) -> np.ndarray:
        split = np.repeat(rows.reshape(length, -1, 8), 4 // (rows.shape[1] // 8), axis=1)
        if not turned:
            return split
        a, b, cos, sin = split[..., :4], split[..., 4:], np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    for i in range(2):
        normed = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5) * t[f"h.{i}.ln.weight"]
        q, k, v = (normed @ t[f"h.{i}.attn.{part}_proj.weight"].T for part in "qkv")
        scores = np.einsum("qnh,knh->nqk", heads(q, True), heads(k, True)) / np.sqrt(8)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("nqk,knh->qnh", weights / weights.sum(-1, keepdims=True), heads(v, False))
        inner = np.maximum(normed @ t[f"h.{i}.up.weight"].T, 0) ** 2
        x = x + out.reshape(length, -1) @ t[f"h.{i}.attn.dense.weight"].T + inner @ t[f"h.{i}.down.weight"].T
    return x @ t["wte.weight"].T
