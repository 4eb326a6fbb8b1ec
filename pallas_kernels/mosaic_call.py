"""What every Mosaic GPU kernel shares.

Lives here: which NVIDIA architecture a trace is for, the interpreter's settings, tiles in shared memory.
Promises: an interpreted kernel also looks for data races and starts from shared memory full of NaN.
Must not know: what a kernel computes.
"""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

AMPERE, HOPPER = (8, 0), (9, 0)
SMEM_BYTES = {AMPERE: 163 * 1024, HOPPER: 227 * 1024}
"""Shared memory that one program may have; consumer GPUs of compute capability 8.6 to 12.x have 99 KiB."""

# An abstract device has a name and no compute capability.
_CAPABILITY_OF_KIND = {"A100": AMPERE, "H100": HOPPER, "H200": HOPPER, "GH200": HOPPER}


def compute_capability() -> tuple[int, int]:
    """Compute capability of the GPU that a trace made now is meant for: of the mesh's device if it says, else ours.

    Raises NotImplementedError where that is no NVIDIA GPU.
    """
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        device = jax.devices()[0]
    elif not hasattr(device, "compute_capability"):
        for name, capability in _CAPABILITY_OF_KIND.items():
            if name in device.device_kind:
                return capability
    capability = getattr(device, "compute_capability", None)
    if capability is None or "." not in str(capability):
        raise NotImplementedError(
            f"implementation='mosaic_gpu' compiles for NVIDIA GPUs and {device.device_kind!r} is not known as one; "
            "use interpret=True to run it on the CPU"
        )
    major, minor = str(capability).split(".")
    return int(major), int(minor)


def interpreter(interpret: bool) -> Any:
    """The `interpret` argument of a kernel."""
    return plgpu.InterpretGPUParams(detect_races=True) if interpret else False


def tiles(columns: int) -> tuple[plgpu.TilingTransform, plgpu.SwizzleTransform]:
    """Shared-memory layout of 16-bit matrices that tensor cores read: tiles of 8 rows, each row one swizzle."""
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)  # pyright: ignore[reportAbstractUsage]
