"""Writes into int8 and fp8 pools, and copies of their pages, every implementation."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from quantised_cases import DTYPES, FORMATS, dequantised, rounding_bound

from pallas_kernels import KVPages, allocate, copy_pages, paged_attention, write_kv
from pallas_kernels.quantised import quantise

LAYERS, PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM = 4, 7, 3, 5, 8
SLOTS = PAGES * PAGE_SIZE


def tokens(count: int, seed: int = 1, size: float = 1.0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    shape = (count, KV_HEADS, HEAD_DIM)
    return tuple(jnp.asarray(size * rng.standard_normal(shape), jnp.float32) for _ in range(2))


def filled_pool(dtype) -> KVPages:
    """A pool whose every slot holds another token."""
    rng = np.random.default_rng(0)
    shape = (LAYERS * PAGES * PAGE_SIZE, KV_HEADS, HEAD_DIM)
    (k, k_scale), (v, v_scale) = (
        quantise(jnp.asarray(rng.standard_normal(shape), jnp.float32), dtype) for _ in range(2)
    )
    full = (LAYERS, PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    return KVPages(k.reshape(full), v.reshape(full), k_scale.reshape(full[:-1]), v_scale.reshape(full[:-1]))


def assert_same(got: KVPages, right: KVPages) -> None:
    for name, array, other in zip(KVPages._fields, got, right, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(array), np.asarray(other), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 0.01, 1.0, 1000.0, 1e30])
def test_every_value_comes_back_within_half_a_step_of_its_heads_scale(dtype, size):
    values = np.asarray(tokens(50, size=size)[0])
    back = dequantised(*quantise(jnp.asarray(values), dtype))
    assert (np.abs(back - values) <= rounding_bound(values.astype(np.float64), dtype)).all()


def test_int8_rounds_ties_to_even_and_uses_127_both_ways():
    heads = jnp.asarray([[[-127.0, 127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.4999]]])
    elements, scale = quantise(heads, jnp.int8)
    assert elements.tolist() == [[[-127, 127, 0, 2, 2, 0, -2, 3]]]
    assert scale.tolist() == [[1.0]]


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_fp8_rounds_as_ml_dtypes_does(dtype):
    values = np.asarray(tokens(50)[0])
    elements, scale = quantise(jnp.asarray(values), dtype)
    ratio = values * (1 / np.asarray(scale))[..., None]
    right = ratio.astype(getattr(ml_dtypes, jnp.dtype(dtype).name))
    np.testing.assert_array_equal(np.asarray(elements), right)
    assert np.abs(np.asarray(elements, np.float64)).max() == FORMATS[jnp.dtype(dtype).name][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_come_back_as_zeros_and_what_is_not_finite_as_nan(dtype):
    heads = np.ones((5, 1, 4), np.float32)
    heads[0], heads[1], heads[2, 0, 1], heads[3, 0, 2], heads[4, 0, 3] = 0, 1e-42, np.nan, np.inf, -np.inf
    elements, scale = jax.jit(quantise, static_argnums=1)(jnp.asarray(heads), dtype)
    back = dequantised(elements, scale)
    assert not back[:2].any()
    assert np.isnan(back[2:]).all()
    assert not np.asarray(elements, np.float32)[2:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [0, LAYERS - 1])
def test_exactly_the_named_slots_change_and_their_scales_with_them(run, dtype, layer):
    pool, slots = filled_pool(dtype), [5, -1, SLOTS, 0, 10**6, SLOTS - 1]
    k, v = tokens(len(slots))
    out = write_kv(pool, k, v, jnp.array(slots), layer=layer, **run)
    right = [np.array(array) for array in pool]
    for i, (values, name) in enumerate(((k, "k"), (v, "v"))):
        elements, scale = quantise(values, dtype)
        for token, slot in enumerate(slots):
            if 0 <= slot < SLOTS:
                place = (layer, slot // PAGE_SIZE, slot % PAGE_SIZE)
                right[i][place], right[2 + i][place] = elements[token], scale[token]
        assert getattr(out, name).dtype == dtype
    assert_same(out, KVPages(*right))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e5m2])
def test_a_copied_page_takes_its_scales_along(run, dtype):
    pool = filled_pool(dtype)
    out = copy_pages(pool, jnp.array([2, 5, 0, 0]), jnp.array([3, 1, 0, 0]), **run)
    order = np.array([0, 5, 2, 2, 4, 5, 6])
    assert_same(out, KVPages(*(array[:, order] for array in pool)))


def test_pages_larger_than_one_piece_are_copied_whole_and_so_are_their_scales():
    pool = allocate(2, 4, 48, 5, 16, jnp.int8)
    rng = np.random.default_rng(0)
    pool = KVPages(*(jnp.asarray(rng.integers(-9, 9, array.shape), array.dtype) for array in pool))
    out = copy_pages(pool, jnp.array([1]), jnp.array([3]), implementation="triton", interpret=True)
    assert_same(out, KVPages(*(array[:, np.array([0, 1, 2, 1])] for array in pool)))


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_a_pool_of_one_layer_may_have_four_axes(implementation):
    pool, (k, v) = filled_pool(jnp.int8), tokens(2)
    single = KVPages(*(array[1] for array in pool))
    out = write_kv(single, k, v, jnp.array([4, SLOTS]), implementation=implementation)
    right = write_kv(pool, k, v, jnp.array([4, SLOTS]), layer=1, implementation="reference")
    assert_same(out, KVPages(*(array[1] for array in right)))
    copied = copy_pages(single, jnp.array([1]), jnp.array([2]), implementation=implementation)
    np.testing.assert_array_equal(copied.k_scale[2], single.k_scale[1])


def test_writes_and_attention_of_every_layer_leave_a_donated_int8_pool_where_it_is():
    """Not asked of fp8 on the CPU, see `KVPages.as_bytes`."""

    def step(kv, k, v, slots, q):
        def one_layer(carry, layer):
            kv, q = carry
            kv = write_kv(kv, k, v, slots, layer=layer, implementation="xla")
            table, length = jnp.array([[1]]), jnp.array([2])
            return (kv, q + paged_attention(q, kv, table, length, layer=layer, implementation="xla")), None

        (kv, q), _ = lax.scan(one_layer, (kv, q), jnp.arange(LAYERS))
        return copy_pages(kv, jnp.array([1]), jnp.array([2]), implementation="xla"), q

    def memory(num_pages: int) -> int:
        kv = allocate(LAYERS, num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM, jnp.int8)
        k, v = tokens(2)
        args = kv, k, v, jnp.array([3, 4]), jnp.ones((1, KV_HEADS * 2, HEAD_DIM))
        compiled = jax.jit(step, donate_argnums=0).lower(*args).compile()
        assert compiled.memory_analysis().alias_size_in_bytes >= kv.nbytes
        pointers = [array.unsafe_buffer_pointer() for array in kv]
        out, _ = compiled(*args)
        assert [array.unsafe_buffer_pointer() for array in out] == pointers
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(64) == memory(4096)


def test_pools_and_scales_that_do_not_belong_together_are_refused_by_name():
    """F10: an absent scale is loud."""
    kv = allocate(1, 4, 3, 5, 8, jnp.int8)
    assert kv.k_scale.shape == (1, 4, 3, 5)
    assert kv.nbytes == 2 * 4 * 3 * 5 * (8 + 4)
    pair = jnp.array([1]), jnp.array([3])
    with pytest.raises(ValueError, match="needs v_scale"):
        copy_pages(kv._replace(v_scale=None), *pair)
    with pytest.raises(ValueError, match="needs k_scale"):
        copy_pages(kv._replace(k_scale=kv.k_scale[..., 0]), *pair)
    with pytest.raises(ValueError, match="needs k_scale"):
        copy_pages(kv._replace(k_scale=kv.k_scale.astype(jnp.bfloat16)), *pair)
    floats = allocate(1, 4, 3, 5, 8)
    with pytest.raises(ValueError, match="belong to int8 and fp8"):
        copy_pages(floats._replace(k_scale=kv.k_scale, v_scale=kv.v_scale), *pair)
    with pytest.raises(NotImplementedError, match="int16"):
        copy_pages(floats._replace(k=floats.k.astype(jnp.int16), v=floats.v.astype(jnp.int16)), *pair)
