"""`jpaged bench`: throughput | latency | host | prefix | kernels | roofline.

Here are the first two. Flags and JSON fields are named as vLLM's bench names them.
"""

from pathlib import Path
from typing import Any

import click

from jpaged.cli.bench_host import host, prefix
from jpaged.cli.bench_kernels import kernels
from jpaged.cli.bench_roofline import roofline
from jpaged.cli.flags import engine_options, int_option, n_option, profile_option, temperature_option
from jpaged.cli.output import reports
from jpaged.observing.profiling import profiled


@click.group()
def bench() -> None:
    """Measure the engine."""


for command in (host, prefix, kernels, roofline):
    bench.add_command(command)


def _throughput_text(result: dict[str, Any]) -> str:
    memory = ", ".join(f"{where} {size / 2**30:.2f} GiB" for where, size in result["peak_memory_bytes"].items())
    known = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in result["known_memory_bytes"].items())
    stages = ", ".join(f"{name} {ms:.2f}" for name, ms in result["host_stages_ms"].items())
    return (
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.1f} total "
        f"tokens/s, {result['output_tokens_per_second']:.1f} output tokens/s\n"
        f"{result['num_requests']} requests, {result['num_prompt_tokens']} prompt and {result['num_output_tokens']} "
        f"output tokens in {result['elapsed_time']:.2f} s; {result['num_preemptions']} preemptions\n"
        f"{result['num_steps']} steps, host time {result['host_ms_per_step']:.2f} ms each "
        f"({stages}); device idle between steps {result['device_idle_share']:.1%} of the time\n"
        f"{_start_up_text(result)}\n"
        f"Pages: {result['pages_used_peak']} of {result['pages_total']} at peak, tail waste "
        f"{result['tail_waste_mean']:.1%}; peak memory: {memory} (of it {known})"
    )


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


@bench.command()
@click.option("--dataset-path", type=click.Path(path_type=Path), help="CSV of prompt_tokens,output_tokens.")
@int_option("--num-prompts", None, "Number of requests; default: the file's, or 16.", least=1)
@int_option("--input-len", 128, "Prompt tokens, without a file.", least=1)
@int_option("--output-len", 64, "Output tokens, without a file.", least=1)
@int_option("--num-warmups", 1, "Untimed requests first.", least=0)
@profile_option
@n_option
@temperature_option
@reports(_throughput_text)
@engine_options
def throughput(
    dataset_path: Path | None,
    num_prompts: int | None,
    input_len: int,
    output_len: int,
    profile: Path | None,
    engine: dict[str, Any],
    **how: Any,
) -> dict[str, Any]:
    """All requests at once: requests/s and tokens/s."""
    from jpaged.bench import measure
    from jpaged.serving.llm import LLM

    if dataset_path is not None:
        requests = measure.read_requests(dataset_path, num_prompts)
    else:
        requests = measure.fixed_requests(num_prompts or 16, input_len, output_len)
    llm = LLM(**engine)
    return measure.throughput(llm, requests, during=profiled(profile), **how) | measure.setup(llm)


@bench.command()
@int_option("--input-len", 32, "Prompt tokens.", least=1)
@int_option("--output-len", 128, "Output tokens.", least=1)
@int_option("--batch-size", 8, "Requests at once.", least=1)
@int_option("--num-iters-warmup", 10, "Untimed runs first.", least=0)
@int_option("--num-iters", 30, "Timed runs.", least=1)
@n_option
@temperature_option
@reports(_latency_text)
@engine_options
def latency(input_len: int, output_len: int, batch_size: int, engine: dict[str, Any], **repeats: Any) -> dict[str, Any]:
    """One batch, several times: seconds to its last token."""
    from jpaged.bench import measure
    from jpaged.serving.llm import LLM

    requests = measure.fixed_requests(batch_size, input_len, output_len)
    llm = LLM(**engine)
    use_tqdm = not click.get_current_context().params["as_json"]
    return measure.latency(llm, requests, use_tqdm=use_tqdm, **repeats) | measure.setup(llm)
