"""The one way these kernels call Pallas' Triton backend.

Pools stay in device memory as they are. The backend's deprecation is answered here and nowhere else.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.support import Support

# JAX 0.11 deprecated Pallas on Triton; it still is the backend that covers every NVIDIA GPU. JAX says so when a program
# is lowered, long after `call` has returned, hence a filter for the process.
warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated", category=DeprecationWarning)

# For the table of docs/kernels.md; the last one is what `check_offsets` refuses.
HARDWARE, PROOF = "NVIDIA, compute capability 8.0 and up", "interpreted; compiled"
OFFSET_NOTE = "1 byte per element: not between 2 and 4 GiB of keys"
MOVES_PAGES = Support(hardware=HARDWARE, proof=PROOF, notes=(OFFSET_NOTE,))
"""The record of a kernel that writes or copies tokens of any dtype."""

_BEFORE_ADA = ("A100", "A800", "A10", "A16", "A2", "A30", "A40", "RTX A", "RTX 30", "RTX 20", "T4", "V100")


def call(
    kernel: Callable[..., None],
    *,
    name: str,
    grid: tuple[int, ...],
    out_shape: Sequence[Any],
    num_warps: int,
    num_stages: int,
    interpret: bool,
    aliases: Mapping[int, int] | None = None,
) -> Callable[..., Sequence[Any]]:
    """The kernel as a function of arrays that it addresses itself, one program per grid point.

    An operand or an entry of `out_shape` may be a tree of arrays, such as a pool: the kernel gets a tree of references.
    `aliases` counts leaves.
    """
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def run(*operands: Any) -> Sequence[Any]:
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=jax.tree.map(lambda _: anywhere, operands),
            out_specs=jax.tree.map(lambda _: anywhere, list(out_shape)),
            out_shape=list(out_shape),
            input_output_aliases=dict(aliases or {}),
            compiler_params=plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages),
            interpret=interpret,
            name=name,
        )(*operands)

    return run


def layer_operand(layer: ArrayLike) -> Int[Array, " 1"]:
    """The layer index as a kernel operand, so that no layer is sliced out of a pool."""
    return jnp.reshape(jnp.asarray(layer, jnp.int32), (1,))


def power_of_two(size: int, at_least: int = 1) -> int:
    """The smallest power of two that is not below `size`: the only tile sizes Triton has."""
    return max(at_least, 1 << max(0, (size - 1).bit_length()))


def check_sizes(**sizes: Any) -> None:
    """Nothing, or ValueError for a tuning size that is no power of two."""
    for name, size in sizes.items():
        if size < 1 or power_of_two(size) != size:
            raise ValueError(f"{name}={size} must be a power of two: Triton has no other tile sizes")


def check_pool(kv: KVPages) -> None:
    """Nothing, or NotImplementedError for a pool that a Triton kernel cannot read on the device traced for."""
    check_offsets(kv)
    if kv.k.dtype == jnp.float8_e4m3fn and not _converts_e4m3():
        raise NotImplementedError(
            "implementation='triton' cannot read a float8_e4m3fn pool on this GPU: it converts that type from compute "
            "capability 8.9 on (Ada, Hopper). Use float8_e5m2 or int8"
        )


def _converts_e4m3() -> bool:
    if device := jax.sharding.get_abstract_mesh().abstract_device:
        return not any(name in device.device_kind for name in _BEFORE_ADA)
    capability = getattr(jax.devices()[0], "compute_capability", None)
    return capability is None or float(capability) >= 8.9


def check_offsets(kv: KVPages) -> None:
    """Nothing, or NotImplementedError for a pool whose offsets Pallas' Triton backend would get wrong.

    It counts elements in 32 bits, signed, unless an array is over 4 GiB: right for 2 bytes per element and more, but
    elements of one byte between 2 and 4 GiB would be read and written before the array.
    """
    size = kv.k.size
    if kv.k.dtype.itemsize == 1 and 2**31 < size <= 2**32:
        page = kv.num_layers * kv.page_size * kv.num_kv_heads * kv.head_dim
        raise NotImplementedError(
            f"implementation='triton' cannot address keys of {kv.k.dtype} between 2 and 4 GiB (this pool's: "
            f"{size / 2**30:.2f} GiB in {kv.num_pages} pages): its offsets have 32 bits there. "
            f"Use at most {2**31 // page} pages or at least {2**32 // page + 1}, null page included, or another dtype"
        )
