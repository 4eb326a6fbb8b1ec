"""`python -m experiments.peers`: measure jpaged beside every peer that can be installed, and write the table down.

Fails if there is no peer at all; what is left out is said, with the reason.
"""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import click

from experiments.peers.environments import PEERS, Unavailable, prepare
from experiments.peers.rounds import measure, ratios, running, workload_path
from experiments.table import markdown_table
from models.catalog import cache_dir

DOCS = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


@click.command()
@click.option("--peers", default=",".join(name for name in PEERS if name != "jpaged"), show_default=True)
@click.option("--dtypes", default="float32,bfloat16", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each engine.")
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option(
    "--root", type=click.Path(path_type=Path), default=None, help="Environments and models; default: the cache."
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/peers"), show_default=True)
@click.option("--write-docs", is_flag=True, help="Put the table into docs/performance.md.")
def main(peers: str, dtypes: str, rounds: int, threads: int, root: Path | None, output: Path, write_docs: bool) -> None:
    """jpaged beside other engines: same weights, prompts and lengths, in turn, in one run."""
    names = _names(peers, tuple(PEERS), "--peers")
    kinds = _names(dtypes, ("float32", "bfloat16"), "--dtypes")
    root = root or cache_dir() / "peers"
    results: dict[str, Any] = {}
    for dtype in kinds:
        commands = _commands([*names, "jpaged"], dtype, threads, root)
        with running(commands, threads, click.echo) as clients:
            if set(clients) <= {"jpaged"}:
                raise click.ClickException("no peer could be started, so there is nothing to compare with")
            if "jpaged" not in clients:
                raise click.ClickException("jpaged itself could not be started")
            facts = {name: client.facts for name, client in clients.items()}
            turns = measure(clients, rounds, click.echo)
        table = ratios(turns)
        if set(table) <= {"jpaged"}:
            raise click.ClickException("no peer ran through all rounds, so there is nothing to compare with")
        results[dtype] = {"facts": facts, "rounds": turns, "table": table}
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(results, indent=1))
    text = _markdown(results, rounds, threads)
    click.echo(f"\n{text}\nwritten to {path}")
    if write_docs:
        _into_docs(text)


def _names(text: str, known: tuple[str, ...], flag: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise click.UsageError(f"{flag}={text!r}: give names out of {', '.join(known)}, separated by commas")
    return [name for name in dict.fromkeys(names) if name != "jpaged"]


def _commands(names: list[str], dtype: str, threads: int, root: Path) -> dict[str, list[str]]:
    filled = {"workload": str(workload_path()), "threads": str(threads)}
    commands: dict[str, list[str]] = {}
    for name in names:
        try:
            commands[name] = [part.format(**filled) for part in prepare(name, dtype, root)]
        except Unavailable as error:
            click.echo(f"{name} is left out: {error}")
    return commands


def _markdown(results: dict[str, Any], rounds: int, threads: int) -> str:
    where = f"{threads} threads, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    text = (
        "32 requests (4,957 prompt and 2,742 output tokens) of SmolLM2-135M-Instruct, all at once, at most 16 "
        f"sequences; {where}; median of {rounds} rounds in turn, (least to most) of the ratios within a round."
    )
    heads = (
        "dtype",
        "engine",
        "output tokens/s",
        "jpaged's rate over it",
        "TTFT of 128 tokens, s",
        "jpaged's TTFT over it",
    )
    rows: list[tuple[str, ...]] = []
    for dtype, result in results.items():
        for name, row in result["table"].items():
            engine = f"{PEERS[name].title} {result['facts'][name]['version']}"
            speed, first = ("" if name == "jpaged" else _spread(row[key]) for key in ("throughput", "ttft"))
            rows.append((dtype, engine, f"{row['output_tokens_per_second']:.1f}", speed, f"{row['ttft_s']:.3f}", first))
    return "\n".join([text, "", *markdown_table(heads, rows)]) + "\n"


def _spread(values: tuple[float, float, float]) -> str:
    return f"{values[0]:.2f}x ({values[1]:.2f} to {values[2]:.2f})"


def _into_docs(text: str) -> None:
    page = DOCS.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest:
        before, after = page + "\n## Beside other engines\n\n", "\n"
    DOCS.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


if __name__ == "__main__":
    main()
