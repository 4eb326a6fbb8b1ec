"""Mosaic GPU ragged attention, interpreted with race detection: Hopper's kernel against the float64 oracle.

The interpreter raises where two threads race, and starts shared memory as NaN.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, assert_right, build_case, expected

from pallas_kernels import ragged_paged_attention
from pallas_kernels.ragged_paged_attention import RaggedTuning

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")

INTERPRETED = {"implementation": "mosaic_gpu", "interpret": True}
SMALL = {"num_kv_heads": 1, "num_layers": 2, "head_dim": 64, "dtype": jnp.bfloat16}


def test_chunks_decode_rows_and_empty_rows_share_a_call():
    case = build_case([70, 9, 0, 130], [20, 1, 0, 3], page_size=16, padding_queries=2, **SMALL | {"group": 4})
    out = ragged_paged_attention(*case.ragged, layer=LAYER, **INTERPRETED)
    assert not np.asarray(out)[-2:].any()
    assert_right(out, expected(case), jnp.bfloat16)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"window": 21, "soft_cap": 0.8}, {"page_size": 8, "group": 5}),
        ({}, {"page_size": 24, "group": 3, "head_dim": 128, "dtype": jnp.float16}),
    ],
)
def test_queries_in_several_blocks_see_up_to_themselves(options, sizes):
    """A group that does not divide 64 leaves rows of a block unused; a window starts later for later rows."""
    case = build_case([90, 33], [30, 33], **SMALL | sizes)
    out = ragged_paged_attention(*case.ragged, layer=LAYER, tuning=RaggedTuning(num_stages=2), **options, **INTERPRETED)
    assert_right(out, expected(case, **options), sizes.get("dtype", jnp.bfloat16))


@pytest.mark.slow
def test_one_query_head_a_kv_head_fills_a_block_with_64_queries():
    case = build_case([129, 70], [65, 64], page_size=64, **SMALL | {"group": 1})
    assert_right(ragged_paged_attention(*case.ragged, layer=LAYER, **INTERPRETED), expected(case), jnp.bfloat16)
