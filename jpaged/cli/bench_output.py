"""What the commands of `jpaged bench` have in common: their checks, and how a result leaves.

One JSON document, on standard output or in a file; what cannot be written is refused before the run.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from jpaged.cli.options import print_json

output_json_option = click.option(
    "--output-json", type=click.Path(path_type=Path), help="Also write the results to this file."
)


def check_at_least(name: str, value: int | None, low: int) -> None:
    """Raise ValueError if `value` is given and below `low`."""
    if value is not None and value < low:
        raise ValueError(f"{name}={value}: must be at least {low}")


def check_writable(output_json: Path | None) -> None:
    """Raise ValueError now, not after a long run, if the results cannot be written."""
    if output_json is None:
        return
    if output_json.is_dir() or not os.access(output_json if output_json.exists() else output_json.parent, os.W_OK):
        raise ValueError(f"--output-json {output_json}: no file can be written there; check the path")


def setup(llm: Any) -> dict[str, Any]:
    """What was measured: enough to tell two results apart."""
    import jax

    device = jax.devices()[0]
    return {
        "model": llm.options.model,
        "dtype": llm.config.dtype,
        "page_size": llm.config.cache.page_size,
        "max_num_seqs": llm.config.scheduler.max_num_seqs,
        "max_num_batched_tokens": llm.config.scheduler.max_num_batched_tokens,
        "attention_implementation": llm.attention_implementation,
        "device": f"{device.platform}: {device.device_kind}",
        "jax": jax.__version__,
        "config_digest": llm.config.digest(),
    }


def show(
    result: dict[str, Any], as_json: bool, output_json: Path | None, text: Callable[[dict[str, Any]], str]
) -> None:
    """Print the result, as one JSON document or as `text` has it; also write it to a file, if there is one."""
    if output_json is not None:
        try:
            output_json.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise ValueError(f"--output-json {output_json}: {error}") from None
    if as_json:
        print_json(result)
    else:
        click.echo(text(result))
