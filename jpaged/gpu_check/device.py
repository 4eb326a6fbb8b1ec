"""The section `device`: what the machine is, and what it can do at most, measured here and now."""

import os
import platform
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from jpaged.bench.kernels_timing import alternate, compiled_run
from jpaged.bench.kernels_variants import copy_run
from jpaged.gpu_check.sections import SectionRun

COPY_BYTES, MATRIX = 2 * 2**30, 8192
_MULTIPLICATIONS = 8


def check_device(run: SectionRun) -> None:
    """`copy_gb_per_second` (bytes read and written) and `matmul_tflops`, beside what the machine says of itself."""
    device = jax.devices()[0]
    run.keep(
        platform=device.platform,
        device_kind=device.device_kind,
        num_devices=jax.device_count(),
        compute_capability=getattr(device, "compute_capability", None),
        memory=device.memory_stats() or {},
        jax=jax.__version__,
        jaxlib=version("jaxlib"),
        python=platform.python_version(),
        backend=device.client.platform_version,
        cpu_cores=os.cpu_count(),
    )
    run.keep(**copy_rate(2**22 if run.tiny else COPY_BYTES))
    run.keep(**matmul_rate(256 if run.tiny else MATRIX))


def copy_rate(size: int) -> dict[str, Any]:
    """GB/s of a copy of `size` bytes, bytes read and bytes written together."""
    timing = alternate({"copy": copy_run(2 * size, jnp.dtype("bfloat16"))}, repeats=15)["copy"]
    return {"copy_bytes": size, "copy_seconds": timing.seconds, "copy_gb_per_second": 2 * size / timing.seconds / 1e9}


def matmul_rate(width: int) -> dict[str, Any]:
    """Tflop/s of a chain of square bfloat16 products."""
    weights = jax.random.normal(jax.random.key(0), (width, width), jnp.bfloat16) * width**-0.5

    def chain(weights: jax.Array) -> jax.Array:
        x = weights
        for _ in range(_MULTIPLICATIONS):
            x = x @ weights
        return x

    runs = {"matmul": compiled_run(chain, weights)}
    seconds = alternate(runs, repeats=9, parts=_MULTIPLICATIONS)["matmul"].seconds
    return {"matmul_width": width, "matmul_seconds": seconds, "matmul_tflops": 2 * width**3 / seconds / 1e12}
