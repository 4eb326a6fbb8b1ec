"""`jpaged bench kernels`: the kernels alone.

Text as it comes by default, one JSON document with --json; what cannot be measured is said before the run.
"""

from pathlib import Path
from typing import Any

import click

from jpaged.cli.flags import int_option, refuse_given
from jpaged.cli.output import check_writable, print_json, write_json

_STDOUT = "-"


def _list_option(flag: str, default: str | None, help: str) -> Any:
    return click.option(flag, default=default, show_default=True, help=help)


@click.command()
@click.option("--preset", type=click.Choice(["fig18a"]), default=None, help="The points of the paper's Fig. 18a.")
@_list_option("--operations", "decode", "decode, ragged, write, copy: a list.")
@_list_option("--page-sizes", "8,16,32", "Tokens per page: a list.")
@_list_option("--batches", "8,32", "Rows: a list.")
@_list_option("--contexts", "256,1024", "Tokens per row: a list.")
@_list_option("--heads", "9x3x64", "Query heads x kv heads x head_dim: a list.")
@_list_option("--dtypes", None, "Types of the queries: a list; default: float32 on a CPU, bfloat16 on a GPU.")
@_list_option("--kv-dtypes", "auto", "Types of the pages, such as auto,int8: a list.")
@int_option("--table-tokens", None, "Tokens that a block table has room for; default: the context.")
@int_option("--queries", 128, "Query tokens per row of ragged.", least=1)
@int_option("--layers", None, "Calls per program, one layer each; default: 1, 8 on a GPU.")
@_list_option("--implementations", None, "A list; default: all that the platform has.")
@int_option("--repeats", 11, "Samples of each variant, taken in turns.", least=3)
@click.option("--json", "json_target", is_flag=False, flag_value=_STDOUT, default=None, metavar="[FILE]",
              help="One JSON document, printed or written to a file.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Folder for kernels.md, kernels.csv, kernels.png.")
def kernels(
    json_target: str | None,
    output: Path | None,
    implementations: str | None,
    repeats: int,
    **sweep: Any,
) -> None:
    """The kernels alone: time, GB/s, share of a copy's bandwidth, what paging costs (the paper's Fig. 18a)."""
    from jpaged.bench.kernels import facts, measure_point
    from jpaged.bench.kernels_points import check_memory
    from jpaged.bench.kernels_report import check_folder, paper_table, table_text, write_folder

    quiet = json_target == _STDOUT
    if json_target is not None and not quiet:
        check_writable("--json", Path(json_target))
    names = _implementations(implementations)
    points = _points(**sweep)
    for point in points:
        check_memory(point)
    check_folder(output)
    rows: list[dict[str, Any]] = []
    for point in points:
        found = measure_point(point, names, repeats=repeats)
        if not quiet:
            click.echo(table_text(found, headings=not rows))
        rows += found
    result = facts() | {"rows": rows}
    if json_target is not None and not quiet:
        write_json(result, Path(json_target))
    if output is not None:
        write_folder(result, output)
    if quiet:
        print_json(result)
    elif paper := paper_table(rows):
        click.echo(f"\nBeside the paper's Fig. 18a (A100):\n\n{paper}")
    # A kernel that says that it cannot do a point has not failed.
    broken = [row for row in rows if not row.get("error", "NotImplementedError").startswith("NotImplementedError")]
    if broken:
        first = broken[0]
        raise click.ClickException(f"{len(broken)} measurements failed, the first {first['variant']}: {first['error']}")


def _implementations(text: str | None) -> list[str] | None:
    from pallas_kernels import resolve

    names = None if text is None else _words(text)
    for name in names or ():
        try:
            resolve("paged_attention", name)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"implementations={text!r}: {error}") from None
    return names


def _points(preset: str | None, dtypes: str | None, layers: int | None, **sweep: Any) -> list[Any]:
    import jax

    from jpaged.bench.kernels import fig18a_points
    from jpaged.bench.kernels_points import parse_heads, parse_integers, points_of

    on_gpu = jax.default_backend() != "cpu"
    layers = layers if layers is not None else (8 if on_gpu else 1)
    types = _words(dtypes or ("bfloat16" if on_gpu else "float32"))
    if preset is not None:
        refuse_given(f"--preset {preset} has its own; leave one of the two out", *sweep)
        return [point for dtype in types for point in fig18a_points(dtype, layers)]
    sweep |= {name: parse_integers(name, sweep[name]) for name in ("page_sizes", "batches", "contexts")}
    sweep |= {name: _words(sweep[name]) for name in ("operations", "heads", "kv_dtypes")}
    sweep["heads"] = [parse_heads(text) for text in sweep["heads"]]
    return points_of(dtypes=types, layers=layers, **sweep)


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
