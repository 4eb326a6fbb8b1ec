"""How many pages the pool gets.

From a page count, bytes, or the memory that is free; too little memory for one page is an error with the remedy.
"""

from dataclasses import dataclass
from typing import Any

from jpaged.config.engine import parse_bytes
from models.config import ModelConfig

HOST_FRACTION = 0.125
DEVICE_FRACTION = 0.9
_DEVICE_STEP = 256 * 2**20
_FP8 = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


@dataclass(frozen=True)
class PoolSize:
    """`num_pages` usable pages (the null page is one more), and why this many."""

    num_pages: int
    reason: str


def pool_dtype(kv_cache_dtype: str, dtype: str) -> Any:
    """The numpy dtype of the pool's keys and values; "auto" is the model's `dtype`."""
    import jax.numpy as jnp

    name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    return jnp.dtype(_FP8.get(name, name))


def bytes_of_page(model: ModelConfig, page_size: int, dtype: Any) -> int:
    """Bytes of one page in all layers, its scales included."""
    from pallas_kernels.quantised import SCALE_BYTES, is_quantised

    scale_bytes = SCALE_BYTES if is_quantised(dtype) else 0
    return model.kv_bytes_per_token(dtype.itemsize, scale_bytes) * page_size


def size_pool(
    *,
    page_bytes: int,
    page_size: int,
    num_pages: int | None,
    kv_memory: int | str | None,
    want_tokens: int,
    device: Any,
) -> PoolSize:
    """The pool's size: as given in pages or bytes, else room for `want_tokens` within the memory that is free.

    Raises ValueError when the memory does not hold one page (and the null page).
    """
    if num_pages is not None and kv_memory is not None:
        raise ValueError("num_pages and kv_memory both size the pool; give one of them")
    free, where, fraction = free_memory(device)
    if num_pages is not None:
        need = (num_pages + 1) * page_bytes
        if free is not None and need > free:
            raise ValueError(
                f"num_pages={num_pages}: the pool needs {_show(need)}, and {_show(free)} are free on the {where}; "
                "lower num_pages or page_size"
            )
        return PoolSize(num_pages, "as given")
    if kv_memory is not None:
        budget = parse_bytes(kv_memory)
        if free is not None and budget > free:
            raise ValueError(f"kv_memory={kv_memory!r}: only {_show(free)} are free on the {where}; lower kv_memory")
        return PoolSize(_pages_in(budget, page_bytes, f"kv_memory={kv_memory!r}"), f"kv_memory={kv_memory}")
    wanted = -(-want_tokens // page_size)
    if free is None:
        return PoolSize(wanted, "max_num_seqs * max_model_len tokens")
    budget = _steady(free * fraction, device)
    most = _pages_in(budget, page_bytes, f"{fraction:.3g} of the free memory ({_show(free)})")
    if wanted <= most:
        return PoolSize(wanted, "max_num_seqs * max_model_len tokens")
    return PoolSize(most, f"{_show(budget)}, about {fraction:.3g} of the {_show(free)} free on the {where}")


def _steady(size: float, device: Any) -> int:
    """`size` rounded down, so that two runs on one machine get the same pool though free memory fluctuates."""
    if device.platform == "cpu":
        return 1 << (int(size).bit_length() - 1)
    return int(size) // _DEVICE_STEP * _DEVICE_STEP or int(size)


def free_memory(device: Any) -> tuple[int | None, str, float]:
    """Free bytes where the pool will live (None: unknown), the name of that place, and the share the pool may take."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            return stats["bytes_limit"] - stats.get("bytes_in_use", 0), "device", DEVICE_FRACTION
        return None, "device", DEVICE_FRACTION
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024, "host", HOST_FRACTION
    except (OSError, StopIteration):
        return None, "host", HOST_FRACTION


def _pages_in(budget: int, page_bytes: int, what: str) -> int:
    pages = budget // page_bytes - 1
    if pages < 1:
        raise ValueError(
            f"{what} is too little: one page takes {_show(page_bytes)} and the pool needs at least two "
            "(one is the null page); give more memory, a smaller page_size or a smaller dtype"
        )
    return pages


def _show(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024  # pyright: ignore[reportAssignmentType]
    return f"{size:.4g} GiB"
