"""Decode attention, every implementation, against a float64 oracle."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, assert_right, build_case, expected

from pallas_kernels import paged_attention
from pallas_kernels.paged_attention import DecodeTuning


def lengths_around(page_size: int) -> list[int]:
    return [0, 1, max(page_size - 1, 1), page_size, page_size + 1, 4 * page_size, 24 * page_size + 1]


@pytest.mark.parametrize("page_size", [1, 3, 16, pytest.param(48, marks=pytest.mark.slow), 256])
def test_every_page_size_agrees_with_the_oracle_at_every_awkward_length(run, page_size):
    case = build_case(lengths_around(page_size), page_size=page_size)
    assert_right(paged_attention(*case.decode, layer=LAYER, **run), expected(case))


@pytest.mark.parametrize("length", [127, 128, 129, 257])
def test_xla_chunk_boundaries_are_invisible(length):
    case = build_case([length, 1, length - 1], page_size=16)
    assert_right(paged_attention(*case.decode, layer=LAYER, implementation="xla"), expected(case))


def test_a_table_narrower_than_a_chunk_is_read_no_further_than_its_width(fast_run):
    """E8: five columns of four tokens, every length that fits."""
    case = build_case(list(range(1, 21)), page_size=4, spare_columns=0)
    assert_right(paged_attention(*case.decode, layer=LAYER, **fast_run), expected(case))


@pytest.mark.parametrize("poison", [np.nan, np.inf, pytest.param(-np.inf, marks=pytest.mark.slow)])
def test_garbage_in_unfilled_slots_leaves_no_trace(fast_run, poison):
    """F1, F2, E5: partial and full last pages, with NaN or infinity in every slot that no row owns."""
    poisoned, clean = (build_case([6, 8, 1], page_size=4, garbage=[value]) for value in (poison, 0.0))
    out = paged_attention(*poisoned.decode, layer=LAYER, **fast_run)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out, paged_attention(*clean.decode, layer=LAYER, **fast_run))


def test_rows_with_nothing_to_attend_are_zero_and_harm_nobody(run):
    """F3: padding rows beside a row that fills one of the splits only."""
    case = build_case([0, 5, 0, 0])
    tuning = DecodeTuning(splits=4, block_tokens=16) if run["implementation"] == "triton" else None
    out = paged_attention(*case.decode, layer=LAYER, tuning=tuning, **run)
    assert not np.asarray(out)[[0, 2, 3]].any()
    assert_right(out, expected(case))


def test_a_batch_of_padding_rows_only_is_zero(fast_run):
    case = build_case([0, 0, 0])
    assert not np.asarray(paged_attention(*case.decode, layer=LAYER, **fast_run)).any()


@pytest.mark.parametrize(("page_size", "length"), [(256, 6400), (1, 700), (16, 3000)])
def test_one_dominant_key_in_the_middle_of_a_long_context_is_found(page_size, length):
    """F6: neither the first tokens nor the last page alone decide."""
    case = build_case([length], page_size=page_size, num_kv_heads=1, group=1, head_dim=16, num_layers=2)
    middle = length // 2
    page, offset = case.block_tables[0, middle // page_size], middle % page_size
    key = 40 * case.q[0, 0] / jnp.linalg.norm(case.q[0, 0])
    kv = case.kv._replace(k=case.kv.k.at[LAYER, page, offset, 0].set(key))
    out = paged_attention(case.q, kv, case.block_tables, case.context_lens, layer=LAYER, scale=1.0)
    np.testing.assert_allclose(out[0, 0], case.values[0][middle, 0], atol=1e-4)


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 7), (5, 1), (3, 17)])
def test_every_query_head_reads_the_kv_head_of_its_group(fast_run, num_kv_heads, group):
    """F7: values that name their kv head."""
    case = build_case([6, 4], num_kv_heads=num_kv_heads, group=group)
    owner = jnp.broadcast_to(jnp.arange(num_kv_heads, dtype=jnp.float32)[:, None], case.kv.v.shape[-2:])
    kv = case.kv._replace(v=jnp.broadcast_to(owner, case.kv.v.shape))
    out = paged_attention(case.q, kv, case.block_tables, case.context_lens, layer=LAYER, **fast_run)
    right = np.arange(num_kv_heads * group) // group
    np.testing.assert_allclose(out, np.broadcast_to(right[None, :, None], out.shape), atol=1e-5)


@pytest.mark.parametrize("head_dim", [8, 80, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)])
def test_sixteen_bit_pools_are_summed_in_float32(fast_run, dtype, head_dim):
    case = build_case([40, 7], dtype=dtype, head_dim=head_dim)
    out = paged_attention(*case.decode, layer=LAYER, **fast_run)
    assert out.dtype == dtype
    assert_right(out, expected(case), dtype)


def test_float32_queries_read_a_bfloat16_pool(run):
    case = build_case([40, 7], dtype=jnp.bfloat16, query_dtype=jnp.float32)
    out = paged_attention(*case.decode, layer=LAYER, **run)
    assert out.dtype == jnp.float32
    assert_right(out, expected(case))


SLOPES = np.linspace(0.05, 0.7, 15)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 9, "scale": 0.3},
        {"soft_cap": 0.8},
        {"alibi_slopes": SLOPES},
        {"window": 17, "soft_cap": 2.0, "alibi_slopes": SLOPES},
    ],
    ids=lambda options: "+".join(options),
)
def test_windows_soft_caps_and_slopes_agree_with_the_oracle(run, options):
    case = build_case([50, 9, 8, 10, 0])
    given = dict(options)
    if "alibi_slopes" in given:
        given["alibi_slopes"] = jnp.asarray(SLOPES, jnp.float32)
    assert_right(paged_attention(*case.decode, layer=LAYER, **given, **run), expected(case, **options))


def test_a_window_over_a_long_context_skips_what_it_hides():
    case = build_case([1000, 300], page_size=16, num_layers=2)
    out = paged_attention(*case.decode, layer=LAYER, window=200, implementation="xla")
    assert_right(out, expected(case, window=200))


def test_the_layer_may_be_traced(run):
    case = build_case([6, 4])
    out = jax.jit(lambda layer: paged_attention(*case.decode, layer=layer, **run))(jnp.int32(LAYER))
    assert_right(out, expected(case))


def test_a_pool_of_one_layer_may_have_four_axes(run):
    case = build_case([6, 4])
    kv = case.kv._replace(k=case.kv.k[LAYER], v=case.kv.v[LAYER])
    out = paged_attention(case.q, kv, case.block_tables, case.context_lens, **run)
    assert_right(out, expected(case))


@pytest.mark.slow
def test_xla_gives_a_row_the_same_bits_whatever_its_company():
    """F11: same chunks, same order of sums, among rows of any length, in batches of 8, 16 and 30 rows."""
    rows = []
    for company in (7, 15, 29):
        lengths = [300, *np.random.default_rng(company).integers(0, 500, company).tolist()]
        case = build_case(lengths, page_size=16, num_layers=2)
        # Draws for other rows shift what row 0 holds, so its arrays are taken from one and the same case.
        rows.append(_with_first_row_of(build_case([300], page_size=16, num_layers=2), case))
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


def _with_first_row_of(single, case) -> np.ndarray:
    pages = case.block_tables[0, :19], single.block_tables[0, :19]
    k, v = (
        pool.at[:, pages[0]].set(other[:, pages[1]]) for pool, other in zip(case.kv[:2], single.kv[:2], strict=True)
    )
    q = case.q.at[0].set(single.q[0])
    kv = case.kv._replace(k=k, v=v)
    out = paged_attention(q, kv, case.block_tables, case.context_lens, layer=LAYER, implementation="xla")
    alone = paged_attention(*single.decode, layer=LAYER, implementation="xla")
    np.testing.assert_allclose(out[0], alone[0], atol=2e-7)
    return np.asarray(out[0])


@pytest.mark.parametrize(
    ("num_kv_heads", "group", "dtype"),
    [
        pytest.param(
            *heads, dtype, marks=() if heads in [(3, 3), (8, 1)] and dtype == jnp.float32 else pytest.mark.slow
        )
        for dtype in (jnp.float32, jnp.float16, jnp.bfloat16)
        for heads in [(1, 1), (1, 3), (3, 3), (4, 1), (8, 1), (8, 2)]
    ],
    ids=lambda value: str(value) if isinstance(value, int) else jnp.dtype(value).name,
)
def test_xla_gives_a_row_the_same_bits_in_a_step_of_any_size(num_kv_heads, group, dtype):
    lengths = [int(n) for n in np.random.default_rng(1).integers(0, 400, 40)]
    case = build_case(lengths, num_kv_heads=num_kv_heads, group=group, head_dim=64, num_layers=2, dtype=dtype)
    q, kv, tables, context_lens = case.decode

    # The pool is an argument, as in an engine: a constant would be folded into every program, at the cost of seconds.
    @partial(jax.jit, static_argnames=("count",))
    def attend(q, kv, tables, context_lens, count):
        rows = (q[:count], kv, tables[:count], context_lens[:count])
        return paged_attention(*rows, layer=LAYER, implementation="xla")

    # A result of 16 bits seldom tells that it was summed in another order: hence many draws.
    for draw in range(3 if dtype == jnp.float32 else 20):
        queries = jnp.asarray(np.random.default_rng(draw).standard_normal(q.shape), q.dtype)
        whole = np.asarray(attend(queries, kv, tables, context_lens, 40))
        for count in (2, 3, 4, 8, 16, 32):
            np.testing.assert_array_equal(attend(queries, kv, tables, context_lens, count), whole[:count])


def test_xla_gives_the_same_bits_for_every_page_size():
    outs = []
    for page_size in (1, 3, 16, 256):
        case = build_case([300, 17, 128], page_size=page_size, num_layers=2)
        outs.append(np.asarray(paged_attention(*case.decode, layer=LAYER, implementation="xla")))
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


@pytest.mark.slow
def test_splits_and_tile_sizes_change_nothing_but_rounding():
    case = build_case([70, 1, 33, 0], page_size=4)
    for tuning in (DecodeTuning(splits=1), DecodeTuning(splits=8, block_tokens=16), DecodeTuning(block_tokens=128)):
        out = paged_attention(*case.decode, layer=LAYER, implementation="triton", interpret=True, tuning=tuning)
        assert_right(out, expected(case))
    out = paged_attention(*case.decode, layer=LAYER, implementation="xla", tuning=DecodeTuning(block_tokens=24))
    assert_right(out, expected(case))
