"""Slot writes, every implementation."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KVPages, write_kv

LAYERS, PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM = 4, 7, 3, 5, 8
SLOTS = PAGES * PAGE_SIZE


def build_pool(dtype=jnp.float32) -> KVPages:
    rng = np.random.default_rng(0)
    shape = (LAYERS, PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    return KVPages(*(jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(2)))


def build_update(count: int) -> tuple[jnp.ndarray, jnp.ndarray]:
    rng = np.random.default_rng(1)
    return tuple(jnp.asarray(rng.standard_normal((count, KV_HEADS, HEAD_DIM)), jnp.float32) for _ in range(2))


def written(pool: KVPages, k, v, slots, layer) -> KVPages:
    arrays = [np.array(pool.k), np.array(pool.v)]
    for array, update in zip(arrays, (k, v), strict=True):
        for token, slot in enumerate(slots):
            if 0 <= slot < SLOTS:
                array[layer, slot // PAGE_SIZE, slot % PAGE_SIZE] = update[token]
    return KVPages(*arrays)


def assert_same(got: KVPages, right: KVPages) -> None:
    np.testing.assert_array_equal(got.k, right.k)
    np.testing.assert_array_equal(got.v, right.v)


@pytest.mark.parametrize("layer", [0, 2, LAYERS - 1])
def test_exactly_the_named_slots_of_one_layer_change(run, layer):
    pool, (k, v), slots = build_pool(), build_update(4), [5, 0, SLOTS - 1, 10]
    assert_same(write_kv(pool, k, v, jnp.array(slots), layer=layer, **run), written(pool, k, v, slots, layer))


@pytest.mark.parametrize("layer", [0, LAYERS - 1])
def test_slots_outside_the_layer_are_dropped_and_never_wrap_or_spill(run, layer):
    """E4: -1 is not the last slot, and slot P * S of layer 0 is not slot 0 of layer 1."""
    outside = [-1, SLOTS, SLOTS + 1, -SLOTS, 2 * SLOTS, 10**6, -(10**6)]
    slots = [5, *outside]
    pool, (k, v) = build_pool(), build_update(len(slots))
    assert_same(write_kv(pool, k, v, jnp.array(slots), layer=layer, **run), written(pool, k, v, slots, layer))


def test_updates_are_cast_to_the_dtype_of_the_pool(run):
    pool, (k, v) = build_pool(jnp.bfloat16), build_update(3)
    out = write_kv(pool, k, v, jnp.array([1, 2, 9]), layer=1, **run)
    assert out.k.dtype == out.v.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.k[1, 0, 1], k[0].astype(jnp.bfloat16))


def test_a_pool_of_one_layer_may_have_four_axes(run):
    pool, (k, v) = build_pool(), build_update(2)
    single = KVPages(pool.k[1], pool.v[1])
    out = write_kv(single, k, v, jnp.array([4, SLOTS]), **run)
    right = written(pool, k, v, [4, SLOTS], 1)
    assert_same(out, KVPages(right.k[1], right.v[1]))


def test_updates_of_the_wrong_shape_are_refused():
    pool, (k, v) = build_pool(), build_update(3)
    with pytest.raises(ValueError, match=r"\[4, 5, 8\]"):
        write_kv(pool, k, v, jnp.arange(4))
    with pytest.raises(ValueError, match="integers"):
        write_kv(pool, k, v, jnp.zeros(3))
