"""The report: report.json, report.md, report.html and the pictures.

The same results give the same bytes; every miss stands there with its reason.
"""

import html
import json
from collections import Counter
from pathlib import Path

from experiments.paper.disagreements import disagreements
from experiments.paper.plot_bars import PICTURES, plot
from experiments.paper.rows import CALIBRATED, MISS, PASS, Result, Row
from experiments.table import markdown_table

COLUMNS = ("figure", "quantity", "paper", "ours", "ours / paper", "tolerance", "verdict", "reason")
VERDICTS = {
    PASS: "ours is a prediction and lies within the tolerance",
    MISS: "ours is a prediction and does not",
    CALIBRATED: "a constant of the cost profile was fitted to the quantity, so nearness proves nothing",
}
INTRODUCTION = (
    "Every figure of Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention "
    "(SOSP 2023), from jpaged's simulator: the scheduler, page pool and block tables that serve models, on a virtual "
    "clock. The paper's numbers were read off its figures (experiments/paper/published.json); its experiments have one "
    "seed and no error bars. `paper-2023`, `paper-2023-alpaca`, `paper-2023-pages` and `paper-2023-ft` are cost "
    "profiles with constants fitted to some of the figures, `ideal` has none (see jpaged/sim). Fig. 18a times a kernel "
    "and is no matter of a simulation; Figs. 3 to 10 are drawings (docs/gallery.md)."
)
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:75em;margin:2em auto;padding:0 1em}img{max-width:100%}"
    "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:2px 6px;text-align:left}"
    ".pass{background:#e3f4e3}.miss{background:#fbe0dd}.calibrated{background:#eeeeee}"
)


def write_report(results: list[Result], folder: Path, *, full: bool) -> None:
    """Write everything into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {r.figure: plot(r, folder / "figures").name for r in results if r.figure in PICTURES}
    facts = {
        "full": full,
        "rows": [row.as_dict() for r in results for row in r.rows],
        "figures": [
            {"figure": r.figure, "title": r.title, "conditions": r.conditions, "data": r.data, "runs": r.digests}
            for r in results
        ],
        "text_against_figures": [{"text": text, "figures": shown} for text, shown in disagreements()],
    }
    (folder / "report.json").write_text(json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    (folder / "report.md").write_text(markdown(results, pictures, full=full))
    (folder / "report.html").write_text(page(results, pictures, full=full))


def counted(results: list[Result]) -> str:
    """How many rows of each verdict there are, in words."""
    counts = Counter(row.verdict for r in results for row in r.rows)
    near = sum(row.within for r in results for row in r.rows if row.verdict == CALIBRATED)
    return (
        f"{sum(counts.values())} numbers: {counts[PASS]} pass, {counts[MISS]} miss, {counts[CALIBRATED]} calibrated "
        f"(of which {near} lie within their tolerance)"
    )


def cells(row: Row) -> list[str]:
    """A row's texts, in the order of COLUMNS."""
    change = "" if row.change is None else f"{row.change:+.2f}" if row.kind == "difference" else f"{row.change:.3f}"
    allowed = {"ratio": f"{row.tolerance:.0%}", "difference": f"{row.tolerance:g}", "order": "equal"}[row.kind]
    reason = "; ".join(text for text in (row.fitted, row.reason) if text)
    return [
        row.figure,
        f"{row.quantity}{f' ({row.unit})' if row.unit else ''}",
        _number(row.paper),
        _number(row.ours),
        change,
        allowed,
        row.verdict + (" (outside)" if row.verdict == CALIBRATED and not row.within else ""),
        reason,
    ]


def markdown(results: list[Result], pictures: dict[str, str], *, full: bool) -> str:
    """The report as Markdown."""
    lines = ["# The paper's figures, simulated", "", INTRODUCTION, "", *_how(full), "", f"**{counted(results)}.**", ""]
    lines += [f"- `{verdict}`: {meaning}" for verdict, meaning in VERDICTS.items()]
    lines += ["", "## Misses", ""]
    missed = [row for r in results for row in r.rows if row.verdict == MISS]
    lines += markdown_table(COLUMNS, map(cells, missed)) if missed else ["None."]
    for r in results:
        lines += ["", f"## {r.title}", ""]
        lines += [f"![{r.title}](figures/{pictures[r.figure]})", ""] if r.figure in pictures else []
        lines += [f"- {text}" for text in r.conditions]
        lines += [f"- {len(r.digests) or 'no'} runs", "", *markdown_table(COLUMNS, map(cells, r.rows))]
    lines += ["", "## Where the paper's text and its figures differ", ""]
    lines += markdown_table(("the text", "the figures"), disagreements())
    return "\n".join(lines) + "\n"


def page(results: list[Result], pictures: dict[str, str], *, full: bool) -> str:
    """The report as one HTML page, with pictures beside it."""
    text = html.escape
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>The paper's figures</title><style>{_STYLE}</style>",
        f"<h1>The paper's figures, simulated</h1><p>{text(INTRODUCTION)}</p>",
        *(f"<p>{text(line)}</p>" for line in _how(full)),
        f"<p><b>{text(counted(results))}.</b></p><ul>",
        *(f"<li><span class={verdict}>{verdict}</span>: {text(meaning)}" for verdict, meaning in VERDICTS.items()),
        "</ul><h2>Misses</h2>",
        _html_table([row for r in results for row in r.rows if row.verdict == MISS]),
    ]
    for r in results:
        parts.append(f"<h2>{text(r.title)}</h2>")
        if r.figure in pictures:
            parts.append(f'<img src="figures/{pictures[r.figure]}" alt="{text(r.title)}">')
        parts += ["<ul>", *(f"<li>{text(line)}" for line in r.conditions), "</ul>", _html_table(list(r.rows))]
    parts.append("<h2>Where the paper's text and its figures differ</h2><table><tr><th>the text<th>the figures</tr>")
    parts += [f"<tr><td>{text(said)}<td>{text(shown)}</tr>" for said, shown in disagreements()]
    return "\n".join([*parts, "</table></html>"]) + "\n"


def _how(full: bool) -> list[str]:
    command, lengths = "make paper", "Traces are shorter than the paper's where it is said."
    if full:
        command, lengths = "make paper FULL=1", "All traces have the paper's lengths."
    return [f"Made by `{command}`. {lengths} Each run is in `points/<digest>`; report.json names them."]


def _html_table(rows: list[Row]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{name}" for name in COLUMNS) + "</tr>"]
    for row in rows:
        lines.append(f"<tr class={row.verdict}>" + "".join(f"<td>{html.escape(cell)}" for cell in cells(row)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _number(value: float | str | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.4g}"
