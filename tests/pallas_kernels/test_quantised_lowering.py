"""The Triton kernels on 1-byte pools: what lowers for CUDA, and what is refused because it would be wrong there."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import AbstractDevice, AbstractMesh
from quantised_cases import DTYPES

from pallas_kernels import KVPages, copy_pages, paged_attention, ragged_paged_attention, write_kv

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

LAYERS, KV_HEADS, HEAD_DIM, PAGE_SIZE, ROWS, WIDTH = 32, 8, 128, 16, 8, 16
PAGE_BYTES = LAYERS * PAGE_SIZE * KV_HEADS * HEAD_DIM
HOPPER, AMPERE = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def shaped(*shape: int, dtype=jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def pool(dtype, num_pages: int = 64) -> KVPages:
    pages = shaped(LAYERS, num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM, dtype=dtype)
    scales = shaped(LAYERS, num_pages, PAGE_SIZE, KV_HEADS, dtype=jnp.float32)
    return KVPages(pages, pages, scales, scales)


def lower(function, *args, device: str = HOPPER, donate=()) -> str:
    abstract = AbstractDevice(device_kind=device, num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)):
        trace = jax.jit(function, donate_argnums=donate).trace(*args)
        return trace.lower(lowering_platforms=("cuda",)).as_text()


def decode(kv: KVPages, dtype=jnp.bfloat16, device: str = HOPPER) -> str:
    q = shaped(ROWS, 32, HEAD_DIM, dtype=dtype)
    return lower(paged_attention, q, kv, shaped(ROWS, WIDTH), shaped(ROWS), device=device)


def ragged(kv: KVPages, dtype=jnp.bfloat16, device: str = HOPPER) -> str:
    q = shaped(64, 32, HEAD_DIM, dtype=dtype)
    tables, lens, starts = shaped(ROWS, WIDTH), shaped(ROWS), shaped(ROWS + 1)
    return lower(ragged_paged_attention, q, kv, tables, lens, starts, device=device)


def write(kv: KVPages, dtype=jnp.bfloat16, device: str = HOPPER) -> str:
    tokens = shaped(64, KV_HEADS, HEAD_DIM, dtype=dtype)
    return lower(write_kv, kv, tokens, tokens, shaped(64), device=device, donate=0)


def copy(kv: KVPages, device: str = HOPPER) -> str:
    return lower(copy_pages, kv, shaped(4), shaped(4), device=device, donate=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("query_dtype", [jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.slow)])
def test_both_attentions_lower_into_one_launch_on_hopper(dtype, query_dtype):
    for operation in (decode, ragged):
        assert operation(pool(dtype), query_dtype).count("__gpu$xla.gpu.triton") == 1


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
def test_writes_and_copies_take_keys_values_and_scales_in_one_aliased_launch(dtype):
    for operation in (write, copy):
        text = operation(pool(dtype), device=AMPERE)
        assert text.count("__gpu$xla.gpu.triton") == 1
        assert text.count("#stablehlo.output_operand_alias<") == 4


def test_ampere_reads_int8_and_e5m2_and_refuses_e4m3_by_name():
    for operation in (decode, ragged):
        for dtype in (jnp.int8, jnp.float8_e5m2):
            assert operation(pool(dtype), device=AMPERE).count("__gpu$xla.gpu.triton") == 1
        with pytest.raises(NotImplementedError, match=r"float8_e4m3fn pool on this GPU.*Use float8_e5m2 or int8"):
            operation(pool(jnp.float8_e4m3fn), device=AMPERE)


@pytest.mark.parametrize("operation", [decode, ragged, write, copy])
def test_keys_between_2_and_4_gib_are_refused_with_the_sizes_that_work(operation):
    below, inside, above = 2**31 // PAGE_BYTES, 2**31 // PAGE_BYTES + 1, 2**32 // PAGE_BYTES + 1
    assert (below, above) == (4096, 8193)
    for num_pages in (inside, above - 1):
        with pytest.raises(NotImplementedError, match=f"at most {below} pages or at least {above}"):
            operation(pool(jnp.int8, num_pages))
    for num_pages in (below, above):
        assert operation(pool(jnp.int8, num_pages)).count("__gpu$xla.gpu.triton") == 1


@pytest.mark.parametrize(("gib", "bits"), [(1, 32), (3, 32), (5, 64)])
def test_pallas_still_counts_the_elements_of_3_gib_of_bytes_in_32_bits(gib, bits, capfd):
    """The reason for the refusal; when this fails for 3 GiB, `triton_call.check_offsets` may go."""

    def kernel(ref, out):
        place = jnp.arange(16)
        plgpu.store(out.at[place], plgpu.load(ref.at[pl.program_id(0), place]))

    def read(array):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        call = pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((16,), jnp.int8),
            compiler_params=plgpu.CompilerParams(),
            debug=True,
        )
        return call(array)

    lower(read, shaped(gib, 2**30, dtype=jnp.int8))
    text = capfd.readouterr().out
    offsets = [line for line in text.splitlines() if "tt.addptr" in line and "tensor<16x!tt.ptr<i8>>" in line]
    assert f"tensor<16xi{bits}>" in offsets[0]
