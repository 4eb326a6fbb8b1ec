"""Every Triton kernel lowers for CUDA on a machine that has no GPU."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels import KVPages, copy_pages, paged_attention, ragged_paged_attention, write_kv

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

LAYERS, PAGES, ROWS, WIDTH, TOKENS = 6, 64, 8, 16, 128
INT = jnp.int32


def shaped(*shape: int, dtype=INT) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(function, *args, donate=()) -> str:
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        trace = jax.jit(function, donate_argnums=donate).trace(*args)
        return trace.lower(lowering_platforms=("cuda",)).as_text()


def pool(kv_heads: int, head_dim: int, dtype, page_size: int = 16) -> KVPages:
    pages = shaped(LAYERS, PAGES, page_size, kv_heads, head_dim, dtype=dtype)
    return KVPages(pages, pages)


SHAPES = [
    pytest.param(9, 3, 64, jnp.bfloat16, id="SmolLM2"),
    pytest.param(32, 8, 128, jnp.bfloat16, id="LLaMA-3"),
    pytest.param(12, 12, 64, jnp.float16, id="OPT"),
    pytest.param(9, 3, 80, jnp.float32, id="odd"),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_decode_lowers_for_cuda_with_a_traced_layer(heads, kv_heads, head_dim, dtype):
    text = lowered(
        lambda q, kv, tables, lens, layer: paged_attention(q, kv, tables, lens, layer=layer),
        shaped(ROWS, heads, head_dim, dtype=dtype),
        pool(kv_heads, head_dim, dtype),
        shaped(ROWS, WIDTH),
        shaped(ROWS),
        shaped(),
    )
    assert text.count("__gpu$xla.gpu.triton") == 1


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_ragged_lowers_for_cuda_without_a_loop_outside_the_kernel(heads, kv_heads, head_dim, dtype):
    text = lowered(
        lambda q, kv, tables, lens, starts, slopes: ragged_paged_attention(
            q, kv, tables, lens, starts, window=100, soft_cap=30.0, alibi_slopes=slopes
        ),
        shaped(TOKENS, heads, head_dim, dtype=dtype),
        pool(kv_heads, head_dim, dtype),
        shaped(ROWS, WIDTH),
        shaped(ROWS),
        shaped(ROWS + 1),
        shaped(heads, dtype=jnp.float32),
    )
    assert text.count("__gpu$xla.gpu.triton") == 1
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("page_size", [1, 24, 256])
def test_writes_and_copies_lower_for_cuda_into_one_aliased_launch_each(page_size):
    kv = pool(3, 64, jnp.bfloat16, page_size)
    update = shaped(TOKENS, 3, 64, dtype=jnp.float32)
    write = lowered(lambda kv, k, v, slots: write_kv(kv, k, v, slots), kv, update, update, shaped(TOKENS), donate=0)
    copy = lowered(lambda kv, src, dst: copy_pages(kv, src, dst), kv, shaped(4), shaped(4), donate=0)
    for text in (write, copy):
        assert text.count("__gpu$xla.gpu.triton") == 1
        assert text.count("#stablehlo.output_operand_alias<") == 2
