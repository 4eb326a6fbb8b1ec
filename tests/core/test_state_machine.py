"""Random traffic on tiny pools: every answer equals the cache-free oracle, every invariant holds after every step."""

from typing import Any

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

from jpaged.core.request import FinishReason

TOKENS = st.integers(0, VOCAB_SIZE - 1)
PREFIXES = [[(7 * i + j * j) % VOCAB_SIZE for j in range(24)] for i in range(3)]
COVERED = (
    "num_preemptions_recompute",
    "prefix_hit_tokens",
    "prefix_hit_tokens_resumed",
    "num_page_copies",
    "num_evictions",
    "num_requests_refused",
)
totals: dict[str, float] = {}


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """The settings of a tiny engine."""
    page_size, num_pages = draw(st.sampled_from([4, 3, 2, 1])), draw(st.sampled_from([8, 7, 6, 5, 9, 10, 12, 4, 3]))
    max_num_seqs = draw(st.sampled_from([4, 6, 5, 3, 2, 1]))
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
    }


class Traffic(RuleBasedStateMachine):
    """Adds, steps and aborts in any order; the Rig asserts."""

    @initialize(setting=engines())
    def start(self, setting: dict[str, Any]) -> None:
        self.rig = Rig(**setting)

    @rule(request=requests())
    def add(self, request: dict[str, Any]) -> None:
        limits = self.rig.engine.limits
        request["prompt"] = request["prompt"][: limits.max_model_len - request.pop("room")]
        request["n"] = min(request["n"], limits.max_num_seqs)
        before = len(self.rig.engine._groups)
        try:
            self.rig.add(**request)
        except ValueError:
            assert len(self.rig.engine._groups) == before, "a refused request left a trace"

    @rule(burst=st.lists(requests(), min_size=2, max_size=4))
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

    @rule(data=st.data(), what=st.sampled_from(["nothing", "one", "all", "nothing", "reset", "nothing"]))
    def disturb(self, data: st.DataObject, what: str) -> None:
        alive = sorted(self.rig.engine._groups)
        if what == "reset":
            self.rig.cache.reset_prefix_cache()
        elif what != "nothing" and alive:
            request_id = data.draw(st.sampled_from(alive))
            index = data.draw(st.integers(0, 2)) if what == "one" else None
            self.rig.end(request_id, index, data.draw(st.sampled_from([FinishReason.ABORT, FinishReason.STOP])))

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        self.rig.check_reset()
        for name in (*COVERED, "num_steps"):
            totals[name] = totals.get(name, 0) + self.rig.stats[name]


def test_random_traffic_gives_the_oracles_answers_and_loses_no_page() -> None:
    totals.clear()
    run_state_machine_as_test(
        Traffic,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert totals["num_steps"] > 3000
    assert all(totals[name] > 10 for name in COVERED), totals
