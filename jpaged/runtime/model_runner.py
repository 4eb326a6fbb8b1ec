"""The device executor: one plan in, its ids out.

Lives here: ModelRunner: parameters, page pool and row state on the device, and the programs that use them.
Promises: one explicit transfer each way a step; pool and row state are donated to every program that changes them.
Must not know: scheduling, text.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config import CacheConfig, SchedulerConfig
from jpaged.core.output import (
    AdmittedSequence,
    PageCopy,
    PromptLogprobs,
    SchedulerOutput,
    StepResult,
    TokenLogprobs,
)
from jpaged.core.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS
from jpaged.runtime.memory import pool_dtype
from jpaged.runtime.packing import RowMirror
from jpaged.runtime.programs import ProgramTable
from jpaged.runtime.sampler import SampleOutputs, init_row_state, set_row
from jpaged.runtime.step import copy_step, draw, forward
from jpaged.runtime.step_shape import SAMPLE_FLOATS, SAMPLE_INTS, Buckets, StepShape
from jpaged.runtime.swap import HostPages
from models.config import ModelConfig
from pallas_kernels import kv_pages as pages


class ModelRunner:
    """Runs plans with a Flax model over a paged pool on one device. An Executor.

    `params` are on the host or the device; `eos_token_ids` bounds how many stop ids a row can have.
    """

    def __init__(
        self,
        model: Any,
        model_config: ModelConfig,
        params: Any,
        cache_config: CacheConfig,
        scheduler_config: SchedulerConfig,
        *,
        dtype: str,
        attention_implementation: str | None = None,
    ) -> None:
        assert cache_config.num_pages is not None, "the number of pages is resolved before the runner is built"
        self.vocab_size = model_config.vocab_size
        self.max_stop_ids = MAX_STOP_TOKEN_IDS + len(model_config.eos_token_ids)
        num_slots = scheduler_config.max_num_seqs
        num_pages = cache_config.num_pages + 1
        self.mirror = RowMirror(num_slots, scheduler_config.max_model_len, cache_config.page_size, num_pages)
        self.buckets = Buckets(num_slots, scheduler_config.max_num_batched_tokens, self.mirror.table_width)
        self.programs = ProgramTable()
        self.host_time = 0.0
        self._dirty_slots: set[int] = set()
        self._num_copies = num_slots
        self.params = jax.device_put(params)
        self._allocate_pool = functools.partial(
            pages.allocate,
            model_config.num_layers,
            num_pages,
            cache_config.page_size,
            model_config.num_kv_heads,
            model_config.head_dim,
            pool_dtype(cache_config.kv_cache_dtype, dtype),
        )
        self._init_state = functools.partial(
            init_row_state,
            num_slots,
            scheduler_config.max_model_len,
            self.vocab_size,
            max_bias=MAX_LOGIT_BIAS,
            max_stop_ids=self.max_stop_ids,
        )
        self.kv_pages = self._allocate_pool()
        self.state = self._init_state()
        num_host_pages = cache_config.num_host_pages
        self.host_pages = HostPages(self.kv_pages, self.programs) if num_host_pages else None
        sizes = {"vocab_size": self.vocab_size, "max_logprobs": min(MAX_LOGPROBS, self.vocab_size)}
        self._forward = jax.jit(
            functools.partial(forward, model=model, **sizes),
            static_argnames=("shape",),
            donate_argnames=("kv_pages", "state"),
        )
        self._draw = jax.jit(functools.partial(draw, **sizes), donate_argnames=("state",))
        copy = functools.partial(copy_step, implementation=attention_implementation)
        self._copy = jax.jit(copy, donate_argnames=("kv_pages",))
        self._set_row = jax.jit(set_row, donate_argnames=("state",))

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Run the plan and wait for its ids.

        If it fails, pool and row state may be gone with the program they were donated to: both start anew, empty.
        """
        try:
            return self._execute(plan)
        except BaseException:
            self.kv_pages = self._allocate_pool()
            self.state = self._init_state()
            self._dirty_slots.clear()
            raise

    def _execute(self, plan: SchedulerOutput) -> StepResult:
        start = time.perf_counter()
        for sequence in plan.admitted:
            self._admit(sequence)
        for grant in plan.grants:
            self.mirror.grant(grant)
        self._move_pages(plan)
        shape = self.buckets.borrow(self.mirror.fit(plan, self.buckets), self.programs)
        # A fresh host buffer every step: device_put may alias it for as long as the step runs.
        ints, floats = jax.device_put(self.mirror.pack(plan, shape))
        packed = time.perf_counter()
        forward_program, draw_program = self._forward_program(shape), self._draw_program(shape.num_samples)
        self.kv_pages, self.state, outputs = forward_program(self.params, self.kv_pages, self.state, ints)
        self.state, sampled = draw_program(self.state, outputs.logits, outputs.sample_ints, floats)
        self.host_time += packed - start
        token_ids = jax.device_get(sampled.token_ids)
        fetched = time.perf_counter()
        result = self._result(plan, token_ids, sampled, outputs.prompt)
        self.host_time += time.perf_counter() - fetched
        return result

    def warm_up(self) -> list[StepShape]:
        """Compile every program the engine can need, and return the step shapes; later steps compile nothing."""
        for shape in self.buckets.all():
            self._forward_program(shape)
            self._draw_program(shape.num_samples)
        self._copy_program()
        self._set_row_program()
        if self.host_pages is not None:
            self.host_pages.read_program(self.kv_pages)
            self.host_pages.write_program(self.kv_pages)
        return self.buckets.all()

    def _forward_program(self, shape: StepShape) -> Any:
        def lower() -> Any:
            ints = jax.ShapeDtypeStruct((shape.num_ints,), jnp.int32)
            return self._forward.lower(self.params, self.kv_pages, self.state, ints, shape=shape)

        return self.programs.get(shape, lower)

    def _draw_program(self, num_samples: int) -> Any:
        def lower() -> Any:
            logits = jax.ShapeDtypeStruct((num_samples, self.vocab_size), jnp.float32)
            ints = jax.ShapeDtypeStruct((len(SAMPLE_INTS) * num_samples,), jnp.int32)
            floats = jax.ShapeDtypeStruct((len(SAMPLE_FLOATS) * num_samples,), jnp.float32)
            return self._draw.lower(self.state, logits, ints, floats)

        return self.programs.get(f"draw[Q={num_samples}]", lower)

    def _copy_program(self) -> Any:
        pairs = jax.ShapeDtypeStruct((2, self._num_copies), jnp.int32)
        return self.programs.get("copy_pages", lambda: self._copy.lower(self.kv_pages, pairs))

    def _set_row_program(self) -> Any:
        def lower() -> Any:
            scalar = jax.ShapeDtypeStruct((), jnp.int32)
            history, bias, stops = (jax.ShapeDtypeStruct((n,), jnp.int32) for n in self._row_widths)
            values = jax.ShapeDtypeStruct((MAX_LOGIT_BIAS,), jnp.float32)
            return self._set_row.lower(self.state, scalar, history, bias, values, stops)

        return self.programs.get("set_row", lower)

    @property
    def _row_widths(self) -> tuple[int, int, int]:
        return self.mirror.token_ids.shape[1], MAX_LOGIT_BIAS, self.max_stop_ids

    def _admit(self, sequence: AdmittedSequence) -> None:
        """Give a row slot to a sequence, on the device too where its sampling rules need state there."""
        self.mirror.admit(sequence)
        slot, params = sequence.row_slot, sequence.params
        has_rules = bool(params.logit_bias) or params.min_tokens > 0 or params.has_penalties
        if not has_rules and slot not in self._dirty_slots:
            return
        history_len, bias_len, stop_len = self._row_widths
        history = np.zeros(history_len, np.int32)
        history[: len(sequence.token_ids)] = sequence.token_ids
        bias_ids = np.full(bias_len, self.vocab_size, np.int32)
        bias_values = np.zeros(bias_len, np.float32)
        for i, (token_id, value) in enumerate((params.logit_bias or {}).items()):
            bias_ids[i], bias_values[i] = token_id, value
        stop_ids = np.full(stop_len, self.vocab_size, np.int32)
        if params.min_tokens:
            stop_ids[: len(sequence.stop_ids)] = sequence.stop_ids
        row = jax.device_put((np.int32(slot), history, bias_ids, bias_values, stop_ids))
        self.state = self._set_row_program()(self.state, *row)
        (self._dirty_slots.add if has_rules else self._dirty_slots.discard)(slot)

    def _move_pages(self, plan: SchedulerOutput) -> None:
        # In this order: a page that goes out may come in again as another's, and be the target of a copy.
        if plan.swapped_out or plan.swapped_in:
            assert self.host_pages is not None, "a plan swaps pages, and there is no host pool"
            self.host_pages.take(self.kv_pages, plan.swapped_out)
            self.kv_pages = self.host_pages.give(self.kv_pages, plan.swapped_in)
        if plan.copies:
            self._run_copies(plan.copies)

    def _run_copies(self, copies: tuple[PageCopy, ...]) -> None:
        sources = {copy.source for copy in copies}
        assert not any(copy.target in sources for copy in copies), "a page is both source and target of a step's copies"
        for first in range(0, len(copies), self._num_copies):
            pairs = np.zeros((2, self._num_copies), np.int32)
            part = copies[first : first + self._num_copies]
            pairs[:, : len(part)] = np.array(part, np.int32).T
            self.kv_pages = self._copy_program()(self.kv_pages, jax.device_put(pairs))

    def _result(self, plan: SchedulerOutput, token_ids: np.ndarray, sampled: SampleOutputs, prompt: Any) -> StepResult:
        ids = tuple(token_ids[: len(plan.samples)].tolist())
        wanted = [int(self.mirror.ints["num_logprobs"][sample.row_slot]) for sample in plan.samples]
        logprobs = None
        if any(n >= 0 for n in wanted):
            table = jax.device_get(sampled)
            logprobs = tuple(_token_logprobs(table, i, n) if n >= 0 else None for i, n in enumerate(wanted))
        return StepResult(ids, logprobs, self._prompt_results(plan, prompt))

    def _prompt_results(self, plan: SchedulerOutput, prompt: Any) -> tuple[PromptLogprobs, ...]:
        counts = self.mirror.num_prompt_logprobs
        if prompt is None or not any(counts[row.row_slot] >= 0 for row in plan.rows):
            return ()
        table = jax.device_get(prompt)
        parts: list[PromptLogprobs] = []
        first = 0
        for row in plan.rows:
            n = int(counts[row.row_slot])
            last = min(row.start + row.num_tokens, int(self.mirror.ints["prompt_len"][row.row_slot]) - 1)
            if n >= 0 and last > row.start:
                entries = tuple(_token_logprobs(table, first + i, n) for i in range(last - row.start))
                parts.append(PromptLogprobs(row.row_slot, row.start + 1, entries))
            first += row.num_tokens
        return tuple(parts)


def _token_logprobs(table: Any, i: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(
        logprob=float(table.logprobs[i]),
        rank=int(table.ranks[i]),
        top_ids=tuple(table.top_ids[i, :count].tolist()),
        top_logprobs=tuple(table.top_logprobs[i, :count].tolist()),
    )
