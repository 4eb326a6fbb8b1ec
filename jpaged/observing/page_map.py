"""A picture of what an engine did with its pages: who held which page when; what was copied, evicted, preempted.

The same records give the same picture. Colours are distinct to colour-blind eyes too, and marks differ in shape.
matplotlib is the extra `plots`, loaded when something is plotted.
"""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jpaged.core.observe.step_records import StepRecord
from jpaged.core.plan import MoveKind

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's palette without black, and without the sky blue that a tint of their blue looks like. Requests beyond
# its length begin again at its start.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442")
FREE, CACHED, COMMON = "#FFFFFF", "#D4D4D4", "#303030"
_MOST_NAMED = 6
_EVENTS = {"recomputed": "v", "swapped out": "v", "swapped in": "^", "copies": "|", "evictions": "x"}
"""Kinds of events and their markers."""


def check_target(path: Path) -> None:
    """Raise ValueError, with the remedy, if no picture can be written there: before a long run, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("plotting needs matplotlib: pip install 'jpaged[plots]'") from None
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--page-map {path}: end the name in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"--page-map {path}: no file can be written there; check the path")


def page_map(records: Sequence[StepRecord], path: Path, *, title: str | None = None) -> None:
    """Write a picture of the pool over time: x is the step, y the page, the colour says whose it is.

    A tint is a page of one sequence, a full colour one that several sequences of a request share (the number tells
    how many), dark one that several requests share; grey is cached and idle, white is free. Raises ValueError if
    there are no records, or the file cannot be written.
    """
    check_target(path)
    if not records:
        raise ValueError("nothing to plot: no step was recorded")
    from matplotlib.figure import Figure

    colours = _colours(records)
    kinds = [name for name in _EVENTS if any(_events(record)[name] for record in records)]
    width = min(15.0, max(8.0, 3.6 + 0.14 * len(records)))
    top = _highest_page(records)
    height = min(9.0, max(3.2, 0.17 * top))
    ratios = (0.22 * len(kinds) + 0.02, height, 1.3)
    figure = Figure(figsize=(width, sum(ratios) + 1.1), layout="constrained")
    events, pages, totals = figure.subplots(3, 1, sharex=True, height_ratios=ratios)
    _plot_pages(pages, records, colours, points_per_page=72 * height / top)
    _plot_events(events, records, kinds, colours)
    _plot_totals(totals, records)
    for axes in (events, pages, totals):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=_legend(records, colours), loc="outside right upper", frameon=False, fontsize=8)
    if title is not None:
        figure.suptitle(title, fontsize=10)
    try:
        figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix.lower() == ".png" else None)
    except OSError as error:
        raise ValueError(f"--page-map {path}: {error.strerror}; check the path") from None


def _highest_page(records: Sequence[StepRecord]) -> int:
    """The highest page that was ever in use: those above it are left out of the picture."""
    tables = (pages for record in records for pages in (record.cached, *(table.pages for table in record.tables)))
    return max(itertools.chain.from_iterable(tables), default=1)


def _colours(records: Sequence[StepRecord]) -> dict[str, str]:
    """A colour for each request, in the order in which they first ran."""
    order = dict.fromkeys(table.request_id for record in records for table in record.tables)
    return {request_id: PALETTE[i % len(PALETTE)] for i, request_id in enumerate(order)}


def _plot_pages(axes: Any, records: Sequence[StepRecord], colours: dict[str, str], points_per_page: float) -> None:
    import numpy as np
    from matplotlib.colors import to_rgb

    first, num_pages = records[0].step, _highest_page(records)
    image = np.ones((num_pages, len(records), 3))
    before: dict[int, int] = {}
    for x, record in enumerate(records):
        for page in record.cached:
            image[page - 1, x] = to_rgb(CACHED)
        holders, owner = _holders(record)
        for page, count in list(holders.items()):
            shade = image[page - 1, x] = _shade(colours, owner[page], count)
            if page in record.evicted:
                holders[page] = 0  # the cross stands where the number would: it comes a step later
            elif count > 1 and count != before.get(page) and points_per_page >= 8:
                ink = "white" if sum(shade) < 1.7 else "black"
                axes.text(first + x, page, str(count), color=ink, fontsize=6, ha="center", va="center")
        before = dict(holders)
    extent = (first - 0.5, first + len(records) - 0.5, 0.5, num_pages + 0.5)
    axes.imshow(image, origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    if points_per_page >= 6:
        for page in range(1, num_pages):
            axes.axhline(page + 0.5, color="white", linewidth=0.8)
    _plot_marks(axes, records)
    axes.set_ylabel(f"page (of {records[0].num_pages})")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelbottom=False)


def _holders(record: StepRecord) -> tuple[Counter[int], dict[int, str | None]]:
    """How many sequences hold each page, and the one request that they belong to, or None if there are several."""
    holders: Counter[int] = Counter()
    owner: dict[int, str | None] = {}
    for table in record.tables:
        for page in table.pages:
            holders[page] += 1
            owner[page] = table.request_id if owner.get(page, table.request_id) == table.request_id else None
    return holders, owner


def _shade(colours: dict[str, str], owner: str | None, count: int) -> Any:
    from matplotlib.colors import to_rgb

    if owner is None:
        return to_rgb(COMMON)
    full = to_rgb(colours[owner])
    return full if count > 1 else tuple(1 - 0.45 * (1 - part) for part in full)


def _plot_marks(axes: Any, records: Sequence[StepRecord]) -> None:
    """Copies as arrows from source to target, evictions as crosses, preemptions as dotted lines."""
    size = 5.0 if len(records) <= 150 else 3.0
    for record in records:
        sources = list(dict.fromkeys(copy.source for copy in record.moved(MoveKind.COPY)))
        for copy in record.moved(MoveKind.COPY):
            # Those of one source are one arrow with several heads; another source's stands beside it.
            x = record.step + 0.8 * ((sources.index(copy.source) + 1) / (len(sources) + 1) - 0.5)
            axes.plot([x, x], [copy.source, copy.target], color="black", linewidth=0.8, zorder=3)
            marker = "^" if copy.target > copy.source else "v"
            axes.plot(x, copy.target, marker, color="black", markersize=size, zorder=4)
        for page in record.evicted:
            axes.plot(record.step, page, "x", color="black", markersize=size - 1, markeredgewidth=1.1, zorder=4)
        if record.preempted_recompute or record.preempted_swap:
            axes.axvline(record.step - 0.5, color="black", linewidth=0.8, linestyle=":", zorder=3)


def _events(record: StepRecord) -> dict[str, list[str | None]]:
    """The requests that each kind of event concerns in this step; None stands for none in particular."""
    back = {move.target for move in record.moved(MoveKind.SWAP_IN)}
    returned = dict.fromkeys(t.request_id for t in record.tables if back & set(t.pages))
    return {
        "recomputed": list(record.preempted_recompute),
        "swapped out": list(record.preempted_swap),
        "swapped in": list(returned),
        "copies": [None] if record.moved(MoveKind.COPY) else [],
        "evictions": [None] if record.evicted else [],
    }


def _plot_events(axes: Any, records: Sequence[StepRecord], kinds: list[str], colours: dict[str, str]) -> None:
    kinds = kinds[::-1]
    for record in records:
        happened = _events(record)
        for y, kind in enumerate(kinds):
            for i, request_id in enumerate(happened[kind]):
                colour = "black" if request_id is None else colours.get(request_id, "black")
                axes.plot(record.step + 0.3 * i, y, _EVENTS[kind], color=colour, markersize=6, clip_on=False)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes.set_ylim(-0.6, len(kinds) - 0.4)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0, labelbottom=False)
    axes.set_visible(bool(kinds))


def _plot_totals(axes: Any, records: Sequence[StepRecord]) -> None:
    steps = [record.step for record in records]
    used = [record.pages_used for record in records]
    logical = [max(record.pages_logical, record.pages_used) for record in records]
    axes.fill_between(steps, used, step="mid", color="#9A9A9A", linewidth=0)
    axes.fill_between(steps, used, logical, step="mid", color="#F2C9A8", linewidth=0)
    axes.step(steps, logical, where="mid", color="#B3541E", linewidth=1)
    # A pool much larger than what is used would press the curves flat.
    top = max(*logical, 1)
    if records[0].num_pages <= 3 * top:
        axes.axhline(records[0].num_pages, color="black", linewidth=0.7, linestyle="--")
        top = max(top, records[0].num_pages)
    axes.set_ylim(0, 1.08 * top)
    axes.set_xlabel("step")
    axes.set_ylabel("pages")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _legend(records: Sequence[StepRecord], colours: dict[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    named = list(colours)[:_MOST_NAMED]
    handles: list[Any] = [Patch(color=colours[request_id], label=f"request {request_id}") for request_id in named]
    if len(colours) > len(named):
        handles.append(Patch(color="none", label=f"... {len(colours)} requests:\ncolours repeat"))
    pages = [(owner[page], count) for holders, owner in map(_holders, records) for page, count in holders.items()]
    example = colours[named[0]] if named else PALETTE[0]
    line = partial(Line2D, [], [], color="black")
    shared = any(owner is not None and count > 1 for owner, count in pages)
    preempted = any(record.preempted_recompute or record.preempted_swap for record in records)
    handles_if = (
        (True, Patch(color=_shade({"": example}, "", 1), label="light: one sequence")),
        (shared, Patch(color=example, label="full: shared by a\nrequest's sequences")),
        (any(owner is None for owner, _ in pages), Patch(color=COMMON, label="shared by requests")),
        (any(record.cached for record in records), Patch(color=CACHED, label="cached, idle")),
        (True, Patch(facecolor=FREE, edgecolor="#888888", label="free")),
        (
            any(r.moved(MoveKind.COPY) for r in records),
            line(marker="^", markersize=5, linewidth=0.8, label="copy-on-write"),
        ),
        (any(r.evicted for r in records), line(marker="x", markersize=4, linestyle="", label="evicted")),
        (preempted, line(linewidth=0.8, linestyle=":", label="preemption")),
        (True, Patch(color="#9A9A9A", label="pages held")),
        (any(record.pages_saved for record in records), Patch(color="#F2C9A8", label="saved by sharing")),
        (True, line(linewidth=0.7, linestyle="--", label="size of the pool")),
    )
    return handles + [handle for shown, handle in handles_if if shown]
