"""`jpaged bench`: throughput | latency | host | prefix | kernels | roofline; here the first two and how they are shown.

Flags and JSON fields are named as vLLM's bench names them.
"""

from pathlib import Path
from typing import Any

import click

from jpaged.cli.bench_host import host, prefix
from jpaged.cli.bench_kernels import kernels
from jpaged.cli.bench_output import check_at_least, check_writable, output_json_option, setup, show
from jpaged.cli.bench_roofline import roofline
from jpaged.cli.options import ENGINE_FIELDS, engine_options, json_option, pick
from jpaged.observing.profiling import check_profile, profile_option, profiled

_n = click.option("--n", type=int, default=1, show_default=True, help="Sequences per prompt.")
_temperature = click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")


@click.group()
def bench() -> None:
    """Measure the engine."""


for command in (host, prefix, kernels, roofline):
    bench.add_command(command)


@bench.command()
@click.option("--dataset-path", type=click.Path(path_type=Path), help="CSV of prompt_tokens,output_tokens.")
@click.option("--num-prompts", type=int, default=None, help="Requests; default: the file's, or 16.")
@click.option("--input-len", type=int, default=128, show_default=True, help="Prompt tokens, without a file.")
@click.option("--output-len", type=int, default=64, show_default=True, help="Output tokens, without a file.")
@click.option("--num-warmups", type=int, default=1, show_default=True, help="Untimed requests first.")
@profile_option
@_n
@_temperature
@output_json_option
@engine_options
@json_option
def throughput(
    dataset_path: Path | None,
    num_prompts: int | None,
    input_len: int,
    output_len: int,
    num_warmups: int,
    profile: Path | None,
    n: int,
    temperature: float,
    output_json: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """All requests at once: requests/s and tokens/s."""
    from jpaged.bench import measure
    from jpaged.serving.llm import LLM

    check_at_least("num_prompts", num_prompts, 1)
    check_at_least("num_warmups", num_warmups, 0)
    check_writable(output_json)
    check_profile(profile)
    if dataset_path is not None:
        requests = measure.read_requests(dataset_path, num_prompts)
    else:
        requests = measure.fixed_requests(num_prompts or 16, input_len, output_len)
    llm = LLM(**pick(options, ENGINE_FIELDS))
    result = measure.throughput(
        llm, requests, n=n, num_warmups=num_warmups, temperature=temperature, during=lambda: profiled(profile)
    )
    show(result | setup(llm), as_json, output_json, _throughput_text)


@bench.command()
@click.option("--input-len", type=int, default=32, show_default=True, help="Prompt tokens.")
@click.option("--output-len", type=int, default=128, show_default=True, help="Output tokens.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Requests at once.")
@click.option("--num-iters-warmup", type=int, default=10, show_default=True, help="Untimed runs first.")
@click.option("--num-iters", type=int, default=30, show_default=True, help="Timed runs.")
@_n
@_temperature
@output_json_option
@engine_options
@json_option
def latency(
    input_len: int,
    output_len: int,
    batch_size: int,
    num_iters_warmup: int,
    num_iters: int,
    n: int,
    temperature: float,
    output_json: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """One batch, several times: seconds to its last token."""
    from tqdm import tqdm

    from jpaged.bench import measure
    from jpaged.serving.llm import LLM

    check_at_least("num_iters", num_iters, 1)
    check_at_least("num_iters_warmup", num_iters_warmup, 0)
    check_at_least("batch_size", batch_size, 1)
    check_writable(output_json)
    requests = measure.fixed_requests(batch_size, input_len, output_len)
    llm = LLM(**pick(options, ENGINE_FIELDS))
    with tqdm(total=num_iters_warmup + num_iters, disable=as_json, desc="Iterations") as bar:
        result = measure.latency(
            llm,
            requests,
            n=n,
            num_iters_warmup=num_iters_warmup,
            num_iters=num_iters,
            temperature=temperature,
            on_iteration=bar.update,
        )
    show(result | setup(llm), as_json, output_json, _latency_text)


def _throughput_text(result: dict[str, Any]) -> str:
    memory = ", ".join(f"{where} {size / 2**30:.2f} GiB" for where, size in result["peak_memory_bytes"].items())
    known = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in result["known_memory_bytes"].items())
    return (
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.1f} total "
        f"tokens/s, {result['output_tokens_per_second']:.1f} output tokens/s\n"
        f"{result['num_requests']} requests, {result['num_prompt_tokens']} prompt and {result['num_output_tokens']} "
        f"output tokens in {result['elapsed_time']:.2f} s; {result['num_preemptions']} preemptions\n"
        f"{result['num_steps']} steps, host time {result['host_ms_per_step']:.2f} ms each "
        f"({_stages_text(result)}); device idle between steps {result['device_idle_share']:.1%} of the time\n"
        f"{_start_up_text(result)}\n"
        f"Pages: {result['pages_used_peak']} of {result['pages_total']} at peak, tail waste "
        f"{result['tail_waste_mean']:.1%}; peak memory: {memory} (of it {known})"
    )


def _stages_text(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {ms:.2f}" for name, ms in result["host_stages_ms"].items())


def _start_up_text(result: dict[str, Any]) -> str:
    start = result["start_up"]
    return (
        f"Engine built in {start['load_seconds']:.1f} s, first token after {start['first_token_seconds']:.1f} s; "
        f"{start['num_programs']} programs compiled in {result['compile_seconds']:.1f} s, "
        f"{start['num_programs_from_cache']} of them found on disk"
    )


def _latency_text(result: dict[str, Any]) -> str:
    lines = [f"Avg latency: {result['avg_latency']:.4f} seconds"]
    lines += [f"{p}% percentile latency: {value:.4f} seconds" for p, value in result["percentiles"].items()]
    return "\n".join([*lines, _start_up_text(result)])
