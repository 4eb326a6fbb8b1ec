"""Which implementation runs, and what is refused with which words."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import build_case
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels import (
    KVPages,
    allocate,
    beside_attention,
    paged_attention,
    ragged_paged_attention,
    resolve,
    write_kv,
)
from pallas_kernels.paged_attention import DecodeTuning
from pallas_kernels.ragged_paged_attention import RaggedTuning


def test_each_platform_has_its_default():
    assert resolve("paged_attention", platform="cpu") == "xla"
    assert resolve("paged_attention", platform="gpu") == "triton"
    assert resolve("write_kv", platform="cuda") == "triton"
    assert resolve("copy_pages", platform="tpu") == "xla"


def test_a_trace_for_an_abstract_gpu_gets_the_gpu_default():
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    assert resolve("paged_attention") == "xla"
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        assert resolve("paged_attention") == "triton"


def test_a_named_implementation_is_the_one_that_runs():
    assert resolve("paged_attention", "reference", "gpu") == "reference"


def test_unknown_names_are_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="reference, xla, triton, mosaic_gpu"):
        resolve("paged_attention", "cuda")
    with pytest.raises(ValueError, match="copy_pages"):
        resolve("attention")


def test_pages_are_moved_by_what_runs_attention_or_by_triton_where_that_is_mosaic():
    assert [beside_attention(name) for name in ("xla", "triton", "mosaic_gpu", None)] == [
        "xla",
        "triton",
        "triton",
        None,
    ]
    for operation in ("write_kv", "copy_pages"):
        assert resolve(operation, beside_attention("mosaic_gpu")) == "triton"


@pytest.mark.parametrize("operation", ["write_kv", "copy_pages"])
def test_mosaic_has_attention_only_and_says_so(operation):
    assert resolve("paged_attention", "mosaic_gpu") == "mosaic_gpu"
    with pytest.raises(NotImplementedError, match=f"{operation} has no implementation 'mosaic_gpu'.*triton"):
        resolve(operation, "mosaic_gpu")


def test_interpreting_what_is_no_kernel_is_refused():
    case = build_case([3])
    with pytest.raises(ValueError, match="interpret"):
        paged_attention(*case.decode, implementation="xla", interpret=True)


def test_query_heads_that_do_not_divide_into_groups_are_refused():
    """F7: three query heads over two kv heads."""
    kv = allocate(1, 4, 3, 2, 8)
    with pytest.raises(ValueError, match="3 query heads"):
        paged_attention(jnp.ones((1, 3, 8)), kv, jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32))


def test_layouts_of_another_order_are_refused_by_their_shape():
    """F9: with distinct sizes no other layout fits."""
    case = build_case([6, 4])
    heads_first = KVPages(case.kv.k.swapaxes(2, 4), case.kv.v.swapaxes(2, 4))
    with pytest.raises(ValueError, match="H = 3"):
        paged_attention(case.q, heads_first, case.block_tables, case.context_lens)
    with pytest.raises(ValueError, match="one shape"):
        paged_attention(case.q, KVPages(case.kv.k, case.kv.v.swapaxes(2, 3)), case.block_tables, case.context_lens)


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_static_layer_outside_the_pool_is_refused_and_not_clamped(layer):
    """E7: JAX would clamp."""
    case = build_case([6])
    with pytest.raises(ValueError, match="4 layers"):
        paged_attention(*case.decode, layer=layer)
    with pytest.raises(ValueError, match="4 layers"):
        write_kv(case.kv, case.kv.k[0, 0, :1], case.kv.v[0, 0, :1], jnp.array([0]), layer=layer)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window=0"),
        ({"soft_cap": 0.0}, "soft_cap=0.0"),
        ({"alibi_slopes": jnp.ones(3)}, "alibi_slopes"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    case = build_case([6, 4], [2, 1])
    with pytest.raises(ValueError, match=words):
        ragged_paged_attention(*case.ragged, **options)


def test_rows_that_disagree_are_refused():
    case = build_case([6, 4])
    with pytest.raises(ValueError, match="2 rows"):
        paged_attention(case.q, case.kv, case.block_tables[:1], case.context_lens[:1])
    with pytest.raises(ValueError, match="must agree"):
        paged_attention(case.q, case.kv, case.block_tables, case.context_lens[:1])
    with pytest.raises(ValueError, match="query_starts"):
        ragged_paged_attention(*case.ragged[:-1], case.query_starts[:-1])
    with pytest.raises(ValueError, match="integers"):
        paged_attention(case.q, case.kv, case.block_tables.astype(jnp.float32), case.context_lens)


def test_tuning_that_an_implementation_lacks_is_refused_and_not_ignored():
    case = build_case([6, 4])
    with pytest.raises(NotImplementedError, match="block_tokens only"):
        paged_attention(*case.decode, implementation="xla", tuning=DecodeTuning(splits=2))
    with pytest.raises(NotImplementedError, match="only"):
        ragged_paged_attention(*case.ragged, implementation="xla", tuning=RaggedTuning(num_warps=8))
    with pytest.raises(NotImplementedError, match="nothing to tune"):
        paged_attention(*case.decode, implementation="reference", tuning=DecodeTuning())
    tuning = DecodeTuning(block_tokens=48)
    with pytest.raises(ValueError, match="block_tokens=48"):
        paged_attention(*case.decode, implementation="triton", interpret=True, tuning=tuning)


def test_an_empty_axis_is_refused_at_allocation():
    with pytest.raises(ValueError, match="at least 1"):
        allocate(4, 0, 16, 3, 64)
