"""The other figures, plotted as in the paper: bars, and lines over page or batch sizes.

Ours is filled, the paper's hollow with a dashed edge, beside it.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.paper.headline import MODELS_OF, ratio_of
from experiments.paper.memory import SHARES
from experiments.paper.plot import OURS, PAPER, legend, look, new_figure, plot_curves, save
from experiments.paper.published import published
from experiments.paper.rows import Result
from experiments.paper.systems import FT, MAX, ORACLE, ORCAS, POW2, SYSTEMS, VLLM

_SHARE_COLOURS = ("#4c956c", "#f2c14e", "#d1495b", "#c9c9c9")
_LINES = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")


def plot(result: Result, folder: Path) -> Path:
    """Write the picture of a result; its path."""
    path = folder / f"fig{result.figure}.png" if result.figure[0].isdigit() else folder / f"{result.figure}.png"
    save(PICTURES[result.figure](result), path)
    return path


def _fig1(result: Result) -> Any:
    figure, axes = new_figure(2, 1, 5.8, 2.4)
    top, bottom = axes[0][0], axes[1][0]
    paper, data = published()["fig1_right"], result.data
    for name, colour, marker in (("Existing systems", "#7f7f7f", "s"), ("vLLM", "#1f77b4", "o")):
        top.plot(*zip(*paper["top"]["series"][name], strict=True), color=colour, marker=marker, **PAPER)
        top.plot(*zip(*data[name], strict=True), color=colour, marker=marker, label=name, **OURS)
    top.axhline(data["weights_GB"], color="#d62728", linewidth=0.9, linestyle=":", label="parameters")
    full = data["weights_GB"] + data["pool_GB"]
    top.axhline(full, color="black", linewidth=0.9, linestyle=":", label="parameters and the whole pool")
    top.set_ylabel("memory (GB)", fontsize=8)
    top.set_ylim(20, 42)
    bottom.plot(*zip(*paper["bottom"]["series"]["Throughput"], strict=True), color="#9467bd", marker="D", **PAPER)
    bottom.plot(*zip(*data["Throughput"], strict=True), color="#9467bd", marker="D", label="throughput", **OURS)
    bottom.set_ylabel("throughput (token/s)", fontsize=8)
    bottom.set_xlabel("batch size (requests)", fontsize=8)
    bottom.set_ylim(0, 1200)
    for one in (top, bottom):
        one.set_xlim(0, 42)
    legend(figure, 3)
    return figure


def _fig2(result: Result) -> Any:
    figure, axes = new_figure(1, 1, 7.4, 3.2)
    one = axes[0][0]
    systems = (MAX, POW2, ORACLE, VLLM)
    for offset, shares, ours in ((-0.2, result.data, True), (0.2, published()["fig2"]["vector"], False)):
        base = [0.0] * len(systems)
        for i, (share, colour) in enumerate(zip(SHARES, _SHARE_COLOURS, strict=True)):
            heights = [shares[name][i] for name in systems]
            places = [at + offset for at in range(len(systems))]
            label = share if ours else None
            one.bar(places, heights, 0.36, bottom=base, label=label, **look(colour, ours))
            for x, low, height in zip(places, base, heights, strict=True):
                if height > 4:
                    one.text(x, low + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=7)
            base = [low + height for low, height in zip(base, heights, strict=True)]
    one.set_xticks(range(len(systems)), [_plain(name) for name in systems], fontsize=8)
    one.set_ylabel("KV cache usage (%)", fontsize=8)
    one.set_ylim(0, 100)
    legend(figure, 6, bars=True)
    return figure


def _fig13(result: Result) -> Any:
    systems, paper = (*ORCAS, VLLM), published()["fig13"]
    figure, axes = _bar_panels(len(paper), 4.2, 2.8, "batched requests")
    for one, (title, theirs), limit in zip(axes, paper.items(), (40, None), strict=True):
        _pairs(one, systems, result.data[title].values(), [theirs[name] for name in systems])
        one.set_title(title, fontsize=9)
        one.set_ylim(0, limit)
    return figure


def _fig15(result: Result) -> Any:
    figure, axes = _bar_panels(2, 4.0, 2.8, "memory saved (%)")
    lines = (("parallel sampling", "output sequences", "#1f77b4"), ("beam search", "beam width", "#2ca02c"))
    for one, (key, ours), (title, label, colour) in zip(axes, result.data.items(), lines, strict=True):
        theirs = published()["fig15"][key]
        _pairs(one, ["2", "4", "6"], ours, theirs, colour)
        one.set_xlabel(label, fontsize=8)
        one.set_title(title, fontsize=9)
        one.set_ylim(0, 1.15 * max(*ours, *theirs))
    return figure


def _bar_panels(columns: int, width: float, height: float, label: str) -> tuple[Any, Any]:
    """A figure of one row of panels with bars, and their axes."""
    figure, axes = new_figure(1, columns, width, height)
    axes[0][0].set_ylabel(label, fontsize=8)
    legend(figure, 2, bars=True)
    return figure, axes[0]


def _pairs(
    axes: Any, names: Sequence[str], ours: Iterable[float], paper: Iterable[float], colour: str | None = None
) -> None:
    """Two bars a name, ours and the paper's, with their values on top; in the colours of systems, or in `colour`."""
    for offset, values, mine in ((-0.2, ours, True), (0.2, paper, False)):
        for at, (value, name) in enumerate(zip(values, names, strict=True)):
            axes.bar(at + offset, value, 0.36, **look(colour or SYSTEMS[name].colour, mine))
            above = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(f"{value:.1f}", (at + offset, value), **above)
    axes.set_xticks(range(len(names)), map(_plain, names), fontsize=8)


def _page_sizes(result: Result) -> Any:
    """Lines over page sizes: Figs. 18b, 19a, 19b."""
    log = result.figure != "19a"
    figure, axes = new_figure(1, 1, 6.4, 3.2)
    one = axes[0][0]
    paper = published()[f"fig{result.figure}"]["series"]
    for (name, line), colour, marker in zip(result.data.items(), _LINES, "os^D", strict=False):
        one.plot(*zip(*paper[name], strict=True), color=colour, marker=marker, **PAPER)
        one.plot(*zip(*line, strict=True), color=colour, marker=marker, label=name, **OURS)
    one.set_xscale("log", base=2)
    one.set_xticks([size for size, _ in next(iter(result.data.values()))])
    one.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if log:
        # The paper's axis is linear; on it nothing of the bottom of the U can be told.
        one.set_yscale("log")
    else:
        one.set_ylim(0, 150)
    one.set_xlabel("page size (tokens)", fontsize=8)
    one.set_ylabel("normalized latency (s/token)" if log else "time (ms)", fontsize=8)
    legend(figure, 3)
    return figure


def _headline(result: Result) -> Any:
    figure, axes = _bar_panels(3, 3.6, 2.9, "vLLM's rate over the other's")
    rivals = (FT, *ORCAS)
    paper = {row.quantity: row.paper for row in result.rows}
    for one, (letter, variants) in zip(axes, result.data.items(), strict=True):
        ratios = {v: [knees[VLLM] / knees[name] for name in rivals] for v, knees in variants.items()}
        first = next(iter(ratios.values()))
        theirs = [float(paper[ratio_of(letter, name)]) for name in rivals]
        _pairs(one, rivals, first, theirs)
        if len(ratios) > 1:
            columns = list(zip(*ratios.values(), strict=True))
            low = [value - min(column) for value, column in zip(first, columns, strict=True)]
            high = [max(column) - value for value, column in zip(first, columns, strict=True)]
            places = [at - 0.3 for at in range(len(rivals))]
            one.errorbar(places, first, yerr=(low, high), fmt="none", ecolor="black", elinewidth=1, capsize=2)
        one.set_title(f"{MODELS_OF[letter]}, ShareGPT", fontsize=9)
        one.set_ylim(0, 1.12 * max(*first, *theirs))
    return figure


def _plain(name: str) -> str:
    return "FT" if name == FT else name.replace(" ", "\n")


PICTURES: dict[str, Callable[[Result], Any]] = {
    "1": _fig1,
    "2": _fig2,
    "12": plot_curves,
    "13": _fig13,
    "14": plot_curves,
    "15": _fig15,
    "16": plot_curves,
    "17": plot_curves,
    "18b": _page_sizes,
    "19a": _page_sizes,
    "19b": _page_sizes,
    "headline": _headline,
}
