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
    page_size, num_pages = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(3, 12))
    max_num_seqs = draw(st.integers(1, 6))
    return {
        "num_pages": num_pages,
        "page_size": page_size,
        "max_num_seqs": max_num_seqs,
        "budget": max_num_seqs + draw(st.sampled_from([0, 1, 3, 8, 30])),
        "threshold": draw(st.sampled_from([None, None, 1, 2, 5])),
        "max_model_len": draw(st.integers(max(2, num_pages * page_size // 2), max(2, num_pages * page_size))),
        "prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
        "overlap": draw(st.booleans()),
    }


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A prompt, often with a prefix that others share, and what is asked of it."""
    prefix = draw(st.sampled_from(PREFIXES))[: draw(st.integers(0, 14))]
    tail = draw(st.lists(TOKENS, min_size=0 if prefix else 1, max_size=5))
    n = draw(st.sampled_from([1, 1, 2, 3]))
    max_tokens = draw(st.sampled_from([None, 1, 2, 4, 8, 15] if n == 1 else [2, 4, 6, 8]))
    return {
        "prompt": [*prefix, *tail],
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
        # A prompt as long as the model's limit is still too long, and is refused.
        request["prompt"] = request["prompt"][: self.rig.engine.limits.max_model_len]
        before = len(self.rig.engine._groups)
        try:
            self.rig.add(**request)
        except ValueError:
            assert len(self.rig.engine._groups) == before, "a refused request left a trace"

    @precondition(lambda self: self.rig.engine.has_unfinished)
    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        self.rig.step(times)

    @precondition(lambda self: self.rig.engine.has_unfinished)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, data: st.DataObject, reason: FinishReason) -> None:
        alive = sorted(self.rig.engine._groups)
        request_id = data.draw(st.sampled_from(alive))
        self.rig.end(request_id, data.draw(st.sampled_from([None, 0, 1, 2])), reason)

    @rule()
    def reset_the_prefix_cache(self) -> None:
        self.rig.cache.reset_prefix_cache()

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
            max_examples=250,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert totals["num_steps"] > 3000
    assert all(totals[name] > 10 for name in COVERED), totals
