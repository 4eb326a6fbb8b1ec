"""`jpaged bench roofline`: its flags and how its result is shown."""

import math
from pathlib import Path
from typing import Any

import click

from jpaged.cli.flags import engine_options, int_option
from jpaged.cli.output import reports

_LABELS = {"products": "- of which products"}


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
            f"  {_LABELS.get(name, name):<19} {part['ms']:8.2f} ms, at least {part['least_ms']:7.2f}: {_share(part)}"
            for name, part in result[step].items()
        ]
    return "\n".join([*lines, *_workload_lines(result.get("workload"))])


def _workload_lines(bound: dict[str, Any] | None) -> list[str]:
    if bound is None:
        return []
    lines = [
        f"The workload, {bound['num_requests']} requests of {bound['total_num_tokens']} tokens, in at least "
        f"{bound['num_steps_at_least']} steps:",
        f"  at least {bound['least_seconds']:.2f} s (operations {bound['operations_seconds']:.2f}, bytes "
        f"{bound['bytes_seconds']:.2f}), at most {bound['tokens_per_second_at_most']:.1f} total tokens/s",
    ]
    if bound["share"] is not None:
        lines.append(f"  the run reached {bound['share']:.1%} of that")
    return lines


def _share(part: dict[str, Any]) -> str:
    if part["share_of_bound"] is None:
        return "too short to tell"
    return (
        f"{part['share_of_bound']:4.0%} of the bound ({part['gflops']:.0f} GFLOP/s, "
        f"{part['gbytes_per_second']:.1f} GB/s)"
    )


@click.command()
@int_option("--batch", 16, "Rows of the decode step.")
@int_option("--context", 256, "Tokens of each of its rows.")
@int_option("--prompt-tokens", 256, "Tokens of the prefill step.")
@int_option("--repeats", 7, "Samples of each time.", least=3)
@click.option("--dataset-path", type=click.Path(path_type=Path), help="CSV of prompt_tokens,output_tokens to bound.")
@int_option("--num-prompts", None, "Only its first requests; default: all.", least=1)
@click.option(
    "--share-of", type=float, help="Total tokens/s that a run of the file reached, to compare with the bound."
)
@reports(_text)
@engine_options
def roofline(
    dataset_path: Path | None,
    num_prompts: int | None,
    share_of: float | None,
    engine: dict[str, Any],
    **steps: int,
) -> dict[str, Any]:
    """What the machine can do, and how near to it each part of a step comes."""
    from jpaged.bench import measure
    from jpaged.bench.roofline import Rates
    from jpaged.bench.roofline import roofline as roofline_of
    from jpaged.bench.workload_bound import workload_bound
    from jpaged.serving.llm import LLM

    if share_of is not None and not 0 < share_of < math.inf:
        raise ValueError(f"share_of={share_of}: give the total tokens per second of a run, a finite number above 0")
    if dataset_path is None and (share_of is not None or num_prompts is not None):
        raise ValueError("--share-of and --num-prompts are about the requests of a file: give --dataset-path too")
    requests = None if dataset_path is None else measure.read_requests(dataset_path, num_prompts)
    llm = LLM(**engine)
    if requests is not None:
        measure.check_fits(llm, requests)
    result = roofline_of(llm, **steps)
    if requests is not None:
        rates = result["rates"].get(llm.config.dtype, result["rates"]["float32"])
        result["workload"] = workload_bound(llm, requests, Rates(**rates), share_of)
    return result | measure.setup(llm)
