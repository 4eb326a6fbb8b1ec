"""The one way these kernels call Pallas' Triton backend.

Lives here: `call`, and what every Triton kernel shares: power-of-two tiles, the layer operand.
Promises: pools stay in device memory as they are; the backend's deprecation is answered here and nowhere else.
Must not know: what a kernel computes.
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

# JAX 0.11 deprecated Pallas on Triton; it still is the backend that covers every NVIDIA GPU. JAX says so when a program
# is lowered, long after `call` has returned, hence a filter for the process.
warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated", category=DeprecationWarning)

SMALLEST_DOT = 16


def call(
    kernel: Callable[..., None],
    *,
    name: str,
    grid: tuple[int, ...],
    out_shape: Sequence[jax.ShapeDtypeStruct],
    num_warps: int,
    num_stages: int,
    interpret: bool,
    aliases: Mapping[int, int] | None = None,
) -> Callable[..., Sequence[Array]]:
    """The kernel as a function of arrays that it addresses itself, one program a grid point."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def run(*operands: Array) -> Sequence[Array]:
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[anywhere] * len(operands),
            out_specs=[anywhere] * len(out_shape),
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
