"""Writes and copies leave a donated pool where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_kernels import KVPages, allocate, copy_pages, paged_attention, write_kv

LAYERS, PAGE_SIZE, KV_HEADS, GROUP, HEAD_DIM, ROWS = 4, 16, 3, 2, 32, 8


def write_then_attend_in_every_layer(kv: KVPages, update, slots, tables, lens, q):
    def layer_step(carry, layer):
        pool, query = carry
        pool = write_kv(pool, update, update, slots, layer=layer, implementation="xla")
        query = query + paged_attention(query, pool, tables, lens, layer=layer, implementation="xla")
        return (pool, query), None

    (kv, q), _ = lax.scan(layer_step, (kv, q), jnp.arange(LAYERS))
    return kv, q


def arguments(num_pages: int, dtype):
    kv = allocate(LAYERS, num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM, dtype)
    update = jnp.ones((ROWS, KV_HEADS, HEAD_DIM), jnp.float32)
    slots = jnp.arange(1, ROWS + 1, dtype=jnp.int32) * PAGE_SIZE
    tables = jnp.arange(1, ROWS + 1, dtype=jnp.int32)[:, None]
    return kv, update, slots, tables, jnp.ones(ROWS, jnp.int32), jnp.ones((ROWS, KV_HEADS * GROUP, HEAD_DIM), dtype)


def temporary_bytes(function, *args) -> int:
    analysis = jax.jit(function, donate_argnums=0).lower(*args).compile().memory_analysis()
    assert analysis.alias_size_in_bytes >= args[0].nbytes
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_layer_loop_needs_no_memory_that_grows_with_the_pool(dtype):
    small, large = (temporary_bytes(write_then_attend_in_every_layer, *arguments(n, dtype)) for n in (64, 4096))
    assert small == large
    assert large < 4 * 2**20


def test_the_layer_loop_writes_into_the_buffer_that_it_was_given():
    kv, *rest = arguments(512, jnp.float32)
    pointers = kv.k.unsafe_buffer_pointer(), kv.v.unsafe_buffer_pointer()
    out, _ = jax.jit(write_then_attend_in_every_layer, donate_argnums=0)(kv, *rest)
    assert kv.k.is_deleted()
    assert (out.k.unsafe_buffer_pointer(), out.v.unsafe_buffer_pointer()) == pointers
    np.testing.assert_array_equal(out.k[:, 1:9, 0].sum((1, 2, 3)), np.full(LAYERS, ROWS * KV_HEADS * HEAD_DIM))


def test_page_copies_need_memory_for_the_copied_pages_only():
    pairs = jnp.array([1, 2, 0]), jnp.array([5, 6, 0])
    small, large = (
        temporary_bytes(
            lambda kv, src, dst: copy_pages(kv, src, dst, implementation="xla"), arguments(n, jnp.float32)[0], *pairs
        )
        for n in (64, 4096)
    )
    assert small == large
    assert large < 2**20


def test_page_copies_write_into_the_buffer_that_they_were_given():
    kv = arguments(64, jnp.float32)[0]
    pointer = kv.k.unsafe_buffer_pointer()
    out = jax.jit(copy_pages, donate_argnums=0)(kv, jnp.array([1]), jnp.array([5]))
    assert out.k.unsafe_buffer_pointer() == pointer
