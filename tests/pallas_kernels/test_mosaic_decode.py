"""Mosaic GPU decode attention: the kernel interpreted, with race detection, and lowered.

The interpreter raises where two threads race, and starts shared memory as NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import LAYER, assert_right, build_case, expected
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels import KVPages, paged_attention, ragged_paged_attention
from pallas_kernels.paged_attention import DecodeTuning

# Rows past a group's heads are multiplied as the shared memory holds them, NaN in the interpreter, and never stored.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")

INTERPRETED = {"implementation": "mosaic_gpu", "interpret": True}
SMALL = {"num_kv_heads": 1, "num_layers": 2, "head_dim": 64, "dtype": jnp.bfloat16}


@pytest.mark.parametrize("page_size", [8, 24, pytest.param(64, marks=pytest.mark.slow), 256])
def test_every_page_size_agrees_with_the_oracle_at_awkward_lengths(page_size):
    case = build_case([0, 1, page_size, 129], page_size=page_size, **SMALL)
    out = paged_attention(*case.decode, layer=LAYER, tuning=DecodeTuning(splits=2), **INTERPRETED)
    assert not np.asarray(out)[0].any()
    assert_right(out, expected(case), jnp.bfloat16)


@pytest.mark.parametrize(
    ("lengths", "stages", "splits"),
    [
        ([64, 65], 2, 4),
        ([63, 320], 2, 1),
        pytest.param([128, 191], 3, 2, marks=pytest.mark.slow),
    ],
)
def test_block_boundaries_stages_and_splits_are_invisible(lengths, stages, splits):
    case = build_case(lengths, page_size=16, **SMALL)
    tuning = DecodeTuning(splits=splits, num_stages=stages)
    out = paged_attention(*case.decode, layer=LAYER, tuning=tuning, **INTERPRETED)
    assert_right(out, expected(case), jnp.bfloat16)


@pytest.mark.parametrize("options", [{"window": 70}, {"soft_cap": 0.8, "window": 1}], ids=str)
def test_windows_and_soft_caps_agree_with_the_oracle(options):
    case = build_case([200, 9], page_size=16, num_kv_heads=2, group=5, num_layers=2, head_dim=128, dtype=jnp.float16)
    out = paged_attention(*case.decode, layer=LAYER, **options, **INTERPRETED)
    assert_right(out, expected(case, **options), jnp.float16)


def test_pages_that_a_window_has_left_behind_are_not_read():
    case = build_case([200], page_size=16, **SMALL)
    # The window's first token, 150, lies in page 9; ids past the pool stand for pages that were given back.
    tables = case.block_tables.at[0, :9].set(10**6)
    out = paged_attention(case.q, case.kv, tables, case.context_lens, layer=LAYER, window=50, **INTERPRETED)
    assert_right(out, expected(case, window=50), jnp.bfloat16)


def test_every_query_head_reads_the_kv_head_of_its_group_and_the_layer_may_be_traced():
    case = build_case([70], page_size=8, **SMALL | {"num_kv_heads": 3, "group": 9})
    attend = jax.jit(lambda layer: paged_attention(*case.decode, layer=layer, **INTERPRETED))
    assert_right(attend(jnp.int32(LAYER)), expected(case), jnp.bfloat16)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({"page_size": 12}, {}, "page_size=12"),
        ({"head_dim": 80}, {}, "head_dim=80"),
        ({"dtype": jnp.float32}, {}, "float32"),
        ({"query_dtype": jnp.float32}, {}, "queries of float32"),
        ({"group": 65}, {}, "65 query heads"),
        ({}, {"alibi_slopes": jnp.ones(3)}, "alibi_slopes"),
        ({}, {"tuning": DecodeTuning(num_warps=4)}, "block_tokens and splits and num_stages only"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_with_the_reason(sizes, options, words):
    case = build_case([5], **SMALL | {"page_size": 16} | sizes)
    with pytest.raises(NotImplementedError, match=words):
        paged_attention(*case.decode, layer=LAYER, **options, **INTERPRETED)


@pytest.mark.parametrize(
    "tuning", [DecodeTuning(block_tokens=48), DecodeTuning(num_stages=1), DecodeTuning(num_stages=20)]
)
def test_tuning_that_does_not_fit_the_hardware_is_refused(tuning):
    case = build_case([5], page_size=16, **SMALL)
    with pytest.raises(ValueError, match="num_stages"):
        paged_attention(*case.decode, layer=LAYER, tuning=tuning, **INTERPRETED)


def test_a_machine_without_an_nvidia_gpu_is_told_to_interpret():
    case = build_case([5], page_size=16, **SMALL)
    with pytest.raises(NotImplementedError, match="interpret=True"):
        paged_attention(*case.decode, layer=LAYER, implementation="mosaic_gpu")


def lowered_for(kind: str, num_cores: int) -> str:
    def shaped(*shape: int, dtype=jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    pages = shaped(6, 64, 16, 8, 128, dtype=jnp.bfloat16)
    args = shaped(8, 32, 128, dtype=jnp.bfloat16), KVPages(pages, pages), shaped(8, 16), shaped(8), shaped()
    device = AbstractDevice(device_kind=kind, num_cores=num_cores, platform="gpu")

    def run(q, kv, tables, lengths, layer):
        return paged_attention(q, kv, tables, lengths, layer=layer, implementation="mosaic_gpu")

    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        return jax.jit(run).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("kind", "cores"), [("NVIDIA H100 80GB HBM3", 132), ("NVIDIA H200", 132)])
def test_the_kernel_lowers_for_cuda(kind, cores):
    assert lowered_for(kind, cores).count("@mosaic_gpu_v2") == 1


@pytest.mark.parametrize("ragged", [False, True])
def test_a_gpu_other_than_hopper_is_refused(ragged):
    case = build_case([5], page_size=16, **SMALL)
    attend, arguments = (ragged_paged_attention, case.ragged) if ragged else (paged_attention, case.decode)
    device = AbstractDevice(device_kind="NVIDIA A100-SXM4-80GB", num_cores=108, platform="gpu")
    with (
        jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
        pytest.raises(NotImplementedError, match="Hopper only"),
    ):
        attend(*arguments, implementation="mosaic_gpu")
