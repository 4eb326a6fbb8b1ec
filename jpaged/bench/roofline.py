"""How far the parts of a step are from what the machine can do.

The least time is the larger of operations over the matrix rate and bytes over the memory rate; what padding adds counts
as loss. Parts are timed in turns, so that what disturbs the machine disturbs all of them.
"""

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.bench.kernels_timing import Run, alternate, compiled_run, donating_run
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.plan import AdmittedSequence, PageGrant, Sample, ScheduledSequence, SchedulerOutput
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.runtime.input_batch import InputBatch
from jpaged.runtime.sampling.inputs import SAMPLE_INTS
from jpaged.runtime.sampling.lane_state import init_lane_state
from jpaged.runtime.step import sample_step
from jpaged.runtime.step_shape import unpack
from jpaged.serving.llm import LLM
from models.attention import attend_through_pages
from models.inputs import StepInputs
from pallas_kernels import allocate

PARTS = ("layers", "products", "attention", "head", "sampling")
"""Parts of a step, one after another; "products", the linear maps alone, are what "layers" can come down to."""

GREEDY = SamplingParams(temperature=0.0)
_MATRIX = 1536
_STREAM_BYTES = 256 * 2**20


class Work(NamedTuple):
    """Operations (a multiplication and an addition are two) and bytes to and from memory."""

    operations: float
    bytes: float


def total_of(works: Iterable[Work]) -> Work:
    """The sum of some works."""
    return Work(*map(sum, zip(*works, strict=True)))


def parts_work(
    llm: LLM, *, tokens: int, pairs: int, kv_tokens: int, samples: int, num_steps: int = 1
) -> dict[str, Work]:
    """What each part has to do in `num_steps` steps that compute `tokens` and sample `samples`, without padding.

    `pairs` are those of a query and a key that it sees, `kv_tokens` those whose keys and values go to or from memory.
    """
    model, itemsize, pool = llm.config.model, jnp.dtype(llm.config.dtype).itemsize, llm.runner.kv_pages
    weights = sum(leaf.size for leaf in jax.tree.leaves(llm.runner.params["layers"]))
    head = model.vocab_size * model.embedding_dim
    logits = 4 * samples * model.vocab_size
    scores = model.num_layers * model.num_heads * model.head_dim * pairs
    return {
        "layers": Work(2 * weights * tokens, num_steps * weights * itemsize),
        "attention": Work(4 * scores, pool.nbytes / pool.num_slots * kv_tokens),
        "head": Work(2 * head * samples, num_steps * head * itemsize + logits),
        "sampling": Work(0, logits),
    }


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
    array = jnp.ones((_STREAM_BYTES // dtype.itemsize // _MATRIX, _MATRIX), dtype)
    size, product = array.nbytes, partial(jnp.einsum, "ti,oi->to")
    # The pass that changes the array has one of its own: it is donated.
    runs = {
        "square": compiled_run(product, a, a),
        "read": compiled_run(product, a[:2], array),
        "change": donating_run([jnp.ones_like(array)], lambda array: (-array, None)),
    }
    times = alternate(runs, repeats=repeats)
    # A rate that was reached is a rate that the machine has.
    bytes_rate = max(size / times["read"].seconds_low, 2 * size / times["change"].seconds_low)
    return Rates(2 * _MATRIX**3 / times["square"].seconds_low, bytes_rate)


class StepParts:
    """One step of an engine with its model, taken apart: `lengths[i]` tokens of context, `counts[i]` of them new."""

    def __init__(self, llm: LLM, lengths: list[int], counts: list[int]) -> None:
        self.llm, self.lengths, self.counts = llm, lengths, counts
        config, model = llm.config, llm.config.model
        size = config.cache.page_size
        held = [pages_for(length, size) for length in lengths]
        pool_dtype = llm.runner.kv_pages.k.dtype
        self.pool = allocate(model.num_layers, sum(held) + 1, size, model.num_kv_heads, model.head_dim, pool_dtype)
        batch = InputBatch(len(lengths), config.scheduler.max_model_len, size, self.pool.num_pages)
        for lane, (length, last) in enumerate(zip(lengths, accumulate(held), strict=True)):
            batch.admit(AdmittedSequence(lane, str(lane), 0, (0,) * length, length, GREEDY, 0, ()))
            batch.grant(PageGrant(lane, 0, tuple(range(last - held[lane] + 1, last + 1))))
        rows = [ScheduledSequence(i, length - n, n) for i, (length, n) in enumerate(zip(lengths, counts, strict=True))]
        plan = SchedulerOutput(0, tuple(rows), tuple(Sample(i, i) for i in range(len(rows))))
        self.shape = batch.fit(plan, llm.runner.buckets)
        self.packed = batch.pack(plan, self.shape)

    def seconds(self, repeats: int) -> dict[str, float]:
        """What each part, and the whole, takes: the least disturbed of the samples."""
        times = {name: timing.seconds_low for name, timing in alternate(self._runs(), repeats=repeats).items()}
        times["layers"] = max(times.pop("hidden") - times["attention"], 0.0)
        return {name: times[name] for name in PARTS} | {"whole": _whole(times)}

    def report(self, rates: Rates, seconds: dict[str, float]) -> dict[str, Any]:
        """For each part, and the whole: milliseconds, the least it needs, and the share of the one in the other."""
        works = self.works()
        works |= {"whole": total_of(works.values()), "products": works["layers"]}
        # A whole cannot be better than its parts one after another.
        least = {name: rates.least_seconds(work) for name, work in works.items()}
        least["whole"] = _whole(least)
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
        pairs = sum(n * (length - n) + n * (n + 1) // 2 for length, n in zip(self.lengths, self.counts, strict=True))
        kv_tokens = sum(self.lengths)
        return parts_work(
            self.llm, tokens=sum(self.counts), pairs=pairs, kv_tokens=kv_tokens, samples=len(self.lengths)
        )

    def _runs(self) -> dict[str, Run]:
        llm, model, shape = self.llm, self.llm.runner.model, self.shape
        params, config = llm.runner.params, llm.config.model
        ints, floats = self.packed
        parts = unpack(ints, shape.int_shapes)
        inputs = StepInputs(parts["token_refs"], *map(parts.get, StepInputs._fields[1:]))  # pyright: ignore[reportArgumentType]
        inputs = jax.tree.map(jnp.asarray, inputs)
        rng = np.random.default_rng(0)

        def normal(*size: int) -> Any:
            return jnp.asarray(rng.standard_normal(size), llm.config.dtype)

        def hidden(kv: Any, params: Any, inputs: Any) -> Any:
            return model.apply({"params": params}, inputs, kv, method="hidden_states")[::-1]

        def logits(params: Any, rows: Any) -> Any:
            return model.apply({"params": params}, rows, method="compute_logits")

        heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        qkv = [normal(shape.num_tokens, n, config.head_dim) for n in heads]
        head = compiled_run(logits, params, normal(shape.num_samples, config.hidden_size))
        sampler = partial(sample_step, vocab_size=config.vocab_size, max_logprobs=0)
        state = init_lane_state(len(self.lengths), llm.config.scheduler.max_model_len, config.vocab_size)
        held = [self.pool]
        return {
            "hidden": donating_run(held, hidden, params, inputs),
            "products": compiled_run(self._products, params["layers"]),
            "attention": donating_run(held, self._attention, *qkv, inputs),
            "head": head,
            "sampling": donating_run([state], sampler, head(), ints[: len(SAMPLE_INTS) * shape.num_samples], floats),
        }

    def _products(self, layers: Any) -> Any:
        """The linear maps of all layers alone, for as many rows as the step has: the floor of "layers"."""

        def layer(seen: Any, params: Any) -> Any:
            for path, kernel in jax.tree.leaves_with_path(params):
                if path[-1].key == "kernel":
                    weights = kernel.reshape(-1, kernel.shape[-1])
                    rows = jnp.ones((self.shape.num_tokens, weights.shape[1]), seen.dtype) * seen
                    # Every output has a say, and a maximum cannot be moved before the product.
                    seen = jnp.einsum("ti,oi->to", rows, weights).max()
            return seen, None

        return jax.lax.scan(layer, jnp.ones((), self.llm.config.dtype), layers)[0]

    def _attention(self, kv: Any, q: Any, k: Any, v: Any, inputs: StepInputs) -> Any:
        """Attention and the writes of all layers, nothing else of the model."""
        config, options = self.llm.config.model, self.llm.runner.model.options

        def layer(carry: Any, number: Any) -> Any:
            kv, q = carry
            out, kv = attend_through_pages(q, k, v, inputs, kv, number, options, window=config.sliding_window)
            return (kv, out), None

        return jax.lax.scan(layer, (kv, q), jnp.arange(config.num_layers))[0]


def _whole(seconds: dict[str, float]) -> float:
    """The sum of the parts that come one after another."""
    return sum(seconds[name] for name in PARTS if name != "products")
