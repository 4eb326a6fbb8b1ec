"""The sampler in float64 NumPy, a row at a time and with sorts: what jpaged.runtime.sampling is checked against.

Written from the definition alone; it shares no code with the sampler.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.runtime.sampling.inputs import SamplingInputs, split_seed
from jpaged.runtime.sampling.lane_state import LaneState, init_lane_state
from jpaged.runtime.sampling.sampler import SampleOutputs, sample

FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Row:
    """One logits row's parameters, with the sequence behind it."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    sample_index: int = 0
    min_tokens: int = 0
    num_logprobs: int = -1
    prompt: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = ()
    bias: dict[int, float] = field(default_factory=dict)
    stop_ids: tuple[int, ...] = ()


def step_arrays(
    rows: list[Row],
    vocab_size: int,
    *,
    width: int | None = None,
    max_model_len: int = 64,
    lanes: list[int] | None = None,
) -> tuple[SamplingInputs, LaneState]:
    """The sampler's arguments for the rows, padded to `width` with zeros in the spare lane."""
    width = width or len(rows)
    lanes = lanes or list(range(len(rows)))
    state = init_lane_state(width, max_model_len, vocab_size, max_bias=8, max_stop_ids=4)
    # Whatever lies past a row's tokens must not be read as one: fill the table with a valid id.
    arrays = {name: np.array(value) for name, value in state._asdict().items()}
    arrays["history"][:] = vocab_size - 1
    columns: dict[str, list[float]] = {name: [] for name in SamplingInputs._fields}
    for row, lane in zip(rows, lanes, strict=True):
        tokens = row.prompt + row.outputs
        arrays["history"][lane, : len(tokens)] = tokens
        arrays["bias_ids"][lane, : len(row.bias)] = list(row.bias)
        arrays["bias_values"][lane, : len(row.bias)] = list(row.bias.values())
        arrays["stop_ids"][lane, : len(row.stop_ids)] = row.stop_ids
        high, low = split_seed(row.seed)
        said = {"lanes": lane, "seed_hi": high, "seed_lo": low, "output_position": len(row.outputs)}
        said |= {"prompt_len": len(row.prompt), "num_tokens": len(tokens)}
        for name, column in columns.items():
            column.append(said[name] if name in said else getattr(row, name))
    padding = width - len(rows)
    inputs = {
        name: jnp.asarray(
            column + [width if name == "lanes" else 0] * padding, jnp.float32 if name in FLOATS else jnp.int32
        )
        for name, column in columns.items()
    }
    return SamplingInputs(**inputs), LaneState(**{name: jnp.asarray(value) for name, value in arrays.items()})


VOCAB = 50
WIDTH = 8
sample_50 = jax.jit(functools.partial(sample, vocab_size=VOCAB, max_logprobs=20))


def run(logits: np.ndarray, rows: list[Row], lanes: list[int] | None = None) -> SampleOutputs:
    """What the sampler says of up to WIDTH rows over a vocabulary of VOCAB, all through one program."""
    inputs, state = step_arrays(rows, VOCAB, width=WIDTH, lanes=lanes)
    padded = np.full((WIDTH, logits.shape[1]), 7, logits.dtype)
    padded[: len(logits)] = logits
    out = jax.tree.map(np.asarray, sample_50(jnp.asarray(padded), inputs, state))
    return jax.tree.map(lambda x: x[: len(rows)], out)


def ruled_logits(logits: np.ndarray, row: Row) -> np.ndarray:
    """One row's logits after bias, min_tokens and the penalties."""
    out = logits.astype(np.float64).copy()
    for token, value in row.bias.items():
        if 0 <= token < out.size:
            out[token] += value
    if len(row.outputs) < row.min_tokens:
        out[[token for token in row.stop_ids if 0 <= token < out.size]] = -np.inf
    for token in set(row.prompt + row.outputs):
        out[token] = out[token] / row.repetition_penalty if out[token] > 0 else out[token] * row.repetition_penalty
    for token in set(row.outputs):
        out[token] -= row.frequency_penalty * row.outputs.count(token) + row.presence_penalty
    return out


def probabilities(logits: np.ndarray, row: Row) -> tuple[np.ndarray, float]:
    """The distribution that one row's token comes from, given ruled logits; and how near top_p or min_p is to a tie.

    The margin is the least distance of a cumulative probability from top_p, or of a probability from min_p's bound:
    below it the sampler may round either way.
    """
    if row.temperature < 1e-5:
        return np.eye(logits.size)[int(np.argmax(logits))], 1.0
    scaled = (logits - logits.max()) / row.temperature
    weights = np.exp(scaled)
    order = np.argsort(-scaled, kind="stable")  # equal values: lowest index first
    margin = 1.0
    kept = np.ones(logits.size, bool)
    if row.min_p > 0:
        margin = min(margin, float(np.min(np.abs(weights - row.min_p))))
        kept &= weights >= row.min_p
    if 0 < row.top_k < logits.size:
        kept[order[row.top_k :]] = False
    probs = np.where(kept, weights, 0) / np.sum(weights[kept])
    if row.top_p < 1:
        running = np.cumsum(probs[order])
        margin = min(margin, float(np.min(np.abs(running - row.top_p))))
        size = min(int(np.sum(running < row.top_p)) + 1, logits.size)
        kept[order[size:]] = False
        probs = np.where(kept, weights, 0) / np.sum(weights[kept])
    return probs, margin


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """One row's logprobs."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.sum(np.exp(shifted)))


def ranking(logits: np.ndarray) -> np.ndarray:
    """Token ids, likeliest first; equal ones by lowest id."""
    return np.argsort(-logits.astype(np.float64), kind="stable")
