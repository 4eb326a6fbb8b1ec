"""The device executor: one plan in, its ids out.

Parameters, page pool and lane state live on the device. There is one explicit transfer each way per step; pool and lane
state are donated to every program that changes them; a step may be submitted while the one before it runs.
"""

import functools
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config.options import CacheConfig, ParallelConfig, SchedulerConfig
from jpaged.core.plan import AdmittedSequence, SchedulerOutput, StepResult
from jpaged.core.requests.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS
from jpaged.runtime.buckets import Buckets
from jpaged.runtime.input_batch import InputBatch
from jpaged.runtime.memory import pool_dtype
from jpaged.runtime.mesh import EVERYWHERE, DeviceMesh
from jpaged.runtime.multi_process.driver import Driver
from jpaged.runtime.page_mover import PageMover
from jpaged.runtime.programs import ProgramTable
from jpaged.runtime.running_step import RunningStep, running_step
from jpaged.runtime.sampling.inputs import SAMPLE_FLOATS, SAMPLE_INTS
from jpaged.runtime.sampling.lane_state import init_lane_state, lane_entries, set_lane
from jpaged.runtime.stages import Stages
from jpaged.runtime.step import forward, sample_step
from jpaged.runtime.step_shape import StepShape
from models.config import ModelConfig
from models.partition import POOL_SPEC, param_specs
from pallas_kernels import kv_pages as pages


class ModelRunner:
    """Runs plans with a Flax model over a paged pool, on one device or on those of a mesh. An Executor.

    `model` and `params` are as `mesh` builds and loads them; for one device (`mesh` None) parameters may be on the
    host. Where other processes run the same programs, `driver` sends them every plan first.
    """

    overlaps = True

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
        mesh: DeviceMesh | None = None,
        driver: Driver | None = None,
    ) -> None:
        assert cache_config.num_pages is not None, "the number of pages is resolved before the runner is built"
        self.model = model
        self.mesh = mesh or DeviceMesh(ParallelConfig())
        self._driver = driver
        self.vocab_size = model_config.vocab_size
        num_lanes, max_model_len = scheduler_config.max_num_seqs, scheduler_config.max_model_len
        num_pages = cache_config.num_pages + 1
        self.batch = InputBatch(num_lanes, max_model_len, cache_config.page_size, num_pages)
        self.buckets = Buckets(num_lanes, scheduler_config.max_num_batched_tokens, self.batch.table_width)
        self.stages = Stages()
        self.idle_time = 0.0
        self._idle_since = 0.0
        self._last_ids: jax.Array | None = None
        self._lanes_with_rules: set[int] = set()
        self.params = params if self.mesh.shards > 1 else jax.device_put(params)
        self._allocate_pool = functools.partial(
            pages.allocate,
            model_config.num_layers,
            num_pages,
            cache_config.page_size,
            self.mesh.pool_config(model_config).num_kv_heads,
            model_config.head_dim,
            pool_dtype(cache_config.kv_cache_dtype, dtype),
            sharding=self.mesh.sharding(POOL_SPEC),
        )
        max_stop_ids = MAX_STOP_TOKEN_IDS + len(model_config.eos_token_ids)
        init = functools.partial(init_lane_state, num_lanes, max_model_len, self.vocab_size)
        init = functools.partial(init, max_bias=MAX_LOGIT_BIAS, max_stop_ids=max_stop_ids)
        self._init_state = functools.partial(self.mesh.create, init)
        self.kv_pages, self.state = self._allocate_pool(), self._init_state()
        self.programs = ProgramTable()
        self._swaps = cache_config.num_host_pages > 0
        self.mover = PageMover(
            self.kv_pages,
            self.programs,
            self.mesh,
            num_copies=num_lanes,
            copy_implementation=attention_implementation,
        )
        self._jit_programs(param_specs(model_config, params))

    def _jit_programs(self, specs: Any) -> None:
        jit, sizes = self.mesh.jit, {"vocab_size": self.vocab_size, "max_logprobs": min(MAX_LOGPROBS, self.vocab_size)}
        self._forward = self.mesh.jit_model(
            functools.partial(forward, model=self.model, **sizes),
            (specs, POOL_SPEC, EVERYWHERE, EVERYWHERE),
            (POOL_SPEC, EVERYWHERE, EVERYWHERE),
            static_argnames=("shape",),
            donate_argnums=(1, 2),
        )
        self._sample = jit(functools.partial(sample_step, **sizes), EVERYWHERE, EVERYWHERE, donate_argnums=(0,))
        self._set_lane = jit(set_lane, EVERYWHERE, EVERYWHERE, donate_argnums=(0,))

    def submit(self, plan: SchedulerOutput) -> RunningStep:
        """Hand the plan to the device and return at once; a step submitted before it may still run.

        If it fails, pool and lane state may be gone with the program they were donated to: both start anew, empty.
        """
        with self._start_anew_after_failure():
            number = 0 if self._driver is None else self._driver.send_plan(plan)
            return self._submit(plan, number)

    def collect(self, step: RunningStep) -> StepResult:
        """The ids of a step, once they are there, whatever was submitted after it. If the step failed, as `submit`."""
        with self._start_anew_after_failure():
            with self.stages.span(Stages.WAIT):
                jax.block_until_ready(step.sampled.token_ids)
            self._idle_since = time.perf_counter()
            with self.stages.span("fetch"):
                result = step.result()
            if self._driver is not None:
                self._driver.record_result(step.number, result.token_ids)
            return result

    def _submit(self, plan: SchedulerOutput, number: int) -> RunningStep:
        span = self.stages.span
        with jax.profiler.StepTraceAnnotation("step", step_num=plan.step):
            with span("pack"):
                for sequence in plan.admitted:
                    self._admit(sequence)
                for grant in plan.grants:
                    self.batch.grant(grant)
                self._move_pages(plan)
                shape = self.buckets.choose(self.batch.fit(plan, self.buckets), self.programs)
                packed = self.batch.pack(plan, shape)
            with span("transfer"):
                # A fresh host buffer every step: device_put may alias it for as long as the step runs.
                ints, floats = self.mesh.put(packed)
            forward_program, sample_program = self._forward_program(shape), self._sample_program(shape.num_samples)
            self._record_idle()
            with span("dispatch"):
                self.kv_pages, self.state, outputs = forward_program(self.params, self.kv_pages, self.state, ints)
                self.state, sampled = sample_program(self.state, outputs.logits, outputs.sample_ints, floats)
                self._last_ids = sampled.token_ids
                return running_step(plan, self.batch, sampled, outputs.prompt, number)

    def _record_idle(self) -> None:
        """Add to `idle_time` how long the device may have had nothing to do since a result was last fetched."""
        if self._last_ids is not None and self._last_ids.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
            self.idle_time += time.perf_counter() - self._idle_since

    @contextmanager
    def _start_anew_after_failure(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            if self._driver is not None:
                self._driver.fail(f"{type(error).__name__}: {error}")
            self.kv_pages, self.state = self._allocate_pool(), self._init_state()
            self._lanes_with_rules.clear()
            self._last_ids = None
            raise

    def warm_up(self) -> list[StepShape]:
        """Compile every program the engine can need, and return the step shapes; later steps compile nothing."""
        if self._driver is not None:
            self._driver.send("warm_up")
        for shape in self.buckets.all():
            self._forward_program(shape)
            self._sample_program(shape.num_samples)
        self._set_lane_program()
        self.mover.compile(self.kv_pages, swaps=self._swaps)
        return self.buckets.all()

    def describe_programs(self) -> str:
        """One line for people: each compiled shape of a step, with the share of it that padding may be."""
        shapes = [shape for shape in self.buckets.all() if shape in self.programs]
        kinds = (
            (kind, [f"{s.num_tokens} (<{self.buckets.most_padding(s):.0%})" for s in shapes if s.decode == decode])
            for kind, decode in (("rows", True), ("tokens", False))
        )
        lists = "; ".join(f"{kind} {', '.join(sizes)}" for kind, sizes in kinds)
        return f"{len(self.programs)} programs in {self.programs.seconds:.1f} s; a step is padded up to {lists}"

    def _forward_program(self, shape: StepShape) -> Any:
        def lower() -> Any:
            ints = self.mesh.shape((shape.num_ints,))
            return self._forward.lower(self.params, self.kv_pages, self.state, ints, shape=shape)

        return self.programs.get(shape, lower)

    def _sample_program(self, num_samples: int) -> Any:
        def lower() -> Any:
            logits = self.mesh.shape((num_samples, self.vocab_size), jnp.float32)
            ints = self.mesh.shape((len(SAMPLE_INTS) * num_samples,))
            floats = self.mesh.shape((len(SAMPLE_FLOATS) * num_samples,), jnp.float32)
            return self._sample.lower(self.state, logits, ints, floats)

        return self.programs.get(f"sample[Q={num_samples}]", lower)

    def _set_lane_program(self) -> Any:
        def lower() -> Any:
            entries = (self.mesh.shape(a.shape[1:], a.dtype) for a in self.state[1:])
            return self._set_lane.lower(self.state, self.mesh.shape(()), *entries)

        return self.programs.get("set_lane", lower)

    def _admit(self, sequence: AdmittedSequence) -> None:
        """Give a lane to a sequence, on the device too where its sampling rules need state there."""
        self.batch.admit(sequence)
        lane, params = sequence.lane, sequence.params
        has_rules = bool(params.logit_bias) or params.min_tokens > 0 or params.has_penalties
        if not has_rules and lane not in self._lanes_with_rules:
            return
        stop_ids = sequence.stop_ids if params.min_tokens else ()
        entries = lane_entries(self.state, sequence.token_ids, params.logit_bias or {}, stop_ids, self.vocab_size)
        self.state = self._set_lane_program()(self.state, *self.mesh.put((np.int32(lane), *entries)))
        (self._lanes_with_rules.add if has_rules else self._lanes_with_rules.discard)(lane)

    def _move_pages(self, plan: SchedulerOutput) -> None:
        if plan.moves:
            self.kv_pages = self.mover.run(self.kv_pages, plan.moves)
