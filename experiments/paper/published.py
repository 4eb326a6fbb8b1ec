"""The paper's own numbers, as read off its figures.

Numbers of the paper alone; nothing in them was simulated.
"""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("published.json")
# Where curves of latency against rate are compared: half the height of the paper's frames.
KNEE_S = 0.5

Line = list[tuple[float, float]]


class PublishedPanel(NamedTuple):
    """A panel of latency curves: its title, and the points of each system within the frame and above it."""

    title: str
    inside: dict[str, Line]
    above: dict[str, Line]

    def knee(self, system: str) -> float:
        """The rate at which the paper's line, straight between its points, first reaches 0.5 s per token."""
        return crossing(self.inside[system] + self.above[system], KNEE_S)


@cache
def published() -> dict[str, Any]:
    """All of the file, by figure."""
    return json.loads(FILE.read_text())


def panel(figure: str, letter: str) -> PublishedPanel:
    """The panel of a figure, such as ("12", "a")."""
    found = next(p for p in published()[f"fig{figure}"]["panels"] if p["id"] == letter)
    inside = {name: [(p[0], p[1]) for p in line if len(p) == 2] for name, line in found["series"].items()}
    above = {name: [(p[0], p[1]) for p in line if len(p) == 3] for name, line in found["series"].items()}
    return PublishedPanel(found["title"], inside, above)


def crossing(line: Line, level: float) -> float:
    """Where the straight line through the points first reaches `level`. Raises ValueError if it never does."""
    for (x0, y0), (x1, y1) in pairwise(line):
        if y0 < level <= y1:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    raise ValueError(f"the line does not cross {level}: {line}")
