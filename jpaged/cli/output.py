"""How results leave the program: text for people by default, one JSON document on request.

What cannot be written is refused before the run.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def print_json(document: Any) -> None:
    """Print the document in strict JSON."""
    click.echo(json.dumps(document, allow_nan=False))


def write_json(document: Any, path: Path) -> None:
    """Write the document to a file, indented."""
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def check_writable(flag: str, path: Path) -> None:
    """Raise ValueError now, not after a long run, if no file can be written there."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{flag} {path}: no file can be written there; check the path")


def reports(text: Callable[[dict[str, Any]], str]) -> Callable[[Command], Command]:
    """Give a command, which returns its result, --json and --output-json; without them `text` prints the result."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(as_json: bool, output_json: Path | None, **given: Any) -> None:
            if output_json is not None:
                check_writable("--output-json", output_json)
            result = command(**given)
            if output_json is not None:
                try:
                    write_json(result, output_json)
                except OSError as error:
                    raise ValueError(f"--output-json {output_json}: {error}") from None
            if as_json:
                print_json(result)
            else:
                click.echo(text(result))

        output_json_option = click.option(
            "--output-json", type=click.Path(path_type=Path), help="Also write the results to this file."
        )
        return output_json_option(json_option(run))

    return decorate
