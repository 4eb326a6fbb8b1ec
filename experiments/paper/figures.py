"""All figures by name.

A name that is no figure is refused with those that are.
"""

from collections.abc import Callable

from experiments.paper import batches, memory, pages
from experiments.paper.curves import curve_figure
from experiments.paper.headline import headline
from experiments.paper.panels import panels_of
from experiments.paper.plans import Plan
from experiments.paper.rows import Result

# In the paper's order; None for a figure of panels with curves.
FIGURES: dict[str, Callable[[bool], Plan[Result]] | None] = {
    "table1": memory.table1,
    "1": batches.fig1,
    "2": memory.fig2,
    "12": None,
    "13": memory.fig13,
    "14": None,
    "15": memory.fig15,
    "16": None,
    "17": None,
    "18b": pages.fig18b,
    "19a": pages.fig19a,
    "19b": pages.fig19b,
    "headline": headline,
}


def plans_of(names: list[str], full: bool) -> list[Plan[Result]]:
    """The plans of figures, in the paper's order; panels of one figure become one plan. Raises ValueError."""
    for name in names:
        if name not in FIGURES and not panels_of(name):
            raise ValueError(f"--figures {name}: no such figure; choose from {', '.join(FIGURES)}, or panels as 12a")
    plans: list[Plan[Result]] = []
    for figure, plan_of in FIGURES.items():
        panels = [p for p in panels_of(figure) if p.figure in names or p.name in names]
        if panels:
            plans.append(curve_figure(figure, panels, full))
        elif plan_of is not None and figure in names:
            plans.append(plan_of(full))
    return plans
