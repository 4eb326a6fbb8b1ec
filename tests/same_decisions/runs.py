"""The fixed runs whose decisions must not change: what each is, and what must have happened in it.

A name is "group/what happens". Add runs; do not change one, or its recorded digest says nothing any more.
"""

import random
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from jpaged import LLM, BeamSearchParams, SamplingParams

from .contact import Ask, Outcome, at_scale, on_device, simulate, simulate_handoff

POLICIES = ("paged", "vllm-2023", "orca-oracle", "orca-pow2", "orca-max", "static")


PREEMPTING = POLICIES[:2]


class Run(NamedTuple):
    """How to make a run, and the events that it must contain, or must not."""

    make: Callable[[], Outcome]
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def outcome(self) -> Outcome:
        """Run it. AssertionError if it is not what its name says."""
        outcome = self.make()
        for event in self.contains:
            assert outcome.events[event] > 0, f"no {event} in {dict(outcome.events)}"
        for event in self.lacks:
            assert outcome.events[event] == 0, f"{event} in {dict(outcome.events)}"
        return outcome


def prompts(count: int, low: int, high: int, *, seed: int = 0, prefix: int = 0) -> list[list[int]]:
    """Random ids, `low` to `high` in each prompt, after `prefix` ids that all have in common."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, 96) for _ in range(prefix)]
    return [[*shared, *(rng.randrange(4, 96) for _ in range(rng.randint(low, high)))] for _ in range(count)]


def asks(count: int = 20, low: int = 3, high: int = 24, *, seed: int = 0, prefix: int = 0, **fields: Any) -> list[Ask]:
    """Requests of random prompts, two before each step, with 4 to 30 output tokens, unless `fields` say otherwise."""
    rng = random.Random(seed + 1)
    return [
        Ask(prompt=prompt, **({"max_tokens": rng.randint(4, 30), "at": i // 2} | fields))
        for i, prompt in enumerate(prompts(count, low, high, seed=seed, prefix=prefix))
    ]


def preempts(policy: str) -> dict[str, tuple[str, ...]]:
    """What a small pool brings about: a policy that reserves pages never takes any back."""
    return {"contains" if policy in PREEMPTING else "lacks": ("recomputed",)}


def families() -> list[Ask]:
    """Requests that come at once, of three kinds in turn, each kind with a prefix of its own."""
    kinds = [asks(6, 2, 6, seed=kind, prefix=17, at=0) for kind in range(3)]
    return [ask for trio in zip(*kinds, strict=True) for ask in trio]


SAMPLES = asks(8, 5, 12, params={"n": 3})
MIXED = [*asks(8), *asks(4, seed=5, at=2, params={"n": 3}), *asks(8, seed=7, at=4)]
BEAMS = asks(6, 5, 14, max_tokens=14, beam_width=4)
URGENT = [*asks(10), *(Ask(prompt=ask.prompt, at=6 + i, priority=-i) for i, ask in enumerate(asks(6, seed=3)))]
ABORTED = [*asks(10), *asks(10, seed=4, abort_at=9)]
SALTED = [*asks(4, 2, 6, prefix=16, salt="a"), *asks(4, 2, 6, prefix=16, salt="b")]
SEVENS = {"stop_token_ids": [7], "min_tokens": 6}
CROWDED = {"num_pages": 24, "max_num_seqs": 8}
SWAPPING = CROWDED | {"preemption_mode": "swap", "num_host_pages": 64}

SIMULATED = {
    f"policy/{name}": Run(
        partial(
            simulate,
            asks(24),
            policy=name,
            num_pages=40,
            max_num_seqs=8,
            **({"max_static_batch_len": 64} if name == "static" else {}),
        ),
        **preempts(name),
    )
    for name in POLICIES
} | {
    "samples/n": Run(partial(simulate, SAMPLES, num_pages=96), ("forks", "copies"), ("recomputed",)),
    "samples/n crowded": Run(partial(simulate, SAMPLES, **CROWDED), ("forks", "copies", "recomputed")),
    "samples/n under vllm-2023": Run(
        partial(simulate, SAMPLES, policy="vllm-2023", num_host_pages=64, **CROWDED), ("forks", "copies", "swapped")
    ),
    "samples/n under orca-max": Run(
        partial(simulate, SAMPLES, policy="orca-max", num_pages=96, max_num_seqs=8), ("chunks",), ("forks", "copies")
    ),
    "samples/best_of": Run(partial(simulate, asks(6, params={"n": 2, "best_of": 4}), num_pages=64), ("forks",)),
    "beams/width 4": Run(partial(simulate, BEAMS, num_pages=96), ("copies",), ("recomputed", "swapped")),
    "beams/recomputed": Run(
        partial(simulate, BEAMS, preemption_mode="recompute", **CROWDED), ("copies", "recomputed"), ("swapped",)
    ),
    "beams/swapped": Run(
        partial(simulate, BEAMS, policy="vllm-2023", **SWAPPING), ("copies", "swapped"), ("recomputed",)
    ),
    "preemption/recompute": Run(
        partial(simulate, MIXED, preemption_mode="recompute", num_host_pages=64, **CROWDED),
        ("recomputed",),
        ("swapped",),
    ),
    "preemption/swap": Run(partial(simulate, MIXED, **SWAPPING), ("swapped",), ("recomputed",)),
    "preemption/swap, host too small": Run(
        partial(simulate, MIXED, **SWAPPING | {"num_host_pages": 6}), ("swapped", "recomputed")
    ),
    "preemption/auto": Run(
        partial(simulate, MIXED, preemption_mode="auto", num_host_pages=64, **CROWDED), ("swapped", "recomputed")
    ),
    "order/priority": Run(
        partial(simulate, URGENT, scheduling_policy="priority", max_num_seqs=4, num_pages=24),
        ("overtakes", "recomputed"),
    ),
    "order/longest prefix": Run(
        partial(simulate, families(), admission_policy="longest_prefix", max_num_seqs=2, num_pages=48),
        ("overtakes", "prefix_hits"),
    ),
    "order/longest prefix, few overtakes": Run(
        partial(simulate, families(), admission_policy="longest_prefix", max_num_seqs=2, num_pages=48, max_overtakes=1),
        ("overtakes", "prefix_hits"),
    ),
    "prefix cache/shared": Run(partial(simulate, asks(prefix=18), num_pages=256), ("prefix_hits",), ("evictions",)),
    "prefix cache/evictions": Run(partial(simulate, families() * 2, **CROWDED), ("prefix_hits", "evictions")),
    "prefix cache/salted": Run(partial(simulate, SALTED, num_pages=128), ("prefix_hits",)),
    "prefix cache/pinned": Run(
        partial(simulate, asks(prefix=18), pinned=asks(1, prefix=18)[0].prompt[:18], **CROWDED | {"num_pages": 32}),
        ("pinned", "prefix_hits", "evictions"),
    ),
    "chunks/small budget": Run(
        partial(simulate, asks(low=20, high=60, max_tokens=8), max_num_batched_tokens=16, num_pages=64), ("chunks",)
    ),
    "chunks/long prefill threshold": Run(
        partial(simulate, asks(low=20, high=60, max_tokens=8), long_prefill_token_threshold=7, num_pages=64),
        ("chunks",),
    ),
    "chunks/whole prompts": Run(
        partial(
            simulate,
            asks(low=20, high=60, max_tokens=8),
            chunked_prefill=False,
            max_num_batched_tokens=64,
            num_pages=64,
        ),
        ("chunks",),
    ),
    "ends/aborted": Run(partial(simulate, ABORTED, **CROWDED), ("aborted", "recomputed")),
    "ends/aborted while swapped": Run(partial(simulate, ABORTED, **SWAPPING), ("aborted", "swapped")),
    "ends/stop ids": Run(partial(simulate, asks(max_tokens=20, params=SEVENS), num_pages=64), ("stopped",)),
    "handoff/prefill, then decode": Run(partial(simulate_handoff, MIXED, num_pages=64), ("moved",)),
}

SHAREGPT = {"lengths": "sharegpt", "rate": 4.0, "num_requests": 100}
AT_SCALE = (
    {
        f"at scale/{name}": Run(partial(at_scale, name, workload=SHAREGPT, num_pages=400), **preempts(name))
        for name in POLICIES
    }
    | {
        "at scale/vllm-2023, four samples": Run(
            partial(at_scale, "vllm-2023", workload=SHAREGPT, decoding={"method": "sample", "n": 4}, num_pages=400),
            ("copies", "swapped"),
        ),
        "at scale/paged, four beams": Run(
            partial(
                at_scale,
                "paged",
                workload={"lengths": "alpaca", "rate": 8.0, "num_requests": 60},
                decoding={"method": "beam", "n": 4},
                num_pages=200,
            ),
            ("copies",),
        ),
        "at scale/paged, pinned prefix": Run(
            partial(
                at_scale,
                "paged",
                workload={"lengths": "alpaca", "rate": 16.0, "num_requests": 100, "shared_prefix_tokens": 200},
                decoding={"pin_prefix": True},
            ),
            ("prefix_hits",),
        ),
    }
    | {
        f"strides/{name}, {'many at once' if strides else 'step by step'}": Run(
            partial(
                at_scale, name, workload=SHAREGPT | {"num_requests": 60, "seed": 1}, strides=strides, num_pages=400
            ),
            ("strided",) if strides else (),
            () if strides else ("strided",),
        )
        for name in ("vllm-2023", "orca-oracle", "static")
        for strides in (True, False)
    }
)

PROMPTS = prompts(8, 3, 24)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
# Of everything that a sampler and the end of a sequence can be asked for, one each.
ASKED = [
    GREEDY,
    SamplingParams(temperature=0.9, top_k=20, seed=7, max_tokens=10, logprobs=3, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.3, seed=3, max_tokens=10, min_tokens=3),
    SamplingParams(n=3, temperature=1.0, top_p=0.9, seed=11, max_tokens=9, ignore_eos=True),
    SamplingParams(n=1, best_of=3, temperature=1.0, min_p=0.02, seed=2, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=5, max_tokens=30, stop_token_ids=list(range(4, 40))),
    SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True, logit_bias={5: 3.0, 6: -100.0}),
    SamplingParams(temperature=1.0, max_tokens=17),
]


def everything(llm: LLM) -> Any:
    """One request of each kind."""
    return llm.generate(PROMPTS, ASKED, use_tqdm=False)


def shared(llm: LLM) -> Any:
    """A pinned prefix, then requests with it and with others."""
    common = prompts(1, 0, 0, prefix=18)[0]
    llm.pin_prefix("system", common)
    return [llm.generate(prompts(6, 3, 9, seed=seed, prefix=18), GREEDY, use_tqdm=False) for seed in (0, 1, 0)]


def beams(llm: LLM) -> Any:
    """Three beam searches."""
    return llm.beam_search(PROMPTS[:3], BeamSearchParams(beam_width=4, max_tokens=9), use_tqdm=False)


def abandoned(llm: LLM) -> Any:
    """A stream that is closed midway, then a whole one."""
    stream = llm.stream(PROMPTS[:4], GREEDY)
    begun = list(islice(stream, 13))
    stream.close()
    return [begun, list(llm.stream(PROMPTS[2:6], GREEDY))]


def words(llm: LLM) -> Any:
    """Text that ends with a stop string, or does not."""
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, stop=["e", "th"], ignore_eos=True)
    return llm.generate(["hello and", "the ring", "over there, in"], params, use_tqdm=False)


SEEN = ("forks", "copies", "stopped")
# All have pools and steps of the same sizes, so that they share the compiled programs.
DEVICE = {
    "device/everything, recomputed": Run(partial(on_device, everything), (*SEEN, "recomputed", "ahead"), ("swapped",)),
    "device/everything, step by step": Run(
        partial(on_device, everything, async_scheduling=False), (*SEEN, "recomputed"), ("ahead", "swapped")
    ),
    "device/everything, swapped": Run(
        partial(on_device, everything, preemption_mode="swap", num_host_pages=32), (*SEEN, "swapped", "ahead")
    ),
    "device/beams": Run(partial(on_device, beams), ("copies",)),
    "device/pinned prefix": Run(partial(on_device, shared), ("pinned", "prefix_hits", "evictions")),
    "device/chunked, aborted": Run(partial(on_device, abandoned, long_prefill_token_threshold=5), ("chunks", "ahead")),
    "device/stop strings": Run(partial(on_device, words, text=True), ("stopped", "ahead")),
}

RUNS: dict[str, Run] = SIMULATED | AT_SCALE | DEVICE
