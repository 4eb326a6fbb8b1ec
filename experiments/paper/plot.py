"""The curves of latency against rate, plotted as in the paper, with the paper's own points beside ours.

The same numbers give the same bytes; our lines are full, the paper's dashed with hollow marks.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.paper.panels import panels_of
from experiments.paper.published import KNEE_S, Line, panel
from experiments.paper.rows import Result
from experiments.paper.systems import SYSTEMS

PAPER = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "markerfacecolor": "none", "markersize": 6.5, "alpha": 0.75}
OURS = {"linestyle": "-", "linewidth": 1.6, "markersize": 4.5}
_LEVEL = {"color": "#999999", "linewidth": 0.8, "linestyle": ":"}
# Above the frame a line goes on to where it leaves it, as in the paper.
_SHOWN = 1.1


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure with this many panels of `width` x `height` inches, and its axes as a table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.7), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write the picture as PNG, with nothing in it that differs from one time to another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), dpi=120, metadata={"Software": None})


def legend(figure: Any, columns: int, *, bars: bool = False, extra: Sequence[Any] = ()) -> None:
    """The legend below the panels: what has a label in them, then which marks are ours and which the paper's."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: dict[str, Any] = {}
    for axes in figure.axes:
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    for label, ours in (("this simulator", True), ("the paper", False)):
        line = {"color": "black", "marker": "o", **(OURS if ours else PAPER)}
        handles[label] = Patch(label=label, **look("#555555", ours)) if bars else Line2D([], [], label=label, **line)
    every = [*handles.values(), *extra]
    figure.legend(handles=every, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def look(colour: str, ours: bool) -> dict[str, Any]:
    """A bar of ours is filled, the paper's is light with a dashed edge."""
    from matplotlib.colors import to_rgb

    if ours:
        return {"facecolor": colour, "edgecolor": "black", "linewidth": 0.6}
    light = tuple(1 - 0.25 * (1 - part) for part in to_rgb(colour))
    return {"facecolor": light, "edgecolor": colour, "linewidth": 1.1, "linestyle": "--"}


def plot_curves(result: Result) -> Any:
    """A figure of latency curves, a panel each."""
    from matplotlib.lines import Line2D

    letters = list(result.data)
    columns = min(3, len(letters))
    wide = 4.0 if columns > 1 else 5.6
    figure, axes = new_figure(math.ceil(len(letters) / columns), columns, wide, 2.9)
    for at, (letter, one) in enumerate(zip(letters, axes.flat, strict=False)):
        _plot_panel(one, panels_of(f"{result.figure}{letter}")[0].letter, result)
        if at % columns == 0:
            one.set_ylabel("normalized latency (s/token)", fontsize=8)
        if at + columns >= len(letters):
            one.set_xlabel("request rate (req/s)", fontsize=8)
    for one in list(axes.flat)[len(letters) :]:
        one.set_visible(False)
    level = Line2D([], [], label=f"{KNEE_S} s/token", **_LEVEL)
    legend(figure, len(SYSTEMS) + 3 if figure.get_figwidth() > 8 else 4, extra=[level])
    return figure


def _plot_panel(axes: Any, letter: str, result: Result) -> None:
    paper = panel(result.figure, letter)
    largest = 0.0
    for name, found in result.data[letter].items():
        theirs = paper.inside[name] + paper.above[name][:1]
        ours = [(rate, latency) for rate, latency in found["points"]]
        mark = {"color": SYSTEMS[name].colour, "marker": SYSTEMS[name].marker}
        axes.plot(*zip(*theirs, strict=True), zorder=2, **mark, **PAPER)
        axes.plot(*zip(*_to_frame(ours), strict=True), zorder=3, label=name, **mark, **OURS)
        largest = max([largest, *(rate for rate, latency in ours + theirs if latency < _SHOWN)])
    axes.axhline(KNEE_S, zorder=1, **_LEVEL)
    axes.set_xlim(0, 1.1 * largest)
    axes.set_ylim(0, 1)
    axes.set_title(f"({letter}) {paper.title}" if letter else paper.title, fontsize=8)


def _to_frame(line: Line) -> Line:
    """The points up to the first one above the frame."""
    over = next((i for i, (_, latency) in enumerate(line) if latency >= _SHOWN), len(line))
    return line[: over + 1]
