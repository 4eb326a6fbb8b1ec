"""Which implementation of an operation runs.

A named implementation is the one that runs, or an error: there is no fallback.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

OPERATIONS = ("paged_attention", "ragged_paged_attention", "write_kv", "copy_pages")
IMPLEMENTATIONS = ("reference", "xla", "triton", "mosaic_gpu")

PLATFORM_DEFAULTS = {"cpu": "xla", "gpu": "triton", "cuda": "triton"}
_UNIVERSAL = "xla"
_ABSENT = {
    (operation, "mosaic_gpu"): "Mosaic GPU is used for attention alone; use 'triton' on NVIDIA GPUs"
    for operation in ("write_kv", "copy_pages")
}


def target_device() -> Any:
    """The device that a trace made now is meant for: the mesh's abstract one if it has one, else the first of ours."""
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def current_platform() -> str:
    """The platform that a trace made now is meant for."""
    return getattr(target_device(), "platform", None) or jax.default_backend()


def resolve(operation: str, implementation: str | None = None, platform: str | None = None) -> str:
    """The name of the implementation that runs: `implementation` if given, else what `platform` runs by default.

    `platform` is a JAX platform name; None means the one that is traced for now. Raises ValueError for a name that
    does not exist, NotImplementedError for one that this operation does not have.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation={operation!r} does not exist; use one of {', '.join(OPERATIONS)}")
    if implementation is None:
        return PLATFORM_DEFAULTS.get(platform or current_platform(), _UNIVERSAL)
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r} does not exist; use one of {', '.join(IMPLEMENTATIONS)}")
    reason = _ABSENT.get((operation, implementation))
    if reason is not None:
        raise NotImplementedError(f"{operation} has no implementation {implementation!r}: {reason}")
    return implementation


def beside_attention(implementation: str | None) -> str | None:
    """The implementation that writes and copies pages where attention runs under the name `implementation`.

    It is the same, except that Mosaic GPU has attention alone: Triton then moves the pages.
    """
    return "triton" if implementation == "mosaic_gpu" else implementation


def load(operation: str, implementation: str | None, interpret: bool) -> Callable[..., Any]:
    """The function that does `operation`, imported when first asked for.

    Raises ValueError for `interpret=True` where there is no kernel to interpret.
    """
    name = resolve(operation, implementation)
    if interpret and name not in ("triton", "mosaic_gpu"):
        raise ValueError(f"interpret=True runs a GPU kernel on the CPU and {name!r} has none; name one, like 'triton'")
    module = importlib.import_module(f"pallas_kernels.{operation}.{name}")
    function = getattr(module, operation)
    return partial(function, interpret=True) if interpret else function
