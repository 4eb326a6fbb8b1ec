"""Results as text for people and as one CSV for programs: a line per point, in the order of the experiment."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.config_file import Experiment
from experiments.kinds import Summary

USUAL = (
    "completed",
    "request_throughput",
    "output_throughput",
    "mean_normalized_latency_s",
    "median_ttft_ms",
    "median_tpot_ms",
    "mean_running_requests",
    "kv_waste_share",
    "saturated",
)


def results_table(experiment: Experiment, summaries: Sequence[Summary | None]) -> str:
    """A line per point: what tells it from the others, then the numbers that the experiment shows."""
    shown = experiment.show or experiment.configs[0].results or USUAL
    names = list(dict.fromkeys(name for setting in experiment.settings for name in setting))
    rows = [[*(name.rpartition(".")[2] for name in names), *shown]]
    for setting, summary in zip(experiment.settings, summaries, strict=True):
        values = ["failed"] * len(shown) if summary is None else [_text(summary.get(key)) for key in shown]
        rows.append([*(str(setting.get(name, "")) for name in names), *values])
    return text_table(rows)


def text_table(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    """Columns of text to the right, those numbered in `left` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return lines + [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def results_warnings(experiment: Experiment, summaries: Sequence[Summary | None]) -> list[str]:
    """A line for each point whose numbers are not of all its requests because some were refused, or none finished."""
    lines: list[str] = []
    for config, summary in zip(experiment.configs, summaries, strict=True):
        if summary is None:
            continue
        count, refused = summary.get("num_requests"), summary.get("failed")
        if refused:
            lines.append(f"point {config.digest()}: {refused} of {count} requests were refused; see its refused.json")
        if summary.get("completed") == 0:
            lines.append(f"point {config.digest()}: none of {count} requests finished, so it has no latencies")
    return lines


def write_index(path: Path, experiment: Experiment, summaries: Sequence[Summary | None]) -> None:
    """A CSV with a row per point that has run: its folder, its settings, its whole summary. Raises ValueError."""
    done = [
        {"run": config.digest(), **setting, **summary}
        for config, setting, summary in zip(experiment.configs, experiment.settings, summaries, strict=True)
        if summary is not None
    ]
    swept = (name for setting in experiment.settings for name in setting)
    keys = dict.fromkeys(["run", *swept, *(done[0] if done else ())])
    try:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(keys), lineterminator="\n")
            writer.writeheader()
            writer.writerows(done)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); give another output folder") from None


def _text(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else str(value)
