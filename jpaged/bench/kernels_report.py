"""What a kernel benchmark leaves behind: a table for people, a CSV, a plot.

A number is shown once measured, never filled in. The paper's points are plotted beside ours and named so.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jpaged.bench.kernels import FIG18A, FIG18A_HEADS

_COLUMNS = ("operation", "heads", "dtype", "kv_dtype", "batch", "context", "table_tokens", "page_size", "variant")
_HEADINGS = (*_COLUMNS, "us", "10 to 90 %", "MB", "GB/s", "share of copy", "x gather", "paging costs", "sizes from")
_MARKS = "osD^vPX*"


def check_folder(path: Path | None) -> None:
    """Raise ValueError now, not after a long run, if the table and the plot cannot be made there."""
    if path is None:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--output plots with matplotlib: pip install 'jpaged[plots]', or use --json FILE") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output {path}: no folder can be made there: {error.strerror}; check the path") from None


def table_text(rows: Sequence[dict[str, Any]], headings: bool = True) -> str:
    """The rows as a Markdown table."""
    return _table(_HEADINGS if headings else (), map(_cells, rows))


def _table(headings: Sequence[str], lines: Iterable[Iterable[Any]]) -> str:
    above = [headings, ["---"] * len(headings)] if headings else []
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (*above, *lines))


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [str(row[name]) for name in _COLUMNS]
    if "error" in row:
        return [*cells, row["error"].replace("|", "/").replace("\n", " "), *[""] * (len(_HEADINGS) - len(cells) - 1)]
    own_rules = "own rules" if "implementation" in row and row["operation"] in ("decode", "ragged") else ""
    return [
        *cells,
        f"{1e6 * row['seconds']:.1f}",
        f"{1e6 * row['seconds_low']:.1f} to {1e6 * row['seconds_high']:.1f}",
        f"{row['bytes'] / 1e6:.3g}",
        f"{row['gb_per_second']:.2f}",
        f"{row['share_of_copy']:.1%}" if "share_of_copy" in row else "",
        f"{row['times_gather']:.2f}" if "times_gather" in row else "",
        f"{row['paging_overhead']:+.0%}" if "paging_overhead" in row else "",
        row.get("tuning") or own_rules,
    ]


def paper_table(rows: Sequence[dict[str, Any]]) -> str | None:
    """What paging costs beside what the paper's Fig. 18a says; None if no row is one of its points."""
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        point = (row["batch"], row["context"])
        if row["heads"] != str(FIG18A_HEADS) or "paging_overhead" not in row or point not in FIG18A:
            continue
        paged, without = FIG18A[point]
        lines.append((*point, row["page_size"], row["variant"], f"{1e6 * row['seconds']:.1f}",
                      f"{row['paging_overhead']:+.0%}", paged, without, f"{paged / without - 1:+.0%}"))  # fmt: skip
    headings = ("batch", "context", "page_size", "variant", "us", "paging costs", "paper: vLLM, us",
                "paper: FasterTransformer, us", "paper: paging costs")  # fmt: skip
    return _table(headings, lines) if lines else None


def write_folder(result: dict[str, Any], folder: Path) -> list[Path]:
    """The files written: kernels.md, kernels.csv and kernels.png. Raises ValueError if there is nothing to write."""
    rows = result["rows"]
    timed = [row for row in rows if "seconds" in row]
    if not timed:
        raise ValueError("nothing was timed, so there is no table and no plot; see the errors")
    paths = [folder / f"kernels.{suffix}" for suffix in ("md", "csv", "png")]
    paper = paper_table(rows)
    where = f"{result['device']}, JAX {result['jax']}, {result['time']}"
    text = f"# Kernels on {where}\n\n{table_text(rows)}\n"
    paths[0].write_text(text + (f"\n## Beside the paper's Fig. 18a (A100)\n\n{paper}\n" if paper else ""))
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(paths[1], "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    _plot(timed, where, paths[2])
    return paths


def _plot(rows: Sequence[dict[str, Any]], where: str, path: Path) -> None:
    """Time and bandwidth against page size; against context where there is one page size and several contexts."""
    from matplotlib.figure import Figure

    many_pages = len({row["page_size"] for row in rows}) > 1
    axis = "page_size" if many_pages or len({row["context"] for row in rows}) == 1 else "context"
    rest = [name for name in _COLUMNS if name not in (axis, "variant", "table_tokens")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in rest), []).append(row)
    figure = Figure(figsize=(11, 3.2 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (times, rates), (group, members) in zip(panels, groups.items(), strict=True):
        _plot_group(times, rates, axis, members)
        described = dict(zip(rest, group, strict=True))
        if axis == "context" and described["heads"] == str(FIG18A_HEADS) and described["operation"] == "decode":
            _plot_paper(times, described["batch"])
        times.set_title(", ".join(f"{name} {value}" for name, value in described.items()), fontsize=7)
        times.legend(fontsize=7)
    figure.suptitle(where, fontsize=8)
    figure.savefig(path, dpi=120)


def _plot_group(times: Any, rates: Any, axis: str, members: Sequence[dict[str, Any]]) -> None:
    for i, variant in enumerate(dict.fromkeys(row["variant"] for row in members)):
        own = sorted((row for row in members if row["variant"] == variant), key=lambda row: row[axis])
        x, y = [row[axis] for row in own], [1e6 * row["seconds"] for row in own]
        spread = [[1e6 * (row["seconds"] - row["seconds_low"]) for row in own],
                  [1e6 * (row["seconds_high"] - row["seconds"]) for row in own]]  # fmt: skip
        times.errorbar(x, y, spread, label=variant, marker=_MARKS[i % len(_MARKS)], capsize=2, linewidth=1)
        rates.plot(x, [row["gb_per_second"] for row in own], marker=_MARKS[i % len(_MARKS)], linewidth=1)
    for axes, what in ((times, "us per call"), (rates, "GB/s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(axis.replace("_", " "))
        axes.set_ylabel(what)


def _plot_paper(axes: Any, batch: int) -> None:
    contexts = sorted(context for size, context in FIG18A if size == batch)
    for i, name in enumerate(("the paper's vLLM (A100)", "the paper's FasterTransformer (A100)")):
        values = [FIG18A[batch, context][i] for context in contexts]
        if values:
            axes.plot(contexts, values, label=name, linestyle=":", color="black", marker="+x"[i])
