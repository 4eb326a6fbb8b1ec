"""One line of the report: a number of the paper beside ours, and what is to be thought of it.

A quantity that a constant was fitted to is `calibrated`, however near it comes; a row tells its tolerance.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

PASS, MISS, CALIBRATED = "pass", "miss", "calibrated"
KINDS = ("ratio", "difference", "order")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A quantity of a figure. `tolerance` is of |ours / paper - 1| (`ratio`) or of |ours - paper| (`difference`).

    Of an `order`, paper and ours are texts that must be equal. `fitted` says which constants were fitted to the
    quantity (empty: none, it is a prediction); `reason` what is behind a miss, or how a prediction comes about.
    """

    figure: str
    quantity: str
    paper: float | str
    ours: float | str | None
    tolerance: float = 0.0
    kind: str = "ratio"
    unit: str = ""
    fitted: str = ""
    reason: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: must be one of {', '.join(KINDS)}")

    @property
    def change(self) -> float | None:
        """ours / paper, or ours - paper; None of texts and where there is no number."""
        if isinstance(self.paper, str) or isinstance(self.ours, str) or self.ours is None:
            return None
        return self.ours / self.paper if self.kind == "ratio" else self.ours - self.paper

    @property
    def within(self) -> bool:
        """Whether ours lies within the tolerance, whatever was fitted."""
        if self.kind == "order":
            return self.ours == self.paper
        change = self.change
        if change is None:
            return False
        return abs(change - 1.0 if self.kind == "ratio" else change) <= self.tolerance + 1e-12

    @property
    def verdict(self) -> str:
        """pass, miss or calibrated."""
        if self.fitted:
            return CALIBRATED
        return PASS if self.within else MISS

    def as_dict(self) -> dict[str, Any]:
        """The row as report.json has it."""
        facts = asdict(self)
        change = self.change
        key = "difference" if self.kind == "difference" else "ratio"
        del facts["kind"]
        return {**facts, key: change, "within_tolerance": self.within, "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a figure: its rows, the numbers of ours that are plotted, and under which conditions they were made.

    `digests` names the runs behind it.
    """

    figure: str
    title: str
    conditions: tuple[str, ...]
    rows: tuple[Row, ...]
    data: dict[str, Any]
    digests: tuple[str, ...] = field(default=())


def order_of(values: dict[str, float | None]) -> str:
    """The names from the smallest value to the largest; those without a value come last."""
    known = sorted((value, name) for name, value in values.items() if value is not None)
    return " < ".join([name for _, name in known] + [f"{name}?" for name, value in values.items() if value is None])
