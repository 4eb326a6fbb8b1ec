"""Random traffic on tiny pools: every answer equals the cache-free oracle, every invariant holds after every step."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rig import VOCAB_SIZE, Rig

from jpaged.config.options import RESERVATIONS
from jpaged.core.plan import SchedulerOutput
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import BeamSearchParams

TOKENS = st.integers(0, VOCAB_SIZE - 1)
PREFIXES = [[(7 * i + j * j) % VOCAB_SIZE for j in range(24)] for i in range(3)]
COVERED = (
    "num_preemptions_recompute",
    "num_preemptions_swap",
    "num_pages_swapped_in",
    "prefix_hit_tokens",
    "prefix_hit_tokens_resumed",
    "num_page_copies",
    "num_evictions",
    "num_requests_refused",
)
SEEN = (
    "searches",
    "swap_fallbacks",
    "ended_while_swapped",
    "taking_turns",
    "pins",
    "refused_pins",
    "failures",
    "seat_copies",
)
totals: dict[str, float] = {}


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """The settings of a tiny engine."""
    page_size, num_pages = draw(st.sampled_from([4, 3, 2, 1])), draw(st.sampled_from([8, 7, 6, 5, 9, 10, 12, 4, 3]))
    max_num_seqs = draw(st.sampled_from([4, 6, 5, 3, 2, 1]))
    wild = "wild_policies:"
    reservation = draw(st.sampled_from(["none", "none", "none", "none", "oracle", "pow2", "max", "batch"]))
    options = _engine_options(draw, num_pages, page_size, max_num_seqs, wild)
    if reservation != "none":
        options |= {"reservation": reservation, "prefix_caching": False, "num_host_pages": 0, "append_headroom": False}
    if reservation == "batch":
        options |= {"batching": "static", "admission_policy": "in_order", "scheduling_policy": "fcfs"}
    return options


def _engine_options(draw: st.DrawFn, num_pages: int, page_size: int, max_num_seqs: int, wild: str) -> dict[str, Any]:
    return {
        "num_pages": num_pages,
        "page_size": page_size,
        "max_num_seqs": max_num_seqs,
        "budget": max_num_seqs + draw(st.sampled_from([8, 3, 30, 1, 0])),
        "threshold": draw(st.sampled_from([None, None, 1, 2, 5])),
        "max_model_len": draw(st.sampled_from([num_pages * page_size, max(2, num_pages * page_size // 2)])),
        "prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
        "overlap": draw(st.booleans()),
        "num_host_pages": draw(st.sampled_from([2, 8, 0, 4, 12, 1, 3])),
        "preemption_mode": draw(st.sampled_from(["swap", "auto", "recompute"])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "admission_policy": draw(
            st.sampled_from(["in_order", "longest_prefix", wild + "any_waiting", wild + "newest"])
        ),
        "victim_policy": draw(st.sampled_from(["last", wild + "any_victim", wild + "first"])),
        "eviction_policy": draw(st.sampled_from(["lru", wild + "any_page", wild + "latest_page"])),
        "max_overtakes": draw(st.sampled_from([2, 0, 16])),
        "chunked_prefill": draw(st.sampled_from([True, True, False])),
        "append_headroom": draw(st.sampled_from([False, False, True])),
        "admit_while_swapped": draw(st.sampled_from([True, True, False])),
    }


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A prompt, often with a prefix that others share, and what is asked of it."""
    prefix = draw(st.sampled_from(PREFIXES))[: draw(st.sampled_from([6, 0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 14]))]
    tail = draw(st.lists(TOKENS, min_size=0 if prefix else 1, max_size=3))
    n = draw(st.sampled_from([2, 1, 1, 3]))
    max_tokens = draw(st.sampled_from([12, None, 1, 2, 4, 8, 15] if n == 1 else [8, 10, 6, 4, 2]))
    return {
        "prompt": [*prefix, *tail],
        "room": draw(st.sampled_from([1, 1, 1, 2, 4, 0])),  # a prompt as long as the limit is refused
        "max_tokens": max_tokens,
        "n": n,
        "temperature": draw(st.sampled_from([0.0, 1.0])) if n == 1 else 1.0,
        "seed": draw(st.integers(0, 2)),
        "eos": draw(st.sampled_from([(), (3,), (3, 4)])),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([None, None, [5]])),
        "min_tokens": draw(st.integers(0, max_tokens or 4)),
        "logprobs": draw(st.sampled_from([None, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, None, None, 0, 2])),
        "salt": draw(st.sampled_from([None, None, None, "a"])),
        "priority": draw(st.integers(0, 2)),
    }


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    """A request for a beam search."""
    plain = draw(requests())
    kept = {name: plain[name] for name in ("prompt", "room", "eos", "salt", "priority")}
    return kept | {
        "beam": BeamSearchParams(
            beam_width=draw(st.sampled_from([3, 2, 4, 1])),
            max_tokens=draw(st.sampled_from([6, 9, 4, 1])),
            ignore_eos=draw(st.sampled_from([False, False, True])),
            length_penalty=draw(st.sampled_from([1.0, 0.0, 2.0, -1.0])),
            early_stopping=draw(st.sampled_from([False, True, "never"])),
        )
    }


def fail(plan: SchedulerOutput) -> None:
    raise RuntimeError("the device is on fire")


class Traffic(RuleBasedStateMachine):
    """Adds, steps, aborts, pins and fails in any order; the Rig asserts."""

    @initialize(setting=engines(), seed=st.integers(0, 2**32))
    def start(self, setting: dict[str, Any], seed: int) -> None:
        self.rig = Rig(**setting)
        self.random = random.Random(seed)
        self.mode = setting["preemption_mode"]
        self.reservation = setting.get("reservation", "none")

    @property
    def swapped(self) -> list[str]:
        """The requests that have pages on the host."""
        groups = self.rig.engine._groups
        return [name for name, group in groups.items() if any(s.host_pages for s in group.sequences)]

    @rule(request=st.one_of(requests(), searches()))
    def add(self, request: dict[str, Any]) -> None:
        limits = self.rig.engine.limits
        request["prompt"] = request["prompt"][: limits.max_model_len - request.pop("room")]
        if "n" in request:
            request["n"] = min(request["n"], limits.max_num_seqs)
        before = len(self.rig.engine._groups)
        try:
            name = self.rig.add(**request)
        except ValueError:
            assert len(self.rig.engine._groups) == before, "a refused request left a trace"
            return
        group = self.rig.engine._groups[name]
        count("taking_turns", group.width < len(group.sequences))
        count("searches", group.beam is not None)

    @rule(burst=st.lists(st.one_of(requests(), searches()), min_size=2, max_size=4))
    def add_several(self, burst: list[dict[str, Any]]) -> None:
        for request in burst:
            self.add(request)

    @precondition(lambda self: self.rig.engine.has_unfinished)
    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        self.rig.step(times)

    @precondition(lambda self: self.rig.engine.has_unfinished)
    @rule(times=st.integers(4, 12))
    def step_on(self, times: int) -> None:
        self.rig.step(times)

    @rule(what=st.sampled_from(["nothing", "one", "all", "nothing", "reset", "nothing"]))
    def disturb(self, what: str) -> None:
        if what == "reset":
            self.rig.engine.reset_prefix_cache()
        elif what != "nothing":
            self.end_one_of(sorted(self.rig.engine._groups), whole=what == "all")

    def end_one_of(self, names: list[str], whole: bool) -> None:
        if names:
            name = self.random.choice(names)
            count("ended_while_swapped", name in self.swapped)
            reason = self.random.choice([FinishReason.ABORT, FinishReason.STOP])
            self.rig.end(name, None if whole else self.random.randrange(3), reason)

    @rule(prefix=st.sampled_from(PREFIXES), length=st.integers(1, 10), release=st.booleans())
    def pin(self, prefix: list[int], length: int, release: bool) -> None:
        pinned = self.rig.pinned
        if release and pinned:
            self.rig.engine.unpin(next(iter(pinned)))
            return
        before = {name: list(pages) for name, pages in pinned.items()}
        try:
            self.rig.engine.pin(str(length), tuple(prefix[:length]))
            count("pins", bool(pinned[str(length)]))
        except ValueError:
            count("refused_pins")
            assert pinned == before, "a refused pin holds something"

    @precondition(lambda self: self.rig.engine.has_unfinished and not self.rig.overlap)
    @rule(chance=st.integers(0, 7))
    def lose_a_step(self, chance: int) -> None:
        if chance:
            return
        check, self.rig.executor.before_execute = self.rig.executor.before_execute, fail
        with pytest.raises(RuntimeError, match="on fire"):
            self.rig.engine.step()
        self.rig.executor.before_execute = check
        self.rig.forget_unfinished()
        self.rig.check_reset()
        count("failures")

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        while self.rig.engine.has_unfinished:
            self.rig.step()
            if self.random.random() < 0.05:
                self.end_one_of(self.swapped or sorted(self.rig.engine._groups), whole=self.random.random() < 0.5)
        self.rig.run()
        self.rig.check_reset()
        for name in (*COVERED, "num_steps"):
            count(name, self.rig.stats[name])
        count(f"steps_{self.reservation}", self.rig.stats["num_steps"])
        if self.reservation != "none":
            assert self.rig.stats["num_preemptions_recompute"] == 0, "what was reserved was taken away"
            count("seat_copies", self.rig.stats["num_page_copies"])
        if self.mode == "swap":
            count("swap_fallbacks", self.rig.stats["num_preemptions_recompute"])


def count(name: str, times: float = 1) -> None:
    totals[name] = totals.get(name, 0) + times


def test_random_traffic_gives_the_oracles_answers_and_loses_no_page() -> None:
    totals.clear()
    run_state_machine_as_test(
        Traffic,
        settings=settings(
            max_examples=300,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert totals["num_steps"] > 4000
    rare = {name: totals.get(name, 0) for name in (*COVERED, *SEEN) if totals.get(name, 0) <= 10}
    assert not rare, f"too rare to trust: {rare}"
    assert all(totals[f"steps_{name}"] > 100 for name in RESERVATIONS), totals
