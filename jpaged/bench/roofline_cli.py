"""`jpaged bench roofline`: its flags and how its result is shown.

Lives here: the command.
Promises: text for people by default, one JSON document with --json.
Must not know: how anything is measured.
"""

from pathlib import Path
from typing import Any

import click

from jpaged.bench.output import check_at_least, check_writable, output_json_option, setup, show
from jpaged.cli_options import ENGINE_FIELDS, engine_options, json_option, pick


@click.command()
@click.option("--batch", type=int, default=16, show_default=True, help="Rows of the decode step.")
@click.option("--context", type=int, default=256, show_default=True, help="Tokens of each of its rows.")
@click.option("--prompt-tokens", type=int, default=256, show_default=True, help="Tokens of the prefill step.")
@click.option("--repeats", type=int, default=7, show_default=True, help="Samples of each time.")
@output_json_option
@engine_options
@json_option
def roofline(
    batch: int,
    context: int,
    prompt_tokens: int,
    repeats: int,
    output_json: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """What the machine can do, and how near to it each part of a step comes."""
    from jpaged.bench.roofline import roofline as measure
    from jpaged.llm import LLM

    check_at_least("repeats", repeats, 3)
    check_writable(output_json)
    llm = LLM(**pick(options, ENGINE_FIELDS))
    result = measure(llm, batch=batch, context=context, prompt_tokens=prompt_tokens, repeats=repeats)
    show(result | setup(llm), as_json, output_json, _text)


def _text(result: dict[str, Any]) -> str:
    lines = ["Rates that XLA reaches here:"]
    lines += [
        f"  {name}: {rate['operations'] / 1e9:.0f} GFLOP/s in a large product, {rate['bytes'] / 1e9:.1f} GB/s in a "
        "pass over a large array"
        for name, rate in result["rates"].items()
    ]
    titles = {
        "decode": f"A decode step, {result['batch']} rows of {result['context']} tokens",
        "prefill": f"A prefill step, a prompt of {result['prompt_tokens']} tokens",
    }
    for step, title in titles.items():
        lines.append(f"{title} ({result['dtype']}):")
        lines += [
            f"  {name:<10} {part['ms']:8.2f} ms, at least {part['least_ms']:7.2f}: {_share(part)}"
            for name, part in result[step].items()
        ]
    return "\n".join(lines)


def _share(part: dict[str, Any]) -> str:
    if part["share_of_bound"] is None:
        return "too short to tell"
    return (
        f"{part['share_of_bound']:4.0%} of the bound ({part['gflops']:.0f} GFLOP/s, "
        f"{part['gbytes_per_second']:.1f} GB/s)"
    )
