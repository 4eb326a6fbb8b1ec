"""Offsets into pools of more than 2^31 elements or 2^32 bytes, read out of lowered kernels: no such pool fits here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels import KVPages, copy_pages, paged_attention, ragged_paged_attention, write_kv
from pallas_kernels.kv_pages import check_pool, token_indices
from pallas_kernels.quantised import is_quantised

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

INT = jnp.int32
LAYERS, PAGE_SIZE, KV_HEADS, HEAD_DIM = 6, 16, 3, 64
PAGE = PAGE_SIZE * KV_HEADS * HEAD_DIM


def shaped(*shape: int, dtype=INT) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def pool(num_pages: int, dtype) -> KVPages:
    shape = (LAYERS, num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    pages = shaped(*shape, dtype=dtype)
    scale = shaped(*shape[:-1], dtype=jnp.float32) if is_quantised(dtype) else None
    return KVPages(pages, pages, scale, scale)


def triton_kernel(function, *args) -> list[str]:
    """The lines of the one Triton kernel that `function` lowers to."""
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib.triton import dialect
    from jaxlib.mlir import ir

    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        module = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).compiler_ir()
    kernels = []

    def visit(op):
        if op.name == "stablehlo.custom_call" and "triton" in str(op.attributes["call_target_name"]):
            kernels.append(ir.StringAttr(ir.DictAttr(op.attributes["mhlo.backend_config"])["ir"]).value_bytes)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    (kernel,) = kernels
    with make_ir_context() as context:
        dialect.register_dialect(context)
        return str(ir.Module.parse(kernel)).splitlines()


def write(kv):
    new = shaped(8, KV_HEADS, HEAD_DIM, dtype=jnp.bfloat16)
    return (lambda kv, k, v, slots, i: write_kv(kv, k, v, slots, layer=i)), kv, new, new, shaped(8), shaped()


def copy(kv):
    return copy_pages, kv, shaped(8), shaped(8)


def decode(kv):
    q = shaped(8, 9, HEAD_DIM, dtype=jnp.bfloat16)
    tables = shaped(8, 16), shaped(8), shaped()
    return (lambda q, kv, tables, lens, i: paged_attention(q, kv, tables, lens, layer=i)), q, kv, *tables


def ragged(kv):
    q = shaped(64, 9, HEAD_DIM, dtype=jnp.bfloat16)
    tables = shaped(8, 16), shaped(8), shaped(9), shaped()
    call = lambda q, kv, tables, lens, starts, i: ragged_paged_attention(q, kv, tables, lens, starts, layer=i)  # noqa: E731
    return call, q, kv, *tables


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e5m2])
@pytest.mark.parametrize(("operation", "accesses"), [(write, 2), (copy, 4), (decode, 2), (ragged, 2)])
def test_triton_counts_in_64_bits_in_pools_over_4_gib(operation, accesses, dtype):
    num_pages = 2**32 // (LAYERS * PAGE * jnp.dtype(dtype).itemsize) + 1
    lines = triton_kernel(*operation(pool(num_pages, dtype)))
    element = {"bfloat16": "bf16", "int8": "i8", "float8_e5m2": "f8E5M2"}[jnp.dtype(dtype).name]
    # Queries, outputs and new tokens are small and counted in 32 bits.
    wide = [line for line in lines if "tt.addptr" in line and f"!tt.ptr<{element}>>" in line and "xi64>" in line]
    assert len(wide) == accesses
    # A layer's stride, whose product with the layer number needs more than 32 bits, is a 64-bit number too.
    constants = [line.strip() for line in lines if f"arith.constant {num_pages * PAGE} : " in line]
    assert constants
    assert all(line.endswith(": i64") for line in constants)


@pytest.mark.parametrize("operation", [write, copy, decode, ragged])
def test_triton_refuses_the_pools_of_one_byte_an_element_that_it_would_misread(operation):
    num_pages = 3 * 2**30 // (LAYERS * PAGE)
    function, *args = operation(pool(num_pages, jnp.int8))
    with pytest.raises(NotImplementedError, match="between 2 and 4 GiB"):
        triton_kernel(function, *args)


def test_tokens_at_the_end_of_the_largest_pools_are_right_in_32_bits():
    kv = KVPages(*[shaped(80, 2**20, 16, 8, 128, dtype=jnp.bfloat16)] * 2)  # 80 layers, 2.7 TB of keys
    last = 2**20 - 1
    tables = jnp.array([[last, 0], [1, last]], INT)
    indices = np.asarray(token_indices(kv, tables, jnp.array([0, 15, 31], INT), 79))
    right = [[79 * 2**24 + page * 16 + offset for page, offset in row]
             for row in ([(last, 0), (last, 15), (0, 15)], [(1, 0), (1, 15), (last, 15)])]  # fmt: skip
    np.testing.assert_array_equal(indices.astype(np.int64), right)


def test_a_pool_with_more_slots_than_an_int32_counts_is_refused():
    kv = KVPages(
        *[shaped(128, 2**20, 16, 1, 1, dtype=jnp.int8)] * 2, *[shaped(128, 2**20, 16, 1, dtype=jnp.float32)] * 2
    )
    with pytest.raises(ValueError, match="2147483648 token slots"):
        check_pool(kv)
