"""How far the parts of a step are from what the machine can do.

The least time is the larger of operations over the matrix rate and bytes over the memory rate; what padding adds counts
as loss. Parts are timed in turns, so that what disturbs the machine disturbs all of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.bench.kernels_timing import alternate
from jpaged.runtime.sampling.inputs import SAMPLE_FLOATS, SAMPLE_INTS
from jpaged.runtime.sampling.lane_state import init_lane_state
from jpaged.runtime.step import sample_step
from jpaged.serving.llm import LLM
from models.attention import attend_through_pages
from models.inputs import StepInputs
from models.layers import ModelOptions
from pallas_kernels import kv_pages as pages

PARTS = ("layers", "products", "attention", "head", "sampling")
"""Parts of a step, one after another; "products", the linear maps alone, are what "layers" can come down to."""

_MATRIX = 1536
_STREAM_BYTES = 256 * 2**20


class Work(NamedTuple):
    """Operations (a multiplication and an addition are two) and bytes to and from memory."""

    operations: float
    bytes: float


class Rates(NamedTuple):
    """Operations per second of a large matrix product, and bytes per second of a pass over a large array."""

    operations: float
    bytes: float

    def least_seconds(self, work: Work) -> float:
        """The time that the work needs at least."""
        return max(work.operations / self.operations, work.bytes / self.bytes)


def roofline(
    llm: LLM, *, batch: int = 16, context: int = 256, prompt_tokens: int = 256, repeats: int = 7
) -> dict[str, Any]:
    """Rates of the machine, and for a decode step and a prefill step what each part takes and needs at least.

    A decode step has `batch` rows of `context` tokens, a prefill step one prompt of `prompt_tokens`. Raises ValueError
    if they do not fit the engine.
    """
    if llm.runner.mesh.shards > 1:
        raise ValueError(f"tensor_parallel_size={llm.runner.mesh.shards}: the roofline is of one device; leave it at 1")
    limits = llm.config.scheduler
    for name, value, most in (
        ("batch", batch, limits.max_num_seqs),
        ("context", context, limits.max_model_len),
        ("prompt_tokens", prompt_tokens, min(limits.max_num_batched_tokens, limits.max_model_len)),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{name}={value}: this engine's steps have 1 to {most}; change it, or the engine's limits")
    steps = {
        "decode": StepParts(llm, [context] * batch, [1] * batch),
        "prefill": StepParts(llm, [prompt_tokens], [prompt_tokens]),
    }
    # Rates are taken before, between and after, and the best count: other work on the machine comes and goes.
    seen = [_both_rates(repeats)]
    times: dict[str, dict[str, float]] = {}
    for name, step in steps.items():
        times[name] = step.seconds(repeats)
        seen.append(_both_rates(repeats))
    rates = {name: Rates(*map(max, *(found[name] for found in seen))) for name in seen[0]}
    own = rates.get(llm.config.dtype, rates["float32"])
    return {
        "batch": batch,
        "context": context,
        "prompt_tokens": prompt_tokens,
        "rates": {name: rate._asdict() for name, rate in rates.items()},
        **{name: step.report(own, times[name]) for name, step in steps.items()},
    }


def _both_rates(repeats: int) -> dict[str, Rates]:
    return {name: machine_rates(jnp.dtype(name), repeats) for name in ("float32", "bfloat16")}


def machine_rates(dtype: Any, repeats: int = 7) -> Rates:
    """What XLA reaches on this machine with `dtype`: a product of large matrices, and the faster of two passes over a
    large array, one that reads it as the weights of two rows, one that changes it in place."""
    a = jnp.ones((_MATRIX, _MATRIX), dtype)
    array = [jnp.ones((_STREAM_BYTES // dtype.itemsize // _MATRIX, _MATRIX), dtype)]
    size = array[0].nbytes
    product = jax.jit(lambda x, w: jnp.einsum("ti,oi->to", x, w))
    square, rows = product.lower(a, a).compile(), product.lower(a[:2], array[0]).compile()
    negate = jax.jit(jnp.negative, donate_argnums=(0,)).lower(array[0]).compile()

    def change() -> Any:
        array[0] = negate(array[0])
        return array[0]

    runs = {"square": lambda: square(a, a), "read": lambda: rows(a[:2], array[0]), "change": change}
    times = alternate(runs, repeats=repeats)
    # A rate that was reached is a rate that the machine has.
    bytes_rate = max(size / times["read"].low, 2 * size / times["change"].low)
    return Rates(2 * _MATRIX**3 / times["square"].low, bytes_rate)


class StepParts:
    """One step of an engine with its model, taken apart: `lengths[i]` tokens of context, `counts[i]` of them new."""

    def __init__(self, llm: LLM, lengths: list[int], counts: list[int]) -> None:
        self.llm, self.lengths, self.counts = llm, lengths, counts
        config = llm.config
        self.dtype = jnp.dtype(config.dtype)
        shape = llm.runner.buckets.fit(
            num_rows=len(lengths), num_tokens=sum(counts), num_samples=len(lengths), decode=max(counts) == 1
        )
        self.shape = shape
        size = config.cache.page_size
        needed = sum(-(-length // size) for length in lengths) + 1
        pool_dtype = llm.runner.kv_pages.k.dtype
        model = config.model
        self.pool = pages.allocate(model.num_layers, needed, size, model.num_kv_heads, model.head_dim, pool_dtype)
        self.inputs = self._inputs(size)
        self.rng = np.random.default_rng(0)

    def _inputs(self, page_size: int) -> StepInputs:
        shape = self.shape
        tables = np.zeros((shape.num_rows, shape.table_width), np.int32)
        token_ids, positions, slots, sample_rows = (
            np.zeros(n, np.int32) for n in (shape.num_tokens, shape.num_tokens, shape.num_tokens, shape.num_samples)
        )
        lengths, starts = np.zeros(shape.num_rows, np.int32), np.zeros(shape.num_rows + 1, np.int32)
        slots[:] = self.pool.num_slots + np.arange(shape.num_tokens)
        page, first = 1, 0
        for i, (length, count) in enumerate(zip(self.lengths, self.counts, strict=True)):
            held = -(-length // page_size)
            tables[i, :held] = np.arange(page, page + held)
            position = np.arange(length - count, length)
            here = slice(first, first + count)
            positions[here] = position
            slots[here] = tables[i, position // page_size] * page_size + position % page_size
            lengths[i], sample_rows[i] = length, first + count - 1
            page, first = page + held, first + count
            starts[i + 1 :] = first
        return StepInputs(
            token_ids=jnp.asarray(token_ids),
            positions=jnp.asarray(positions),
            slots=jnp.asarray(slots),
            block_tables=jnp.asarray(tables),
            context_lens=jnp.asarray(lengths),
            query_starts=None if shape.decode else jnp.asarray(starts),
            sample_rows=jnp.asarray(sample_rows),
        )

    def seconds(self, repeats: int) -> dict[str, float]:
        """What each part, and the whole, takes: the least disturbed of the samples."""
        times = {name: timing.low for name, timing in alternate(self._runs(), repeats=repeats).items()}
        times["layers"] = max(times.pop("hidden") - times["attention"], 0.0)
        seconds = {name: times[name] for name in PARTS}
        return seconds | {"whole": sum(seconds[name] for name in PARTS if name != "products")}

    def report(self, rates: Rates, seconds: dict[str, float]) -> dict[str, Any]:
        """For each part, and the whole: milliseconds, the least it needs, and the share of the one in the other."""
        works = self.works()
        works["whole"] = Work(sum(w.operations for w in works.values()), sum(w.bytes for w in works.values()))
        works["products"] = works["layers"]
        # A whole cannot be better than its parts one after another.
        least = {name: rates.least_seconds(work) for name, work in works.items()}
        least["whole"] = sum(least[name] for name in PARTS if name != "products")
        return {
            name: {
                "ms": 1e3 * taken,
                "least_ms": 1e3 * least[name],
                "share_of_bound": least[name] / taken if taken else None,
                "gflops": works[name].operations / taken / 1e9 if taken else None,
                "gbytes_per_second": works[name].bytes / taken / 1e9 if taken else None,
            }
            for name, taken in seconds.items()
        }

    def works(self) -> dict[str, Work]:
        """What each part has to do, padding left out."""
        model, itemsize = self.llm.config.model, self.dtype.itemsize
        tokens, rows = sum(self.counts), len(self.lengths)
        weights = sum(leaf.size for leaf in jax.tree.leaves(self.llm.runner.params["layers"]))
        pairs = sum(n * (length - n) + n * (n + 1) // 2 for length, n in zip(self.lengths, self.counts, strict=True))
        kv_bytes = self.pool.nbytes / self.pool.num_slots * sum(self.lengths)
        scores = model.num_layers * model.num_heads * model.head_dim * pairs
        head = model.vocab_size * model.embedding_dim
        return {
            "layers": Work(2 * weights * tokens, weights * itemsize),
            "attention": Work(4 * scores, kv_bytes),
            "head": Work(2 * head * rows, head * itemsize + 4 * rows * model.vocab_size),
            "sampling": Work(0, 4 * rows * model.vocab_size),
        }

    def _runs(self) -> dict[str, Callable[[], Any]]:
        runner, inputs, shape = self.llm.runner, self.inputs, self.shape
        model, variables = runner.model, {"params": runner.params}
        held = [self.pool]

        def hidden(variables: Any, inputs: Any, kv: Any) -> Any:
            return model.apply(variables, inputs, kv, method="hidden_states")

        def logits(variables: Any, rows: Any) -> Any:
            return model.apply(variables, rows, method="compute_logits")

        rows = jnp.asarray(self.rng.standard_normal((shape.num_samples, self.llm.config.model.hidden_size)), self.dtype)
        whole = jax.jit(hidden, donate_argnums=(2,)).lower(variables, inputs, held[0]).compile()
        queries = self._queries()
        attend = jax.jit(self._attention(), donate_argnums=(4,)).lower(*queries, inputs, held[0]).compile()
        head = jax.jit(logits).lower(variables, rows).compile()
        layers = runner.params["layers"]
        multiply = jax.jit(self._products).lower(layers).compile()

        def run_hidden() -> Any:
            out, held[0] = whole(variables, inputs, held[0])
            return out

        def run_attention() -> Any:
            out, held[0] = attend(*queries, inputs, held[0])
            return out

        return {
            "hidden": run_hidden,
            "products": lambda: multiply(layers),
            "attention": run_attention,
            "head": lambda: head(variables, rows),
            "sampling": self._sampling(head(variables, rows)),
        }

    def _products(self, layers: Any) -> Any:
        """The linear maps of all layers alone, for as many rows as the step has: the floor of "layers"."""

        def layer(seen: Any, params: Any) -> Any:
            for path, kernel in jax.tree.leaves_with_path(params):
                if path[-1].key == "kernel":
                    weights = kernel.reshape(-1, kernel.shape[-1])
                    rows = jnp.ones((self.shape.num_tokens, weights.shape[1]), self.dtype) * seen
                    # Every output has a say, and a maximum cannot be moved before the product.
                    seen = jnp.einsum("ti,oi->to", rows, weights).max()
            return seen, None

        return jax.lax.scan(layer, jnp.ones((), self.dtype), layers)[0]

    def _sampling(self, logits: Any) -> Callable[[], Any]:
        """Greedy draws of every row."""
        count = self.shape.num_samples
        ints = {name: jnp.zeros(count, jnp.int32) for name in SAMPLE_INTS}
        ints |= {"lanes": jnp.arange(count, dtype=jnp.int32), "num_logprobs": jnp.full(count, -1, jnp.int32)}
        floats = {name: jnp.full(count, float(name in ("top_p", "repetition_penalty"))) for name in SAMPLE_FLOATS}
        packed = jnp.concatenate([ints[name] for name in SAMPLE_INTS])
        packed_floats = jnp.concatenate([floats[name] for name in SAMPLE_FLOATS])
        vocab_size = self.llm.config.model.vocab_size
        state = [init_lane_state(count, self.llm.config.scheduler.max_model_len, vocab_size)]
        program = jax.jit(partial(sample_step, vocab_size=vocab_size, max_logprobs=0), donate_argnums=(0,))
        compiled = program.lower(state[0], logits, packed, packed_floats).compile()

        def run() -> Any:
            state[0], sampled = compiled(state[0], logits, packed, packed_floats)
            return sampled.token_ids

        return run

    def _queries(self) -> tuple[Any, Any, Any]:
        model, tokens = self.llm.config.model, self.shape.num_tokens
        heads = model.num_heads, model.num_kv_heads, model.num_kv_heads
        return tuple(  # pyright: ignore[reportReturnType]
            jnp.asarray(self.rng.standard_normal((tokens, n, model.head_dim)), self.dtype) for n in heads
        )

    def _attention(self) -> Callable[..., Any]:
        """Attention and the writes of all layers, nothing else of the model."""
        config = self.llm.config
        options = ModelOptions(self.dtype, config.scheduler.max_model_len, self.llm.attention_implementation)
        window = config.model.sliding_window

        def attention(q: Any, k: Any, v: Any, inputs: StepInputs, kv: Any) -> Any:
            def layer(carry: Any, number: Any) -> Any:
                out, kv = attend_through_pages(carry[0], k, v, inputs, carry[1], number, options, window=window)
                return (out, kv), None

            return jax.lax.scan(layer, (q, kv), jnp.arange(config.model.num_layers))[0]

        return attention
