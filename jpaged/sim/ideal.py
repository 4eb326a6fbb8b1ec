"""The profile `ideal`: a step's time from any decoder's shape and a device's constants.

Nothing in it was fitted to the paper; hardware.py says where each constant comes from.
"""

from dataclasses import replace
from math import ceil

from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.hardware import Hardware
from models.config import ModelConfig

ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
KV_ITEMSIZES = ITEMSIZES | {"int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def ideal_cost_model(
    model: ModelConfig,
    hardware: Hardware,
    *,
    tensor_parallel_size: int = 1,
    dtype: str = "float16",
    kv_cache_dtype: str = "auto",
) -> LinearCostModel:
    """Time = weights + KV over the memory's rate + launches and all-reduces of each layer + compute of prefill tokens.

    Reading the weights and computing prefill tokens add: the longer of the two alone is 14 % off DistServe's prefills,
    their sum 6 %. Decode rows cost compute only beyond the number that the weights' read hides. Raises ValueError for
    an unknown dtype, or a tensor parallel size or dtype that the hardware has no figure for.
    """
    itemsize = _size_of(ITEMSIZES, "dtype", dtype)
    kv_itemsize = itemsize if kv_cache_dtype == "auto" else _size_of(KV_ITEMSIZES, "kv_cache_dtype", kv_cache_dtype)
    size, layers = tensor_parallel_size, model.num_layers
    rate, peak = hardware.memory_rate, hardware.peak_flops(dtype)
    reduce_ns = 2 * layers * hardware.all_reduce(size)
    reduce_token_ns = 0.0
    if size > 1:
        reduce_token_ns = 2e9 * layers * model.hidden_size * itemsize / hardware.all_reduce_rate[size]
    used = model.num_step_params
    weights_ns = 1e9 * used * itemsize / (size * hardware.weights_efficiency * rate)
    product_ns = 2e9 * used / (size * hardware.compute_efficiency * peak)
    # With fewer kv heads than devices each device holds one whole head.
    kv_heads = ceil(model.num_kv_heads / size)
    kv_bytes = 2 * layers * kv_heads * (model.head_dim * kv_itemsize + 4 * (kv_itemsize == 1))
    context_ns = 1e9 * kv_bytes / (hardware.kv_efficiency * rate)
    pair_flops = 4 * layers * model.num_heads * model.head_dim
    cost = LinearCostModel(
        name="ideal",
        weights_ns=weights_ns,
        launch_ns=layers * hardware.layer_ns + reduce_ns,
        sample_ns=hardware.sequence_ns - hardware.host_sequence_ns,
        context_ns=context_ns,
        chunk_context_ns=context_ns,
        token_ns=product_ns + reduce_token_ns,
        free_rows=weights_ns / product_ns,
        pair_ns=1e9 * pair_flops / (size * hardware.attention_efficiency * peak),
        copy_token_ns=2 * context_ns,
        host_step_ns=hardware.host_step_ns,
        host_sequence_ns=hardware.host_sequence_ns,
        host_prefill_row_ns=hardware.host_sequence_ns,
    )
    return with_swaps(cost, hardware, kv_bytes, layers)


def with_swaps(cost_model: LinearCostModel, hardware: Hardware, kv_bytes: float, layers: int) -> LinearCostModel:
    """The cost model with what moving pages between device and host costs, for `kv_bytes` per token on each device.

    Each device moves its part over its own link, one copy for each page, layer, and K or V (the paper's Fig. 19a).
    """
    return replace(
        cost_model,
        swap_out_token_ns=1e9 * kv_bytes / hardware.copy_out_rate,
        swap_out_page_ns=2 * layers * hardware.copy_out_ns,
        swap_in_token_ns=1e9 * kv_bytes / hardware.copy_in_rate,
        swap_in_page_ns=2 * layers * hardware.copy_in_ns,
    )


def _size_of(sizes: dict[str, int], field: str, dtype: str) -> int:
    if dtype not in sizes:
        raise ValueError(f"{field}={dtype!r} is not known; choose one of {', '.join(sizes)}")
    return sizes[dtype]
