"""All that the fixed runs need of jpaged, in one place: a name that moves there is followed here alone.

A digest names all plans of a run, so it is the same on every machine unless a model's numbers decide (beams, stops);
the ids of a tiny random model are those of any CPU unless two logits are closer than its rounding.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from experiments.config import CacheSection, DecodingSection, ExecutorSection, ExperimentConfig, PolicySection
from experiments.serving import run_point
from jpaged import LLM
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.observe.plan_digest import PlanDigest
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.core.scheduling.presets import with_policy
from jpaged.fleet.disaggregation import Disaggregated
from jpaged.sim.clock import VirtualClock
from jpaged.sim.executor import SimExecutor
from jpaged.workloads import WorkloadSpec
from tests.engine.tiny import tiny_llm
from tests.engine.tiny_text import write_text_model

# What a run may be asked to contain, by the key of the engine's statistics; Watch and the runs below count more.
STATISTICS = {
    "recomputed": "num_preemptions_recompute",
    "swapped": "num_preemptions_swap",
    "copies": "num_page_copies",
    "prefix_hits": "prefix_hit_tokens",
    "evictions": "num_evictions",
}
VOCABULARY = 97


class Outcome(NamedTuple):
    """What a run came to: the digest of its plans, of its tokens (a device's alone), and how often what happened."""

    plans: str
    tokens: str | None
    events: Counter[str]

    @property
    def digests(self) -> list[str]:
        """Both digests, or the one that there is."""
        return [self.plans] if self.tokens is None else [self.plans, self.tokens]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request: it comes before the step `at`, and is aborted before the step `abort_at`, if that is given."""

    prompt: Sequence[int]
    max_tokens: int = 16
    at: int = 0
    abort_at: int | None = None
    priority: int = 0
    salt: str | None = None
    beam_width: int = 0
    params: dict[str, Any] = field(default_factory=dict)

    def request(self, number: int) -> Request:
        """As the engine takes it."""
        beam = None
        if self.beam_width:
            beam = BeamSearchParams(beam_width=self.beam_width, max_tokens=self.max_tokens, ignore_eos=True)
            params = beam_params(beam, 0)
        else:
            params = SamplingParams(max_tokens=self.max_tokens, ignore_eos=True, **self.params)
        return Request(
            request_id=str(number),
            prompt_token_ids=tuple(self.prompt),
            params=params,
            beam=beam,
            priority=self.priority,
            cache_salt=self.salt,
        )


class Watch:
    """The digest and some counts of all plans of an engine, in the order in which its executor gets them."""

    def __init__(self, engine: Engine) -> None:
        self.digest = PlanDigest()
        self.events: Counter[str] = Counter()
        self._engine = engine
        self._admitted: dict[str, None] = {}
        self._running = 0
        executor: Any = engine.executor
        if hasattr(executor, "submit"):
            executor.submit = self._before(executor.submit, self._start)
            executor.collect = self._before(executor.collect, self._end)
        else:
            executor.execute = self._before(executor.execute, self._record)

    def outcome(self, tokens: str | None = None) -> Outcome:
        """What has come of the run so far."""
        statistics = self._engine.stats_dict()
        self.events.update({name: int(statistics[key] or 0) for name, key in STATISTICS.items()})
        numbers = [int(name) for name in self._admitted]
        self.events["overtakes"] = sum(later < earlier for earlier, later in pairwise(numbers))
        return Outcome(self.digest.hexdigest(), tokens, self.events)

    @staticmethod
    def _before(call: Callable[[Any], Any], watch: Callable[[Any], None]) -> Callable[[Any], Any]:
        def watched(argument: Any) -> Any:
            watch(argument)
            return call(argument)

        return watched

    def _start(self, plan: Any) -> None:
        self._record(plan)
        self.events["ahead"] += self._running > 0
        self._running += 1

    def _end(self, _: Any) -> None:
        self._running -= 1

    def _record(self, plan: Any) -> None:
        self.digest.add(plan)
        self.events["steps"] += 1
        self.events["chunks"] += sum(row.num_tokens > 1 for row in plan.rows)
        self.events["forks"] += len(plan.samples) - len({sample.row for sample in plan.samples})
        self._admitted.update(dict.fromkeys(admitted.request_id for admitted in plan.admitted))


class _Price:
    """Each step takes a millisecond."""

    name = "test"

    def step_ns(self, work: Any) -> int:
        return 1_000_000

    def host_ns(self, work: Any) -> int:
        return 0


def _simulated_engine(policy: str, fields: dict[str, Any]) -> Engine:
    fields = {"page_size": 4, "num_pages": 32, "max_model_len": 96, "watermark": 0.0} | fields
    cache, scheduler = with_policy(policy, CacheConfig(), SchedulerConfig(), **fields)
    clock = VirtualClock()
    executor = SimExecutor(_Price(), clock, page_size=cache.page_size)
    return Engine(scheduler, cache, executor, vocab_size=VOCABULARY, clock=clock, overlap=False)


def simulate(asks: Sequence[Ask], *, policy: str = "paged", pinned: Sequence[int] = (), **fields: Any) -> Outcome:
    """Run the requests on a simulated device; `fields` are of the two configs, `pinned` is held from the start."""
    engine = _simulated_engine(policy, fields)
    watch = Watch(engine)
    if pinned:
        _run(engine, [Ask(prompt=pinned, max_tokens=1)], watch.events, first=len(asks))
        watch.events["pinned"] = engine.pin("prefix", tuple(pinned))
    _run(engine, asks, watch.events)
    return watch.outcome()


def simulate_handoff(asks: Sequence[Ask], **fields: Any) -> Outcome:
    """The prompts on one simulated engine, the tokens after them on another; the plans of both."""
    engines = [_simulated_engine("paged", fields) for _ in range(2)]
    prefill, decode = (Watch(engine) for engine in engines)
    pair = Disaggregated(*engines, mover=mock.Mock())
    _run(pair, asks, decode.events)
    decode.events["moved"] = pair.num_pages_moved
    return decode.outcome()._replace(plans=f"{prefill.digest.hexdigest()}-{decode.digest.hexdigest()}")


def _run(engine: Engine | Disaggregated, asks: Sequence[Ask], events: Counter[str], first: int = 0) -> None:
    last = max(max(ask.at, ask.abort_at or 0) for ask in asks)
    step = 0
    while step <= last or engine.has_unfinished:
        for number, ask in enumerate(asks, first):
            if ask.at == step:
                engine.add(ask.request(number))
            if ask.abort_at == step:
                events["aborted"] += len(engine.abort(str(number)))
        events["stopped"] += sum(delta.finish_reason == "stop" for delta in engine.step())
        step += 1


def at_scale(
    policy: str,
    *,
    workload: dict[str, Any],
    decoding: dict[str, Any] | None = None,
    fields: dict[str, Any] | None = None,
    strides: bool = True,
    **cache: Any,
) -> Outcome:
    """A point of an experiment: OPT-13B on a simulated A100."""
    config = ExperimentConfig(
        policy=PolicySection(name=policy, **(fields or {})),
        cache=CacheSection(**cache),
        workload=WorkloadSpec(**workload),
        decoding=DecodingSection(**(decoding or {})),
        executor=ExecutorSection(strides=strides),
    )
    name = "submit" if hasattr(SimExecutor, "submit") else "execute"
    with mock.patch.object(SimExecutor, name, autospec=True, side_effect=getattr(SimExecutor, name)) as one_step:
        point = run_point(config)
    events = Counter({name: int(point.stats[key]) for name, key in STATISTICS.items()})
    events["steps"] = len(point.steps["step"])
    events["strided"] = events["steps"] - one_step.call_count
    return Outcome(point.plan_digest, None, events)


def on_device(use: Callable[[LLM], Any], *, text: bool = False, **options: Any) -> Outcome:
    """What `use` makes of a tiny random LLaMA, one with letters if `text`: outputs, deltas, or lists of them."""
    with tempfile.TemporaryDirectory() as folder:
        model = {"model": str(write_text_model(Path(folder) / "model"))} if text else {}
        llm = tiny_llm(**model, **{"page_size": 4, "num_pages": 16, "watermark": 0.0} | options)
    watch = Watch(llm.engine)
    said = plain(use(llm))
    outcome = watch.outcome(hashlib.sha256(repr(said).encode()).hexdigest()[:16])
    outcome.events["stopped"] = repr(said).count("'stop'")
    outcome.events["pinned"] = llm.engine.scheduler.cache.num_pinned
    assert not llm.engine.has_unfinished
    return outcome


def plain(said: Any) -> Any:
    """Ids, text and the reason of the end of each sequence, of outputs, or of the deltas of a stream."""
    if isinstance(said, list):
        return [plain(part) for part in said]
    if hasattr(said, "outputs"):
        return plain(said.outputs)
    return [list(said.token_ids), said.text, said.finish_reason and str(said.finish_reason), said.stop_reason]
