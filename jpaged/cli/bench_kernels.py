"""`jpaged bench kernels`: the kernels alone.

Text as it comes by default, one JSON document with --json; what cannot be measured is said before the run.
"""

from pathlib import Path
from typing import Any

import click

from jpaged.cli.flags import AtLeast, refuse_given
from jpaged.cli.output import check_writable, print_json, write_json

_STDOUT = "-"
_SWEEP = ("page_sizes", "batches", "contexts", "heads")


@click.command()
@click.option("--preset", type=click.Choice(["fig18a"]), default=None, help="The points of the paper's Fig. 18a.")
@click.option("--operations", default="decode", show_default=True, help="decode, ragged, write, copy: a list.")
@click.option("--page-sizes", default="8,16,32", show_default=True, help="Tokens per page: a list.")
@click.option("--batches", default="8,32", show_default=True, help="Rows: a list.")
@click.option("--contexts", default="256,1024", show_default=True, help="Tokens per row: a list.")
@click.option("--heads", default="9x3x64", show_default=True, help="Query heads x kv heads x head_dim: a list.")
@click.option(
    "--dtypes", default=None, help="Types of the queries: a list; default: float32 on a CPU, bfloat16 on a GPU."
)
@click.option("--kv-dtypes", default="auto", show_default=True, help="Types of the pages, such as auto,int8: a list.")
@click.option(
    "--table-tokens", type=int, default=None, help="Tokens that a block table has room for; default: the context."
)
@click.option("--queries", type=AtLeast(1), default=128, show_default=True, help="Query tokens per row of ragged.")
@click.option("--layers", type=int, default=None, help="Calls per program, one layer each; default: 1, 8 on a GPU.")
@click.option("--implementations", default=None, help="A list; default: all that the platform has.")
@click.option(
    "--repeats", type=AtLeast(3), default=11, show_default=True, help="Samples of each variant, taken in turns."
)
@click.option("--json", "json_target", is_flag=False, flag_value=_STDOUT, default=None, metavar="[FILE]",
              help="One JSON document, printed or written to a file.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Folder for kernels.md, kernels.csv, kernels.png.")
def kernels(json_target: str | None, output: Path | None, preset: str | None, **options: Any) -> None:
    """The kernels alone: time, GB/s, share of a copy's bandwidth, what paging costs (the paper's Fig. 18a)."""
    from jpaged.bench.kernels import bench_kernels
    from jpaged.bench.kernels_points import check_memory
    from jpaged.bench.kernels_report import check_folder, paper_table, table_text, write_folder

    if json_target not in (None, _STDOUT):
        check_writable("--json", Path(json_target))
    names = _implementations(options["implementations"])
    points = _points(preset, options)
    for point in points:
        check_memory(point)
    check_folder(output)
    quiet = json_target == _STDOUT
    shown = 0

    def on_point(rows: list[dict[str, Any]]) -> None:
        nonlocal shown
        if not quiet:
            click.echo(table_text(rows, headings=shown == 0))
        shown += 1

    result = bench_kernels(points, implementations=names, repeats=options["repeats"], on_point=on_point)
    if json_target is not None and not quiet:
        write_json(result, Path(json_target))
    if output is not None:
        write_folder(result, output)
    if quiet:
        print_json(result)
    elif paper := paper_table(result["rows"]):
        click.echo(f"\nBeside the paper's Fig. 18a (A100):\n\n{paper}")
    _fail_if_broken(result["rows"])


def _fail_if_broken(rows: list[dict[str, Any]]) -> None:
    """Exit code 1 if a kernel failed; one that says that it cannot do a point has not failed."""
    broken = [row for row in rows if "error" in row and not row["error"].startswith("NotImplementedError")]
    if broken:
        first = broken[0]
        raise click.ClickException(f"{len(broken)} measurements failed, the first {first['variant']}: {first['error']}")


def _implementations(text: str | None) -> list[str] | None:
    from pallas_kernels import resolve

    if text is None:
        return None
    names = _words(text)
    for name in names:
        try:
            resolve("paged_attention", name)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"implementations={text!r}: {error}") from None
    return names


def _points(preset: str | None, options: dict[str, Any]) -> list[Any]:
    import jax

    from jpaged.bench.kernels import fig18a_points
    from jpaged.bench.kernels_points import parse_heads, parse_integers, points_of

    on_gpu = jax.default_backend() != "cpu"
    layers = options["layers"] if options["layers"] is not None else (8 if on_gpu else 1)
    dtypes = _words(options["dtypes"] or ("bfloat16" if on_gpu else "float32"))
    if preset is not None:
        for name in (*_SWEEP, "operations", "kv_dtypes", "table_tokens", "queries"):
            refuse_given(name, f"--preset {preset} has its own; leave one of the two out")
        return [point for dtype in dtypes for point in fig18a_points(dtype, layers)]
    kv_dtypes, operations = _words(options["kv_dtypes"]), _words(options["operations"])
    sizes = {name: parse_integers(name, options[name]) for name in _SWEEP[:3]}
    shapes = [parse_heads(text) for text in _words(options["heads"])]
    return points_of(
        operations, sizes["page_sizes"], sizes["batches"], sizes["contexts"], shapes, dtypes, kv_dtypes,  # pyright: ignore[reportArgumentType]
        table_tokens=options["table_tokens"], queries=options["queries"], layers=layers,
    )  # fmt: skip


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
