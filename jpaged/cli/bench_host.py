"""`jpaged bench host | prefix`: their flags, and how their results are shown."""

from typing import Any

import click

from jpaged.cli.flags import engine_options, int_option
from jpaged.cli.output import reports
from jpaged.config.declaration import require_int


def _host_text(result: dict[str, Any]) -> str:
    lines = [f"CPU time of a decode step on the host, median of {result['num_steps']}, pages of {result['page_size']}:"]
    lines += [
        f"  {run['rows']:5} rows: {run['total_ms']:.3f} ms (schedule {run['schedule_ms']:.3f}, update "
        f"{run['update_ms']:.3f}; 99th percentile {run['total_p99_ms']:.3f}), {run['us_per_row']:.2f} us per row"
        for run in result["steps"]
    ]
    lines.append(f"Allocator: {result['allocator_ops_per_second'] / 1e6:.1f} million pages taken or freed per second")
    if "stages" in result:
        lines += _stages_lines(result["stages"])
    return "\n".join(lines)


def _stages_lines(runs: list[dict[str, Any]]) -> list[str]:
    """A table of the stages, one line for each number of rows, and what a row adds."""
    names = list(runs[0]["stages_ms"])
    lines = ["CPU ms of the host in a whole decode step with a tiny model, mean of the middle half of the steps:"]
    lines.append("   rows " + "".join(f"{name:>11}" for name in names) + "       step   target")
    for run in runs:
        target = "" if run["target_ms"] is None else f"    < {run['target_ms']:g}"
        stages = "".join(f"{run['stages_ms'][name]:11.3f}" for name in names)
        lines.append(f"  {run['rows']:5} {stages}{run['host_ms']:11.3f}{target}")
    first, last = min(runs, key=lambda run: run["rows"]), max(runs, key=lambda run: run["rows"])
    if first["rows"] < last["rows"]:
        growth = 1e3 * (last["host_ms"] - first["host_ms"]) / (last["rows"] - first["rows"])
        lines.append(f"  {growth:.1f} us for each row from {first['rows']} to {last['rows']}")
    return lines


def _prefix_text(result: dict[str, Any]) -> str:
    lines: list[str] = []
    for name in ("shared", "separate"):
        run = result[name]
        lines.append(
            f"{name}: {run['elapsed_time']:.2f} s for {run['num_requests']} requests, {run['num_tokens_computed']} "
            f"tokens computed in {run['num_steps']} steps; {run['pages_used_peak']} of {run['pages_total']} pages at "
            f"peak, {run['num_running_peak']} requests at once"
        )
    lines.append(f"prefix computed before the clock: {result['shared']['pinning_time']:.2f} s")
    lines.append(f"same tokens: {'yes' if result['same_tokens'] else 'NO'}")
    return "\n".join(lines)


@click.command()
@int_option("--rows", None, "Running sequences; default: 64 256 1024, stages 1 16 64 256.", least=1, multiple=True)
@int_option("--num-steps", 200, "Timed decode steps.")
@click.option("--stages", is_flag=True, help="Also each stage of a whole step, on JAX's device with a tiny model.")
@reports(_host_text)
def host(rows: tuple[int, ...], num_steps: int, stages: bool) -> dict[str, Any]:
    """The host core alone, without a device: CPU ms per step, allocations per second."""
    from jpaged.bench.host import ROWS
    from jpaged.bench.host import host as measure

    require_int("num_steps", num_steps, 4 if stages else 2, None)
    result = measure(rows or ROWS, num_steps=num_steps)
    if stages:
        from jpaged.bench import host_stages

        result["stages"] = host_stages.host_stages(rows or host_stages.ROWS, num_steps=num_steps)
    return result


@click.command()
@int_option("--prefix-tokens", 341, "Tokens that all prompts begin with.", least=1)
@int_option("--num-prompts", 32, "All arrive at once.", least=1)
@reports(_prefix_text)
@engine_options
def prefix(prefix_tokens: int, num_prompts: int, engine: dict[str, Any]) -> dict[str, Any]:
    """One prefix of many requests, with and without sharing it: pages and seconds (the paper's Fig. 16)."""
    from jpaged.bench import measure
    from jpaged.serving.llm import LLM

    result: dict[str, Any] = {}
    for name, shares in (("shared", True), ("separate", False)):
        engine["enable_prefix_caching"] = shares
        llm = LLM(**engine)
        result[name] = measure.shared_prefix(
            llm, prefix_tokens=prefix_tokens, num_requests=num_prompts, pinned=shares, seed=llm.config.seed
        )
        result |= measure.setup(llm)
    ids = [result[name].pop("token_ids") for name in ("shared", "separate")]
    return result | {"same_tokens": ids[0] == ids[1]}
