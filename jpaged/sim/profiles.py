"""Cost models by name.

A profile that does not hold for what is asked is refused, with the ones that do.
"""

from pathlib import Path

from jpaged.config.declaration import require_int
from jpaged.sim.cost_model import CostModel, TableCostModel
from jpaged.sim.fit import fit_steps
from jpaged.sim.hardware import hardware_named
from jpaged.sim.ideal import ideal_cost_model
from jpaged.sim.paper import PAPER_PROFILES, paper_cost_model
from jpaged.sim.work import StepWork
from jpaged.workloads.column_files import read_integers
from models.config import ModelConfig

PROFILES = ("ideal", *PAPER_PROFILES, "measured:FILE", "table:FILE")


def load_profile(
    name: str,
    model: ModelConfig,
    hardware: str,
    tensor_parallel_size: int = 1,
    *,
    dtype: str = "float16",
    kv_cache_dtype: str = "auto",
) -> CostModel:
    """The cost model of a profile.

    - `ideal`: computed from the model's shape and the hardware's constants; any model.
    - `paper-2023`, `paper-2023-alpaca`, `paper-2023-pages`, `paper-2023-ft`: calibrated to the paper; its models alone.
    - `measured:FILE`: fitted to a step log (LOG_COLUMNS of sim/work.py). It holds for the log's model, hardware and
      page size.
    - `table:FILE`: the times of a step log, step for step; for the run that was logged, once.

    Raises ValueError for an unknown profile or hardware, or one that does not hold for this model.
    """
    device = hardware_named(hardware)
    require_int("tensor_parallel_size", tensor_parallel_size, 1, None)
    if model.num_heads % tensor_parallel_size:
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size} does not divide the model's {model.num_heads} heads; give "
            "one that does"
        )
    kind, _, path = name.partition(":")
    if kind == "ideal" and not path:
        return ideal_cost_model(
            model, device, tensor_parallel_size=tensor_parallel_size, dtype=dtype, kv_cache_dtype=kv_cache_dtype
        )
    if name in PAPER_PROFILES:
        if dtype not in ("float16", "bfloat16") or kv_cache_dtype not in ("auto", "float16", "bfloat16"):
            raise ValueError(
                f"dtype={dtype!r}, kv_cache_dtype={kv_cache_dtype!r}: profile {name} was calibrated in float16; "
                "use float16, or the profile ideal"
            )
        return paper_cost_model(name, model, hardware, tensor_parallel_size)
    if kind == "measured" and path:
        return fit_steps(read_integers(Path(path))).cost_model(name)
    if kind == "table" and path:
        return _table(name, Path(path))
    raise ValueError(f"cost profile {name!r} is not known; choose one of {', '.join(PROFILES)}")


def _table(name: str, path: Path) -> TableCostModel:
    columns = read_integers(path)
    missing = [column for column in ("device_ns", "host_ns") if column not in columns]
    if missing:
        raise ValueError(
            f"{path}: no column {', '.join(missing)}; log the run with SimExecutor's or the bench's record"
        )
    idle = next(
        (i for i, both in enumerate(zip(columns["device_ns"], columns["host_ns"], strict=True)) if not sum(both)), None
    )
    if idle is not None:
        raise ValueError(f"{path}: row {idle} takes no time (device_ns and host_ns are 0); log a run that was timed")
    expected = {field: columns[field] for field in StepWork._fields if field in columns}
    return TableCostModel(name, columns["device_ns"], columns["host_ns"], expected)
