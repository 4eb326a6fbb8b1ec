"""All figures by name.

A name that is no figure is refused with those that are.
"""

from experiments.paper import batches, memory, pages
from experiments.paper.curves import curve_figure
from experiments.paper.headline import headline
from experiments.paper.panels import panels_of
from experiments.paper.plans import Plan
from experiments.paper.rows import Result

CURVES = ("12", "14", "16", "17")
OTHERS = {
    "table1": memory.table1,
    "1": batches.fig1,
    "2": memory.fig2,
    "13": memory.fig13,
    "15": memory.fig15,
    "18b": pages.fig18b,
    "19a": pages.fig19a,
    "19b": pages.fig19b,
    "headline": headline,
}
FIGURES = ("table1", "1", "2", "12", "13", "14", "15", "16", "17", "18b", "19a", "19b", "headline")


def plans_of(names: list[str], full: bool) -> list[Plan[Result]]:
    """The plans of figures, in the paper's order; panels of one figure become one plan. Raises ValueError."""
    for name in names:
        if name not in OTHERS and not panels_of(name):
            raise ValueError(f"--figures {name}: no such figure; choose from {', '.join(FIGURES)}, or panels as 12a")
    plans: list[Plan[Result]] = []
    for figure in FIGURES:
        if figure in OTHERS:
            plans += [OTHERS[figure](full)] if figure in names else []
            continue
        panels = [p for p in panels_of(figure) if p.figure in names or p.name in names]
        plans += [curve_figure(figure, panels, full)] if panels else []
    return plans
