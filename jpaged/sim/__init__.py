"""The simulated device: what a step costs, a clock that shows it, an executor that takes that long.

Lives here: StepWork, VirtualClock, SimExecutor, cost models and their profiles, hardware, capacity, fits, calibration.
Promises: the same plans take the same integer nanoseconds, on every machine; importing a part loads no other.
Must not know: jax, arrays on a device, the runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jpaged.sim.capacity import pages_that_fit, swap_pages
    from jpaged.sim.clock import VirtualClock
    from jpaged.sim.cost_model import CostModel, LinearCostModel, TableCostModel, scaled
    from jpaged.sim.executor import SimExecutor
    from jpaged.sim.hardware import HARDWARE, Hardware, hardware_named
    from jpaged.sim.profiles import PROFILES, load_profile
    from jpaged.sim.work import StepWork, padded_work_of, work_of

__all__ = [
    "HARDWARE",
    "PROFILES",
    "CostModel",
    "Hardware",
    "LinearCostModel",
    "SimExecutor",
    "StepWork",
    "TableCostModel",
    "VirtualClock",
    "hardware_named",
    "load_profile",
    "padded_work_of",
    "pages_that_fit",
    "scaled",
    "swap_pages",
    "work_of",
]

_HOMES = {
    "capacity": ("pages_that_fit", "swap_pages"),
    "clock": ("VirtualClock",),
    "cost_model": ("CostModel", "LinearCostModel", "TableCostModel", "scaled"),
    "executor": ("SimExecutor",),
    "hardware": ("HARDWARE", "Hardware", "hardware_named"),
    "profiles": ("PROFILES", "load_profile"),
    "work": ("StepWork", "padded_work_of", "work_of"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
