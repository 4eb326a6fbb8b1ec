"""Models with many kv heads take another way through XLA on the CPU: it is as right as the other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, assert_right, build_case, expected
from quantised_cases import DTYPES, quantised

from pallas_kernels import paged_attention
from pallas_kernels.numerics import LEAST_SUMMED
from pallas_kernels.paged_attention import xla

XLA = {"implementation": "xla", "layer": LAYER}
# Lengths on both sides of a chunk, an empty row, and more rows than go together.
LENGTHS = [300, 1, 0, 128, 129, 5, 77, 256, 12, 40, 130]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("num_kv_heads", [xla.PER_HEAD_FROM, 13])
def test_many_kv_heads_agree_with_float64(num_kv_heads, group):
    case = build_case(LENGTHS, num_kv_heads=num_kv_heads, group=group)
    assert_right(jax.jit(partial(paged_attention, **XLA))(*case.decode), expected(case))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_many_kv_heads_agree_with_float64_in_16_bits(dtype):
    case = build_case([200, 3, 0], num_kv_heads=9, group=2, dtype=dtype)
    assert_right(paged_attention(*case.decode, **XLA), expected(case), dtype)


@pytest.mark.parametrize(
    "options", [{"window": 3}, {"window": 140}, {"soft_cap": 1.5}, {"alibi_slopes": np.linspace(0.01, 0.5, 16)}]
)
def test_many_kv_heads_know_every_option(options):
    case = build_case([200, 3, 0], num_kv_heads=8, group=2)
    given = {name: jnp.asarray(x, jnp.float32) if name == "alibi_slopes" else x for name, x in options.items()}
    assert_right(paged_attention(*case.decode, **XLA, **given), expected(case, **options))


@pytest.mark.parametrize("group", [1, 2])
def test_many_kv_heads_neither_see_the_page_size_nor_the_company(group):
    rows = [build_case([150, 9, 31], page_size=s, num_kv_heads=8, group=group) for s in (1, 16, 256)]
    outs = [np.asarray(paged_attention(*case.decode, **XLA)) for case in rows]
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])
    q, kv, tables, lengths = rows[1].decode
    np.testing.assert_array_equal(paged_attention(q[:2], kv, tables[:2], lengths[:2], **XLA), outs[0][:2])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_that_go_two_at_a_time_are_what_they_are_alone(dtype):
    case = build_case([200, 30, 129, 7, 61], page_size=16, num_kv_heads=8, head_dim=128, num_layers=2, dtype=dtype)
    assert xla.rows_together(case.q, case.kv, xla.CHUNK_TOKENS) < 5
    q, kv, tables, lengths = case.decode
    attend = jax.jit(partial(paged_attention, **XLA))
    together = np.asarray(attend(q, kv, tables, lengths).astype(jnp.float32))
    # Two at the least, as the steps of an engine have.
    for count in (2, 3):
        fewer = attend(q[:count], kv, tables[:count], lengths[:count]).astype(jnp.float32)
        np.testing.assert_array_equal(fewer, together[:count])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: jnp.dtype(dtype).name)
def test_many_kv_heads_read_quantised_pools(dtype):
    case = quantised(build_case([200, 3, 0], num_kv_heads=8, group=2), dtype)
    assert_right(paged_attention(*case.decode, **XLA), expected(case))


def test_wide_tokens_go_few_rows_at_a_time():
    wide = build_case([3], num_kv_heads=8, group=4, head_dim=512, dtype=jnp.float32)
    narrow = build_case([3], num_kv_heads=8, head_dim=8)
    few = build_case([3], num_kv_heads=7, head_dim=512)
    together = [xla.rows_together(case.q, case.kv, xla.CHUNK_TOKENS) for case in (wide, narrow, few)]
    assert together == [1, 16, 8]


def test_enough_rows_go_together_that_their_weights_are_summed_as_those_of_more():
    one_head = build_case([3], num_kv_heads=1, group=1, head_dim=8)
    assert xla.rows_together(one_head.q, one_head.kv, xla.CHUNK_TOKENS) * xla.CHUNK_TOKENS >= LEAST_SUMMED
