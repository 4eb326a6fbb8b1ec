"""Several devices give the tokens of one, whatever is shared, copied, preempted, swapped or found in the cache."""

from typing import Any

import pytest

from tests.sharding.emulated import run_emulated
from tests.sharding.workload import EVENTS

# llama: two kv heads, which four and eight shards repeat, biases, and a vocabulary that nothing divides.
CASES = [("llama", 2), ("llama", 4), ("llama", 8), ("opt", 2), ("opt", 8), ("llama-tied", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shards"), CASES)
def test_shards_give_the_tokens_of_one_device(checkpoints, of_one_device, kind, shards):
    model = str(checkpoints[kind])
    got = run_emulated("tests.sharding.workload:answers", devices=shards, model=model, tensor_parallel_size=shards)
    assert got["devices"] == shards
    assert got["ids"] == of_one_device(kind)
    assert all(got["events"][name] > 0 for name in EVENTS), got["events"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype"), [("llama", "auto"), ("opt", "int8")])
def test_the_compiler_s_own_collectives_give_the_same_tokens(checkpoints, of_one_device, kind, dtype):
    arguments: dict[str, Any] = {"model": str(checkpoints[kind]), "kv_cache_dtype": dtype}
    function = "tests.sharding.workload:answers"
    got = run_emulated(function, devices=4, **arguments, tensor_parallel_size=4, parallel_style="pjit")
    want = of_one_device(kind) if dtype == "auto" else run_emulated(function, devices=1, **arguments)["ids"]
    assert got["ids"] == want


@pytest.mark.slow
def test_a_pool_of_scaled_bytes_is_split_with_its_scales(checkpoints):
    arguments: dict[str, Any] = {"model": str(checkpoints["llama"]), "kv_cache_dtype": "int8"}
    function = "tests.sharding.workload:answers"
    one, four = (run_emulated(function, devices=n, **arguments, tensor_parallel_size=n) for n in (1, 4))
    assert four["ids"] == one["ids"]
