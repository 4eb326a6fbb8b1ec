"""The `jpaged` program: generate | bench | models.

Text for people by default, one JSON document with --json; a user's mistake is one line and exit code 2.
"""

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click

from jpaged import __version__
from jpaged.cli.bench import bench
from jpaged.cli.errors import UserErrorGroup
from jpaged.cli.flags import engine_options, params_options, profile_option
from jpaged.cli.output import json_option, print_json
from jpaged.core.requests.response import RequestOutput
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.observing import page_map as plots
from jpaged.observing.profiling import profiled


@click.group("jpaged", cls=UserErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jpaged")
@click.option("-v", "--verbose", is_flag=True, help="Say what is chosen and loaded.")
def main(verbose: bool) -> None:
    """PagedAttention in JAX: generate text, measure, list models."""
    # A user's own policy lies in the working directory; a console script does not look there by itself.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("jpaged").setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("models").setLevel(logging.INFO)


@main.command()
@click.argument("prompts", nargs=-1)
@click.option(
    "--prompts-file", type=click.Path(path_type=Path), help="File of prompts, one per line, instead of arguments."
)
@click.option("--chat", is_flag=True, help="Each prompt is a user's message, laid out by the model's chat template.")
@click.option("--stats", "show_stats", is_flag=True, help="End with a summary of the run.")
@click.option(
    "--page-map", type=click.Path(path_type=Path), help="Plot which request held which page when (PNG, SVG or PDF)."
)
@click.option("--priority", type=int, multiple=True, help="Priority of each prompt in turn; the lowest goes first.")
@profile_option
@params_options
@engine_options
@json_option
def generate(
    prompts: tuple[str, ...],
    prompts_file: Path | None,
    chat: bool,
    show_stats: bool,
    page_map: Path | None,
    priority: tuple[int, ...],
    profile: Path | None,
    as_json: bool,
    params: SamplingParams | BeamSearchParams,
    engine: dict[str, Any],
) -> None:
    """Generate for PROMPTS (one or many) as one continuous batch, and stream the text."""
    from jpaged.serving.llm import LLM

    texts = _read_prompts(prompts, prompts_file)
    if isinstance(params, SamplingParams) and params.logprobs is not None and not as_json:
        raise ValueError(f"logprobs={params.logprobs}: shown with --json alone; add --json")
    if page_map is not None:
        plots.check_target(page_map)
    llm = LLM(**engine, record_steps=page_map is not None)
    inputs: list[Any] = [llm.render_chat([{"role": "user", "content": text}]) for text in texts] if chat else texts
    start = time.perf_counter()
    with profiled(profile):
        outputs = _generate(llm, inputs, params, list(priority) or None, None if as_json else texts)
    seconds = time.perf_counter() - start
    if page_map is not None:
        plots.page_map(llm.step_records, page_map)
    if as_json:
        print_json({"outputs": [dataclasses.asdict(output) for output in outputs], "stats": llm.stats()})
    elif show_stats:
        tokens = sum(len(sequence.token_ids) for output in outputs for sequence in output.outputs)
        click.echo(summary(llm.stats(), seconds, tokens))


main.add_command(bench)


@main.command()
@json_option
def models(as_json: bool) -> None:
    """List the models that have a name, and the architectures that can be loaded."""
    from models.catalog import CATALOG, cached
    from models.families import PRESETS, architectures

    catalog = [
        {"name": name, "source": entry.requirement, "cached": cached(name) is not None}
        for name, entry in CATALOG.items()
    ]
    presets = [{"name": name, "parameters": config.num_params} for name, config in PRESETS.items()]
    if as_json:
        print_json({"models": catalog, "presets": presets, "architectures": sorted(architectures())})
        return
    click.echo("With weights:")
    for entry in catalog:
        click.echo(f"  {entry['name']:<16} from {entry['source']}{' (fetched)' if entry['cached'] else ''}")
    click.echo("Shapes, for --load-format dummy:")
    for entry in presets:
        click.echo(f"  {entry['name']:<16} {entry['parameters'] / 1e9:8.2f} B parameters")
    click.echo("Architectures of Hugging Face folders and hub ids:")
    click.echo("  " + ", ".join(sorted(architectures())))


def summary(stats: dict[str, Any], seconds: float, tokens: int) -> str:
    """A few lines on a run of `seconds` that gave `tokens`; rows computed after a stop token do not count."""
    busy = max(seconds - stats["compile_seconds"], 1e-9)
    share = stats["pages_used_peak"] / stats["pages_total"]
    times = (
        f"{name} {stats[key]:.1f} ms"
        for name, key in (("queue", "median_queue_ms"), ("TTFT", "median_ttft_ms"), ("ITL", "median_itl_ms"))
        if stats[key] is not None
    )
    return "\n".join(
        (
            f"{tokens} tokens in {seconds:.1f} s, {stats['compile_seconds']:.1f} s of it compiling: "
            f"{tokens / busy:.1f} tokens/s",
            f"medians, compiling included: {', '.join(times)}",
            f"{stats['num_steps']} steps, {stats['host_ms_per_step']:.2f} ms of host time each; "
            f"{stats['compiled_programs']} programs compiled; attention: {stats['attention_implementation']}",
            f"preemptions: {stats['num_preemptions_recompute']} recomputed, {stats['num_preemptions_swap']} swapped "
            f"({stats['num_pages_swapped_out']} pages out, {stats['num_pages_swapped_in']} in)",
            f"sharing saved {stats['sharing_saved']:.1%} of the pages (at most {stats['pages_saved_peak']} at once); "
            f"{stats['num_page_copies']} page copies; {stats['prefix_hit_tokens']} prompt tokens from the prefix "
            f"cache; {stats['num_evictions']} evictions",
            f"pages of {stats['page_size']} tokens: {stats['pages_used_peak']} of {stats['pages_total']} used at peak "
            f"({share:.1%}); tail waste {stats['tail_waste_mean']:.1%}",
        )
    )


def _generate(
    llm: Any, inputs: list[Any], params: Any, priority: list[int] | None, shown: list[str] | None
) -> list[RequestOutput]:
    """Run the prompts; what comes is printed under the texts `shown`, unless that is None."""
    if isinstance(params, BeamSearchParams):
        outputs = llm.beam_search(inputs, params, priority=priority, use_tqdm=False)
        if shown is not None:
            _print_beams(outputs, shown)
        return outputs
    if shown is None:
        return llm.generate(inputs, params, priority=priority, use_tqdm=False)
    return _print_stream(llm.stream(inputs, params, priority=priority), shown, params.n)


def _read_prompts(prompts: tuple[str, ...], prompts_file: Path | None) -> list[str]:
    if prompts and prompts_file is not None:
        raise ValueError("give prompts as arguments or with --prompts-file, not both")
    if prompts_file is not None:
        try:
            # Not splitlines: it would also cut a prompt at a form feed, or at U+2028.
            prompts = tuple(line for line in prompts_file.read_text(encoding="utf-8-sig").split("\n") if line)
        except OSError as error:
            raise ValueError(f"--prompts-file {prompts_file}: {error.strerror}; check the path") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"--prompts-file {prompts_file}: not UTF-8 ({error}); save it as UTF-8") from None
        if not prompts:
            raise ValueError(f"--prompts-file {prompts_file}: no prompt in it; write one per line")
    if not prompts:
        raise ValueError("no prompt: give one as an argument, or several, or --prompts-file")
    return list(prompts)


def _print_beams(outputs: list[RequestOutput], texts: list[str]) -> None:
    """Each prompt's hypotheses, the best first."""
    for i, output in enumerate(outputs):
        for beam in output.outputs:
            _print_heading(texts, (i, beam.index), len(output.outputs), "beam")
            click.echo(f"{beam.text}\n")


def _print_stream(stream: Generator[Any, None, list[RequestOutput]], texts: list[str], n: int) -> list[RequestOutput]:
    """Show the first unfinished sequence as it grows; what the others have by then follows when it is their turn."""
    held = {(i, j): "" for i in range(len(texts)) for j in range(n)}
    order = list(held)
    ended: set[tuple[int, int]] = set()
    current = 0
    _print_heading(texts, order[0], n)
    while True:
        try:
            delta = next(stream)
        except StopIteration as end:
            return end.value
        key = (delta.prompt_index, delta.index)
        held[key] += delta.text
        if delta.finish_reason is not None:
            ended.add(key)
        while current < len(order):
            key = order[current]
            click.echo(held[key], nl=False)
            held[key] = ""
            sys.stdout.flush()
            if key not in ended:
                break
            click.echo("\n")
            current += 1
            if current < len(order):
                _print_heading(texts, order[current], n)


def _print_heading(texts: list[str], key: tuple[int, int], n: int, what: str = "sample") -> None:
    prompt_index, index = key
    sample = f" ({what} {index + 1} of {n})" if n > 1 else ""
    click.secho(f"> {texts[prompt_index]}{sample}", bold=True)
