"""Requests that change real engines: the pages arrive as they were, and the tokens are those of one engine."""

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jpaged import LLM, SamplingParams
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.request import Request
from jpaged.fleet.disaggregation import Disaggregated
from jpaged.fleet.replica_set import ReplicaSet
from jpaged.fleet.router import Router
from jpaged.runtime.page_mover import PageMover, PoolTransfer
from jpaged.runtime.programs import ProgramTable
from pallas_kernels.kv_pages import allocate
from tests.engine.tiny import random_prompts, tiny_llm

ROOT = Path(__file__).parents[2]


def filled(num_pages: int, dtype: Any, seed: int) -> Any:
    """Somebody with a pool of bytes that are all different."""
    rng = np.random.default_rng(seed)
    pool = allocate(2, num_pages, 4, 2, 8, dtype)
    pool = jax.tree.map(lambda a: jnp.asarray(rng.integers(-100, 100, a.shape), jnp.float32).astype(a.dtype), pool)
    return types.SimpleNamespace(kv_pages=pool, mover=PageMover(pool, ProgramTable()))


def as_bytes(pool: Any) -> list[np.ndarray]:
    return [np.array(a).view(np.uint8) for a in jax.tree.leaves(pool)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("count", [1, 16, 19])
def test_named_pages_arrive_byte_for_byte_and_nothing_else_changes(dtype: Any, count: int) -> None:
    source, target = filled(40, dtype, 0), filled(30, dtype, 1)
    moves = tuple(PageMove(MoveKind.RECEIVE, 39 - i, 5 + i) for i in range(count))
    before, there = as_bytes(target.kv_pages), as_bytes(source.kv_pages)
    PoolTransfer(source, target).move(moves)
    for old, sent, new in zip(before, there, as_bytes(target.kv_pages), strict=True):
        for move in moves:
            old[:, move.target] = sent[:, move.source]
        np.testing.assert_array_equal(new, old)
    for sent, still in zip(there, as_bytes(source.kv_pages), strict=True):
        np.testing.assert_array_equal(still, sent)


def test_pools_with_other_pages_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"a page of the prefill pool has k .* float32, of the decode pool .* bfloat16"
    ):
        PoolTransfer(filled(4, jnp.float32, 0), filled(4, jnp.bfloat16, 0))
    half = filled(4, jnp.int8, 0)
    half.kv_pages = half.kv_pages._replace(k_scale=None, v_scale=None)
    with pytest.raises(ValueError, match="k_scale"):
        PoolTransfer(filled(4, jnp.int8, 0), half)


TWO_DEVICES = """
import types, jax, numpy as np, jax.numpy as jnp
from jpaged.config.options import ParallelConfig
from jpaged.core.plan import MoveKind, PageMove
from jpaged.runtime.mesh import DeviceMesh
from jpaged.runtime.page_mover import PageMover, PoolTransfer
from jpaged.runtime.programs import ProgramTable
from models.partition import POOL_SPEC
from pallas_kernels import KVPages
devices = jax.devices()
assert len(devices) == 4
def pool(value, over):
    mesh = DeviceMesh(ParallelConfig(tensor_parallel_size=len(over)), over)
    array = jnp.full((2, 9, 4, 2, 8), value, jnp.float32)
    kv_pages = KVPages(*(jax.device_put(array, mesh.sharding(POOL_SPEC) or mesh.device) for _ in range(2)))
    return types.SimpleNamespace(kv_pages=kv_pages, mover=PageMover(kv_pages, ProgramTable(), mesh))
for here, there in (
    (devices[:1], devices[1:2]),
    (devices[:2], devices[2:]),
    (devices[:1], devices[2:]),
):
    source, target = pool(1.0, here), pool(0.0, there)
    place = target.kv_pages.k.sharding
    PoolTransfer(source, target).move((PageMove(MoveKind.RECEIVE, 3, 5), PageMove(MoveKind.RECEIVE, 4, 1)))
    k = target.kv_pages.k
    assert k.sharding.is_equivalent_to(place, k.ndim), (k.sharding, place)
    assert np.asarray(k)[:, [1, 5]].min() == 1 and np.asarray(k).sum() == 2 * 2 * 4 * 2 * 8
print("moved")
"""


@pytest.mark.slow
def test_pages_move_between_devices_and_between_groups_of_devices() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == "moved\n", done.stderr[-2000:]


PROMPTS = random_prompts(10, 3, 30, seed=5)
WISHES = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    "drawn, with rules": SamplingParams(
        temperature=1.0, max_tokens=12, min_tokens=12, repetition_penalty=1.2, logit_bias={7: 1.5}, ignore_eos=True
    ),
    "two each": SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, n=2),
}


def requests(params: SamplingParams) -> list[Request]:
    return [
        Request(request_id=f"{i}", prompt_token_ids=tuple(prompt), params=params, seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]


def run(engine: Any, params: SamplingParams) -> dict[tuple[str, int], list[int]]:
    """The ids that an engine, or what looks like one, gives."""
    for request in requests(params):
        engine.add(request)
    given: dict[tuple[str, int], list[int]] = {}
    while engine.has_unfinished:
        for delta in engine.step():
            if delta.token_id is not None:
                given.setdefault((delta.request_id, delta.index), []).append(delta.token_id)
    return given


@pytest.fixture(scope="module")
def colocated() -> LLM:
    return tiny_llm(num_pages=64, page_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(("wish", "kv_cache_dtype"), [*((wish, "auto") for wish in WISHES), ("greedy", "int8")])
def test_prefill_on_one_engine_and_decode_on_another_give_the_tokens_of_one(
    wish: str, kv_cache_dtype: str, colocated: LLM
) -> None:
    options: dict[str, Any] = {"page_size": 4, "kv_cache_dtype": kv_cache_dtype}
    alone = colocated if kv_cache_dtype == "auto" else tiny_llm(num_pages=64, **options)
    expected = run(alone.engine, WISHES[wish])
    prefill = tiny_llm(num_pages=40, async_scheduling=False, **options)
    # So few pages that requests wait for room, and that some who decode are preempted.
    decode = tiny_llm(num_pages=26, num_host_pages=16, **options)
    both = Disaggregated(prefill.engine, decode.engine, PoolTransfer(prefill.runner, decode.runner))
    assert run(both, WISHES[wish]) == expected
    assert both.num_pages_moved > 20
    for llm in (prefill, decode):
        llm.engine.scheduler.check()
        assert llm.stats()["pages_free"] == llm.stats()["pages_total"]
    stats = decode.stats()
    assert stats["num_preemptions_recompute"] + stats["num_preemptions_swap"] > 0


def test_a_prefill_engine_that_plans_ahead_is_refused(colocated: LLM) -> None:
    with pytest.raises(ValueError, match=r"plans ahead; give it overlap=False"):
        Disaggregated(colocated.engine, colocated.engine, PoolTransfer(colocated.runner, colocated.runner))


def tiny_engine(replica: int) -> Any:
    return tiny_llm(num_pages=64, page_size=4).loop


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["in_turn", "threads", "processes"])
def test_replicas_on_a_device_give_the_tokens_of_one_engine(workers: str, colocated: LLM) -> None:
    expected = run(colocated.engine, WISHES["greedy"])
    with ReplicaSet(tiny_engine, Router(2, "prefix_affinity", page_size=4), workers=workers) as replicas:
        answers = replicas.run(requests(WISHES["greedy"]))
    assert {(name, 0): answer.token_ids[0] for name, answer in answers.items()} == expected
