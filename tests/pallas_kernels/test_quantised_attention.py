"""Both attentions over int8 and fp8 pools, every implementation, against a float64 oracle."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, Case, assert_right, build_case, expected
from quantised_cases import DTYPES, error_bound, quantised

from pallas_kernels import KVPages, paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention import DecodeTuning

SLOPES = np.linspace(0.05, 0.7, 15)
MOST_DTYPES = [jnp.int8, jnp.float8_e4m3fn, pytest.param(jnp.float8_e5m2, marks=pytest.mark.slow)]
MIXED = ([9, 1, 20, 0, 33, 7, 2], [4, 1, 1, 0, 33, 0, 2])


@pytest.mark.parametrize("dtype", MOST_DTYPES)
def test_decode_agrees_with_the_oracle_on_what_the_pool_gives_back(run, dtype):
    case = quantised(build_case([0, 1, 15, 16, 17, 150], page_size=16), dtype)
    assert_right(paged_attention(*case.decode, layer=LAYER, **run), expected(case))


@pytest.mark.parametrize("dtype", MOST_DTYPES)
def test_chunks_and_decode_rows_agree_with_the_oracle_on_what_the_pool_gives_back(run, dtype):
    case = quantised(build_case(*MIXED, page_size=16, padding_queries=5), dtype)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **run)
    assert not np.asarray(out[-5:]).any()
    assert_right(out, expected(case))


@pytest.mark.parametrize("page_size", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 48, 256))])
def test_every_page_size_agrees_with_the_oracle(fast_run, page_size):
    case = quantised(build_case([0, 1, page_size + 1, 100], page_size=page_size), jnp.int8)
    assert_right(paged_attention(*case.decode, layer=LAYER, **fast_run), expected(case))
    case = quantised(build_case([1, 70], [1, 20], page_size=page_size), jnp.int8)
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, **fast_run), expected(case))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_against_unquantised_attention_stays_below_the_bound_that_the_scales_give(dtype):
    """F10: the bound is derived in `error_bound`; int8 is some 16 times finer than float8_e4m3fn on such heads."""
    case = build_case([40, 7, 130], [3, 7, 1], page_size=16, head_dim=16)
    held = quantised(case, dtype)
    error = np.abs(np.asarray(ragged_paged_attention(*held.ragged, layer=LAYER), np.float64) - expected(case))
    bound = error_bound(case, dtype)
    assert (error.max(axis=-1) <= bound).all()
    assert error.max() < {"int8": 0.02, "float8_e4m3fn": 0.15, "float8_e5m2": 0.3}[jnp.dtype(dtype).name]


@pytest.mark.parametrize("size", [1e-2, pytest.param(1e3, marks=pytest.mark.slow)])
def test_an_outlier_head_and_any_magnitude_cost_the_other_heads_nothing(fast_run, size):
    """F10: one scale a token and head, so a head 1000 times the others does not coarsen them."""
    case = build_case([40, 7], page_size=16)
    loud = [
        [tokens * size * np.where(np.arange(5) == 2, 1000, 1)[:, None] for tokens in x]
        for x in (case.keys, case.values)
    ]
    held = quantised(_with_dense(case, *loud), jnp.int8)
    scale = case.q.shape[-1] ** -0.5 / size
    out = np.asarray(paged_attention(*held.decode, layer=LAYER, scale=scale, **fast_run), np.float64)
    right = expected(_with_dense(case, *loud), scale=scale)
    quiet = np.arange(15) // 3 != 2
    assert np.abs(out - right)[:, quiet].max() < 0.05 * size
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", [jnp.int8, pytest.param(jnp.float8_e4m3fn, marks=pytest.mark.slow)])
@pytest.mark.parametrize("poison", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_garbage_in_unfilled_slots_and_their_scales_leaves_no_trace(fast_run, dtype, poison):
    poisoned, clean = (
        quantised(build_case([6, 8, 1, 0], [5, 2, 1, 0], page_size=4, padding_queries=3), dtype, [value])
        for value in (poison, 0.0)
    )
    out = ragged_paged_attention(*poisoned.ragged, layer=LAYER, **fast_run)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out, ragged_paged_attention(*clean.ragged, layer=LAYER, **fast_run))
    poisoned, clean = (quantised(build_case([6, 8, 1, 0], page_size=4), dtype, [x]) for x in (poison, 0.0))
    out = paged_attention(*poisoned.decode, layer=LAYER, **fast_run)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out, paged_attention(*clean.decode, layer=LAYER, **fast_run))


@pytest.mark.parametrize(
    "options",
    [{"window": 9, "scale": 0.3}, {"window": 17, "soft_cap": 2.0, "alibi_slopes": SLOPES}],
    ids=lambda options: "+".join(options),
)
def test_windows_soft_caps_and_slopes_act_on_scaled_scores(run, options):
    given = dict(options)
    if "alibi_slopes" in given:
        given["alibi_slopes"] = jnp.asarray(SLOPES, jnp.float32)
    case = quantised(build_case([50, 9, 10, 0], [30, 1, 10, 0]), jnp.int8)
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, **given, **run), expected(case, **options))
    case = quantised(build_case([50, 9, 8, 10, 0]), jnp.int8)
    assert_right(paged_attention(*case.decode, layer=LAYER, **given, **run), expected(case, **options))


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 7), pytest.param(5, 1, marks=pytest.mark.slow)])
def test_every_query_head_takes_the_scales_of_its_own_kv_head(fast_run, num_kv_heads, group):
    case = quantised(build_case([6, 40], [3, 1], num_kv_heads=num_kv_heads, group=group), jnp.int8)
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, **fast_run), expected(case))


@pytest.mark.parametrize("query_dtype", [jnp.float16, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [jnp.int8, pytest.param(jnp.float8_e5m2, marks=pytest.mark.slow)])
def test_sixteen_bit_queries_of_small_values_lose_nothing_to_the_range_of_float16(fast_run, query_dtype, dtype):
    """Values of 1e-3 have scales of 1e-8 in float8_e5m2: below every float16 number, once folded into a weight."""
    case = build_case([40, 7], [20, 1], dtype=query_dtype, head_dim=80, num_kv_heads=3)
    case = quantised(_with_dense(case, case.keys, [x * 1e-3 for x in case.values]), dtype)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **fast_run)
    assert out.dtype == query_dtype
    assert_right(out * 1000, expected(case) * 1000, jnp.bfloat16)


def test_a_pool_of_one_layer_may_have_four_axes(run):
    case = quantised(build_case([6, 4]), jnp.int8)
    kv = KVPages(*(array[LAYER] for array in case.kv))
    assert_right(paged_attention(case.q, kv, case.block_tables, case.context_lens, **run), expected(case))


@pytest.mark.parametrize("array", ["k", "v"])
def test_a_token_that_was_not_finite_is_loud_in_the_rows_that_see_it_and_in_no_other(run, array):
    case = quantised(build_case([6, 9]), jnp.int8)
    page = case.block_tables[0, 0]
    scales = getattr(case.kv, f"{array}_scale").at[LAYER, page, 1].set(jnp.nan)
    kv = case.kv._replace(**{f"{array}_scale": scales})
    out = np.asarray(paged_attention(case.q, kv, case.block_tables, case.context_lens, layer=LAYER, **run))
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out[1], expected(case)[1], atol=3e-6)


@pytest.mark.slow
def test_xla_gives_the_same_bits_for_every_page_size():
    outs = []
    for page_size in (1, 3, 16, 256):
        case = quantised(build_case([300, 17, 128], page_size=page_size, num_layers=2), jnp.int8)
        outs.append(np.asarray(paged_attention(*case.decode, layer=LAYER, implementation="xla")))
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


def test_splits_are_merged_as_in_float_pools():
    case = quantised(build_case([70, 1, 33, 0], page_size=4), jnp.int8)
    tuning = DecodeTuning(splits=4, block_tokens=16)
    out = paged_attention(*case.decode, layer=LAYER, implementation="triton", interpret=True, tuning=tuning)
    assert_right(out, expected(case))


def _with_dense(case: Case, keys: list[np.ndarray], values: list[np.ndarray]) -> Case:
    """The case with other tokens; its float pool keeps the old ones, so quantise it before it is read."""
    return replace(case, keys=keys, values=values)
