"""The step, as pure functions: `copy_step`, `forward` from tokens to logits, `sample_step` from logits to ids.

A step is two programs because the sampler takes longer to compile than the model and depends on the number of logits
rows alone: a handful of samplers serve every shape, model and page size. Pool and lane state are donated; nothing goes
to the host; all that varies within a shape is data.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.sampling.inputs import SAMPLE_INTS, SamplingInputs
from jpaged.runtime.sampling.lane_state import LaneState, record_samples, record_tokens, resolve_token_ids
from jpaged.runtime.sampling.sampler import LogprobTable, SampleOutputs, prompt_logprobs, sample
from jpaged.runtime.step_shape import StepShape, unpack
from models.inputs import StepInputs
from pallas_kernels import KVPages, beside_attention, copy_pages

PROMPT_LOGPROB_ROWS = 16
"""Logits rows made at a time for prompt logprobs, so that a long chunk needs no logits of its own length."""


class ForwardOutputs(NamedTuple):
    """What `forward` leaves: float32 logits and the sampler's part of the packed ints, both for `sample_step`, and the
    prompt's logprobs (None where the shape has no prompt targets)."""

    logits: Float[Array, "Q V"]
    sample_ints: Int[Array, " S"]
    prompt: LogprobTable | None


def forward(
    params: Any,
    kv_pages: KVPages,
    state: LaneState,
    ints: Int[Array, " I"],
    *,
    model: Any,
    shape: StepShape,
    vocab_size: int,
    max_logprobs: int,
) -> tuple[KVPages, LaneState, ForwardOutputs]:
    """Write the step's tokens into their slots, attend, and give the logits of the rows that sample."""
    parts = unpack(ints, shape.int_shapes)
    token_ids = resolve_token_ids(parts["token_refs"], state)
    state = record_tokens(state, parts["token_lanes"], parts["positions"], token_ids)
    inputs = StepInputs(
        token_ids=token_ids,
        positions=parts["positions"],
        slots=parts["slots"],
        block_tables=parts["block_tables"],
        context_lens=parts["context_lens"],
        query_starts=parts.get("query_starts"),
        sample_rows=parts["sample_rows"],
    )
    variables = {"params": params}
    hidden, kv_pages = model.apply(variables, inputs, kv_pages, method="hidden_states")

    def compute_logits(rows: Float[Array, "n D"]) -> Float[Array, "n V"]:
        return model.apply(variables, rows, method="compute_logits")

    logits = compute_logits(hidden[inputs.sample_rows])
    prompt = None
    if not shape.decode:
        prompt = _prompt_logprobs(compute_logits, hidden, parts["prompt_targets"], vocab_size, max_logprobs)
    return kv_pages, state, ForwardOutputs(logits, ints[: len(SAMPLE_INTS) * shape.num_samples], prompt)


def sample_step(
    state: LaneState,
    logits: Float[Array, "Q V"],
    ints: Int[Array, " S"],
    floats: Float[Array, " F"],
    *,
    vocab_size: int,
    max_logprobs: int,
) -> tuple[LaneState, SampleOutputs]:
    """Sample one token for each logits row and remember it as the last id of its lane."""
    num_rows = logits.shape[0]
    sampling = SamplingInputs(*floats.reshape(-1, num_rows), *ints.reshape(-1, num_rows))
    sampled = sample(logits, sampling, state, vocab_size=vocab_size, max_logprobs=max_logprobs)
    valid = sampling.lanes < state.last_ids.shape[0] - 1
    return record_samples(state, sampling.lanes, sampled.token_ids, valid), sampled


def copy_step(kv_pages: KVPages, pairs: Int[Array, "2 R"], *, implementation: str | None = None) -> KVPages:
    """The pool with every page `pairs[0]` copied to `pairs[1]`; padding pairs are (0, 0)."""
    return copy_pages(kv_pages, pairs[0], pairs[1], implementation=beside_attention(implementation))


def _prompt_logprobs(
    compute_logits: Any, hidden: Float[Array, "T D"], targets: Int[Array, " T"], vocab_size: int, max_logprobs: int
) -> LogprobTable:
    """Logprobs of `targets` (negative: not asked for) after each packed token; nothing is computed if none is asked."""

    def block(part: tuple[Array, Array]) -> LogprobTable:
        rows, ids = part
        return prompt_logprobs(compute_logits(rows), jnp.maximum(ids, 0), max_logprobs, vocab_size=vocab_size)

    def compute() -> LogprobTable:
        size = PROMPT_LOGPROB_ROWS
        padding = -hidden.shape[0] % size
        rows = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, hidden.shape[1])
        ids = jnp.pad(targets, (0, padding)).reshape(-1, size)
        parts = lax.map(block, (rows, ids))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: hidden.shape[0]], parts)

    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))
    return lax.cond(jnp.any(targets >= 0), compute, lambda: nothing)
