"""The curves of latency against rate, plotted as in the paper, with the paper's own points beside ours.

The same numbers give the same bytes; our lines are full, the paper's dashed with hollow marks.
"""

import math
from pathlib import Path
from typing import Any

from experiments.paper.panels import panels_of
from experiments.paper.published import KNEE_S, Line, panel
from experiments.paper.rows import Result
from experiments.paper.systems import SYSTEMS

PAPER = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "markerfacecolor": "none", "markersize": 6.5, "alpha": 0.75}
OURS = {"linestyle": "-", "linewidth": 1.6, "markersize": 4.5}
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


def who_legend(figure: Any, extra: list[Any] | None = None) -> None:
    """The legend below the panels: systems by colour and mark, ours and the paper's by the line."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=s.colour, marker=s.marker, label=name, **OURS)
        for name, s in SYSTEMS.items()
        if name in _plotted(figure)
    ]
    handles += [
        Line2D([], [], color="black", marker="o", label="this simulator", **OURS),
        Line2D([], [], color="black", marker="o", label="the paper", **PAPER),
        *(extra or []),
    ]
    columns = len(handles) if figure.get_figwidth() > 8 else 4
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _plotted(figure: Any) -> set[str]:
    return {line.get_gid() for axes in figure.axes for line in axes.get_lines()}


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
    level = Line2D([], [], color="#999999", linewidth=0.8, linestyle=":", label=f"{KNEE_S} s/token")
    who_legend(figure, [level])
    return figure


def _plot_panel(axes: Any, letter: str, result: Result) -> None:
    paper = panel(result.figure, letter)
    largest = 0.0
    for name, found in result.data[letter].items():
        system = SYSTEMS[name]
        theirs = paper.inside[name] + paper.above[name][:1]
        ours = [(rate, latency) for rate, latency in found["points"]]
        axes.plot(*_columns(theirs), color=system.colour, marker=system.marker, gid=name, zorder=2, **PAPER)
        axes.plot(*_columns(_to_frame(ours)), color=system.colour, marker=system.marker, gid=name, zorder=3, **OURS)
        largest = max([largest, *(rate for rate, latency in ours + theirs if latency < _SHOWN)])
    axes.axhline(KNEE_S, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xlim(0, 1.1 * largest)
    axes.set_ylim(0, 1)
    axes.set_title(f"({letter}) {paper.title}" if letter else paper.title, fontsize=8)


def _to_frame(line: Line) -> Line:
    """The points up to the first one above the frame."""
    over = next((i for i, (_, latency) in enumerate(line) if latency >= _SHOWN), len(line))
    return line[: over + 1]


def _columns(line: Line) -> tuple[list[float], list[float]]:
    return [x for x, _ in line], [y for _, y in line]
