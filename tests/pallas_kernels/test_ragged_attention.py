"""Ragged attention, every implementation, against a float64 oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, assert_right, build_case, expected

from pallas_kernels import paged_attention, ragged_paged_attention
from pallas_kernels.ragged_paged_attention import RaggedTuning
from pallas_kernels.ragged_paged_attention.rows import place_blocks, place_queries

SLOPES = np.linspace(0.05, 0.7, 15)


@pytest.mark.parametrize("page_size", [1, 3, 16, pytest.param(48, marks=pytest.mark.slow), 256])
def test_chunks_decode_rows_and_idle_rows_share_one_call(run, page_size):
    case = build_case([9, 1, 20, 0, 33, 7, 2], [4, 1, 1, 0, 33, 0, 2], page_size=page_size, padding_queries=5)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **run)
    assert not np.asarray(out[-5:]).any()
    assert_right(out, expected(case))


@pytest.mark.parametrize("count", [63, 64, 65, 130])
def test_xla_block_and_chunk_boundaries_are_invisible(count):
    case = build_case([count, count + 127, 129], [count, count, 1], num_kv_heads=3, num_layers=2)
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, implementation="xla"), expected(case))


@pytest.mark.slow
def test_prefill_in_chunks_gives_what_prefill_at_once_gives(fast_run):
    """E3: every split of 13 tokens into two chunks."""
    whole = build_case([13], [13])
    right = expected(whole)
    for first in (1, 5, 12):
        q, kv, tables, _, _ = whole.ragged
        parts = [
            ragged_paged_attention(
                q[start:end], kv, tables, jnp.array([end]), jnp.array([0, end - start]), layer=LAYER, **fast_run
            )
            for start, end in ((0, first), (first, 13))
        ]
        assert_right(jnp.concatenate(parts), right)


def test_rows_of_one_query_give_what_decode_gives(run):
    case = build_case([9, 1, 20, 0])
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **run)
    np.testing.assert_allclose(out, paged_attention(*case.decode, layer=LAYER, **run), atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, pytest.param(-np.inf, marks=pytest.mark.slow)])
def test_garbage_in_unfilled_slots_leaves_no_trace(fast_run, poison):
    """F1, F2, E5: with NaN or infinity in every slot that no row owns, the null page included."""
    poisoned, clean = (
        build_case([6, 8, 1, 0], [5, 2, 1, 0], page_size=4, padding_queries=3, garbage=[value])
        for value in (poison, 0.0)
    )
    out = ragged_paged_attention(*poisoned.ragged, layer=LAYER, **fast_run)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out, ragged_paged_attention(*clean.ragged, layer=LAYER, **fast_run))


def test_garbage_in_padding_queries_leaves_no_trace(fast_run):
    case = build_case([6, 8], [5, 1], padding_queries=3)
    q = case.q.at[-3:].set(jnp.nan)
    out = ragged_paged_attention(q, *case.ragged[1:], layer=LAYER, **fast_run)
    assert_right(out, expected(case))


def test_a_step_without_any_query_is_zero(fast_run):
    case = build_case([0, 0], [0, 0], padding_queries=4)
    assert not np.asarray(ragged_paged_attention(*case.ragged, layer=LAYER, **fast_run)).any()


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 7), (5, 1)])
def test_every_query_head_reads_the_kv_head_of_its_group(fast_run, num_kv_heads, group):
    """F7: values that name their kv head."""
    case = build_case([6, 4], [3, 4], num_kv_heads=num_kv_heads, group=group)
    owner = jnp.broadcast_to(jnp.arange(num_kv_heads, dtype=jnp.float32)[:, None], case.kv.v.shape[-2:])
    kv = case.kv._replace(v=jnp.broadcast_to(owner, case.kv.v.shape))
    out = ragged_paged_attention(case.q, kv, *case.ragged[2:], layer=LAYER, **fast_run)
    right = np.arange(num_kv_heads * group) // group
    np.testing.assert_allclose(out, np.broadcast_to(right[None, :, None], out.shape), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)])
def test_sixteen_bit_pools_are_summed_in_float32(fast_run, dtype):
    case = build_case([40, 7], [20, 1], dtype=dtype, head_dim=80, num_kv_heads=3)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **fast_run)
    assert out.dtype == dtype
    assert_right(out, expected(case), dtype)


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
    case = build_case([50, 9, 10, 0], [30, 1, 10, 0])
    given = dict(options)
    if "alibi_slopes" in given:
        given["alibi_slopes"] = jnp.asarray(SLOPES, jnp.float32)
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, **given, **run), expected(case, **options))


def test_a_window_over_a_long_context_skips_what_it_hides():
    case = build_case([700, 300], [90, 1], page_size=16, num_layers=2)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, window=200, implementation="xla")
    assert_right(out, expected(case, window=200))


def test_the_layer_may_be_traced(run):
    case = build_case([6, 4], [3, 1])
    out = jax.jit(lambda layer: ragged_paged_attention(*case.ragged, layer=layer, **run))(jnp.int32(LAYER))
    assert_right(out, expected(case))


@pytest.mark.slow
def test_block_sizes_change_nothing_but_rounding():
    case = build_case([70, 1, 33, 0], [40, 1, 33, 0], page_size=4)
    for tuning in (RaggedTuning(block_queries=4, block_tokens=16), RaggedTuning(block_queries=32, num_warps=8)):
        out = ragged_paged_attention(*case.ragged, layer=LAYER, implementation="triton", interpret=True, tuning=tuning)
        assert_right(out, expected(case))
    tuning = RaggedTuning(block_queries=7, block_tokens=24)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, implementation="xla", tuning=tuning)
    assert_right(out, expected(case))


@pytest.mark.slow
def test_xla_gives_the_same_bits_for_every_page_size():
    outs = []
    for page_size in (1, 3, 16, 256):
        case = build_case([300, 17, 128], [100, 1, 128], page_size=page_size, num_layers=2)
        outs.append(np.asarray(ragged_paged_attention(*case.ragged, layer=LAYER, implementation="xla")))
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


def test_queries_are_placed_at_the_end_of_their_rows():
    starts, lengths = jnp.array([0, 0, 3, 4]), jnp.array([5, 7, 1])
    row, position = place_queries(starts, lengths, 6)
    assert row.tolist()[:4] == [1, 1, 1, 2]
    assert position.tolist() == [4, 5, 6, 0, -1, -1]


def test_blocks_of_queries_cover_every_row_once():
    row, first = place_blocks(jnp.array([0, 5, 5, 6, 14]), 14, 4)
    counts = np.array([5, 0, 1, 8])
    needed = [(int(r), int(f)) for r, f in zip(row, first, strict=True) if f < counts[r]]
    assert needed == [(0, 0), (0, 4), (2, 0), (3, 0), (3, 4)]
