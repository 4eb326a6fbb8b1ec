"""A cost model out of a step log.

Coefficients are non-negative and minimise the squared relative error; the same log gives the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from jpaged.sim.cost_model import LinearCostModel

# Coefficient of LinearCostModel -> the column that it multiplies (None: every step has it once).
_DEVICE = {
    "launch_ns": None,
    "sequence_ns": "decode_rows",
    "context_ns": "context_tokens",
    "prefill_row_ns": "prefill_rows",
    "token_ns": "prefill_tokens",
    "pair_ns": "prefill_pairs",
    "chunk_context_ns": "chunk_context_tokens",
    "copy_token_ns": "page_copies",
    "swap_out_page_ns": "pages_swapped_out",
    "swap_in_page_ns": "pages_swapped_in",
}
_HOST = {
    "host_step_ns": None,
    "host_sequence_ns": "decode_rows",
    "host_prefill_row_ns": "prefill_rows",
    "host_prefill_token_ns": "prefill_tokens",
}
_NEEDED = ("device_ns", "host_ns", "page_size", *(column for column in _DEVICE.values() if column))
_ROWS_A_COEFFICIENT = 5

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepFit:
    """Coefficients (nanoseconds, by their names in LinearCostModel) and how well they tell the log's steps.

    Errors are relative, of device + host time of a step: the mean and the largest absolute value. `unknown` are the
    columns that are zero in every step, so that nothing can be said of them.
    """

    coefficients: dict[str, float]
    page_size: int
    num_steps: int
    mean_error: float
    worst_error: float
    unknown: tuple[str, ...]

    def cost_model(self, name: str) -> LinearCostModel:
        """The cost model with these coefficients. It refuses steps with facts that the log never showed."""
        return LinearCostModel(
            name=name,
            # What a decode row computes is in its own coefficient.
            free_rows=float("inf"),
            page_sizes={self.page_size: 1.0},
            unknown=self.unknown,
            **self.coefficients,
        )


def fit_steps(columns: Mapping[str, Sequence[int]]) -> StepFit:
    """The fit of a step log (columns of LOG_COLUMNS of sim/work.py).

    Raises ValueError if a column is missing, the page size changes, a device time is not positive, or the steps are
    fewer than five for each coefficient.
    """
    missing = [column for column in _NEEDED if column not in columns]
    if missing:
        raise ValueError(f"step log: no column {', '.join(missing)}; it needs {', '.join(_NEEDED)}")
    data = {column: np.asarray(columns[column], np.float64) for column in _NEEDED}
    num_steps = len(data["device_ns"])
    unknown = tuple(column for column in _DEVICE.values() if column and not data[column].any())
    needed = _ROWS_A_COEFFICIENT * (len(_DEVICE) - len(unknown))
    if num_steps < needed:
        raise ValueError(f"step log: {num_steps} steps are too few for {needed // _ROWS_A_COEFFICIENT} coefficients; "
                         f"log at least {needed}")  # fmt: skip
    page_sizes = sorted(set(columns["page_size"]))
    if len(page_sizes) > 1:
        raise ValueError(f"step log: page_size={page_sizes}; fit runs of different page sizes apart")
    if data["device_ns"].min() <= 0:
        step = int(data["device_ns"].argmin())
        raise ValueError(
            f"step log: device_ns={columns['device_ns'][step]} in row {step}; leave out steps with no time"
        )
    # A page copy is a coefficient times its tokens.
    data["page_copies"] = data["page_copies"] * page_sizes[0]
    device, device_ns = _fit(_DEVICE, data, data["device_ns"])
    host, host_ns = _fit(_HOST, data, data["host_ns"])
    errors = np.abs((device_ns + host_ns) / (data["device_ns"] + data["host_ns"]) - 1.0)
    return StepFit(
        device | host, page_sizes[0], num_steps, float(errors.mean()), float(errors.max()), unknown
    )  # fmt: skip


def _fit(terms: Mapping[str, str | None], data: Mapping[str, Array], times: Array) -> tuple[dict[str, float], Array]:
    """Coefficients of the terms, and the times that they predict."""
    facts = np.stack([np.ones_like(times) if c is None else data[c] for c in terms.values()], axis=1)
    if not times.any():
        return dict.fromkeys(terms, 0.0), times
    # Relative errors; times near zero (a host that took none) weigh no more than a hundredth of the mean would.
    weights = 1.0 / np.maximum(times, times.mean() / 100)
    matrix = facts * weights[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    solution: Array = cast(Any, optimize).nnls(matrix / scale, times * weights)[0] / scale
    # Six digits: what is left of the order in which sums were taken falls away.
    rounded = np.array([float(f"{value:.6g}") for value in solution.tolist()])
    return dict(zip(terms, rounded.tolist(), strict=True)), facts @ rounded
