"""The number of pages that fit into a device's memory, by the paper's arithmetic.

Whole pages, rounded down; a model that leaves no room is an error that says what to change.
"""

from jpaged.sim.hardware import GIB, Hardware
from models.config import ModelConfig

# The paper's artifact: the part of the memory that is used, what is kept besides, and the tokens of its largest step.
_USED_PART = 0.95
_KEPT_BYTES = GIB
_STEP_TOKENS = 2560


def pages_that_fit(
    model: ModelConfig, hardware: Hardware, *, tensor_parallel_size: int = 1, page_size: int = 16, itemsize: int = 2
) -> int:
    """Pages of the KV pool that fit beside the weights, as the paper counts them (its Table 1).

    A device holds 0.95 x memory - its part of the weights - the largest activations of a step of 2,560 tokens - 1 GiB.
    Matrices and the token embedding are split over the devices; vectors and learned positions are whole on each.
    `itemsize`: bytes of a weight and of an element of the pool. Raises ValueError if not one page fits.
    """
    width, ffn, size = model.hidden_size, model.intermediate_size, tensor_parallel_size
    page_bytes = _page_bytes(model, size, page_size, itemsize)
    hidden = 2 * (max(3 * width, ffn) / size + width) * _STEP_TOKENS
    activation = max(hidden, 2 * _STEP_TOKENS * model.vocab_size) * itemsize
    split = model.num_matrix_params
    weights = (split / size + model.num_params - split) * itemsize
    room = _USED_PART * hardware.memory_bytes - weights - activation - _KEPT_BYTES
    if room < page_bytes:
        raise ValueError(
            f"tensor_parallel_size={size}: the weights take {weights / GIB:.1f} GiB of each {hardware.name} "
            f"({hardware.memory_bytes / GIB:.1f} GiB) and leave no room for a page; use more devices or larger ones"
        )
    return int(room / page_bytes)


def swap_pages(
    model: ModelConfig,
    *,
    tensor_parallel_size: int = 1,
    page_size: int = 16,
    itemsize: int = 2,
    bytes_per_device: int = 20 * GIB,
) -> int:
    """Pages of the host pool: the paper gives each device 20 GiB of host memory to swap to."""
    return bytes_per_device // _page_bytes(model, tensor_parallel_size, page_size, itemsize)


def _page_bytes(model: ModelConfig, tensor_parallel_size: int, page_size: int, itemsize: int) -> int:
    """Bytes of a page on one device."""
    if tensor_parallel_size < 1 or model.num_kv_heads % tensor_parallel_size:
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size} does not divide the {model.num_kv_heads} kv heads; "
            "give a divisor"
        )
    return page_size * model.kv_bytes_per_token(itemsize) // tensor_parallel_size
