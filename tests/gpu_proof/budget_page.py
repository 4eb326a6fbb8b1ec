"""docs/gpu-budget.md, out of the recorded budget.

Lives here: `render`; run as a program it measures, records and writes the page.
Promises: every number of the page is recorded, computed from what is recorded, or an assumption that the page names.
Must not know: how anything is compiled.
"""

from pathlib import Path
from typing import Any

import budget
from budget import CASES, CONTEXT, LAUNCH_SECONDS, REACHED, TARGETS, Budget, Record

from jpaged.sim.hardware import HARDWARE

PAGE = Path(__file__).parents[2] / "docs" / "gpu-budget.md"
KINDS = ("matrix products", "pallas kernels", "fusions", "copies")

INTRODUCTION = """\
# What a decode step costs on a GPU

No GPU has run anything for this page. Launches, memory and copies are read out of the programs that XLA compiled for an
H100 (`make gpu-proof`, JAX {jax}); times are arithmetic on them. bfloat16, pages of 16 tokens, {context} tokens of
context per row, every row with one new token. Batch 1 is compiled for two rows, the engine's smallest step.

Written from `tests/gpu_proof/budget.json`, which `make gpu-proof` holds against fresh compilations; to record anew:
`JAX_PLATFORMS=cpu PYTHONPATH=. .venv/bin/python tests/gpu_proof/budget_page.py`.
"""

LAUNCHES = """
## Launches

{table}

*In a layer*: any layer but the first, in which XLA does some work for all. *Host calls*: what the host starts for the
whole step. XLA, with its default options, puts every launch of the step into one command buffer (a CUDA graph),
Triton's kernels included, so the host starts the step with one call; there is no loop, no condition and no host
callback in it. The copies are slices of the step's packed integers, {copy} bytes the largest; none is of the pool or
of weights. An H200 gets as many launches or fewer (the proof compares them), and steps of all layers, compiled at 32
rows for both, have no more than the layers measured here predict.

Matrix products are XLA's own choice without autotuning, which takes a GPU: there, some may become cuBLAS calls, each a
launch or two, which can be captured too. Whether the driver accepts the graph is for a GPU to say.
"""

BYTES = """
## Bytes

{table}

*At least*: weights read once (not the table of which a few rows are looked up), the KV of all rows read once, logits
written in float32. *Besides the weights*: what XLA's cost analysis of the compiled program counts beyond the weights:
the logits, and every result that one launch leaves for the next, written once and read by each that uses it. Those
results lie in the *temporary* memory, which is smaller than the second-level cache of 50 MB, on an H200 too: that they
stay there is to be expected, and not proven.

Where that analysis means nothing, it is left out: calls of Pallas kernels count as nothing (their pool traffic is the
KV column), a lookup counts as its whole table (subtracted), and of the sampler every branch counts whether or not it
runs. *Temporary* does not depend on the pool.
"""

TIMES = """
## Predicted time

{table}

Bytes at {reached:.0%} of the data sheet's bandwidth (H100 {h100:.2f} TB/s, H200 {h200:.2f} TB/s; the share was
measured on A100s and is assumed here), and {launch:.0f} us a launch inside a command buffer (assumed). Where the
matrix products at {compute:.0%} of peak would take longer than reading their weights, their time counts instead: on
the H200 at 256 rows. *Of it launches* is what the second assumption makes of the whole; at 1 us it is half, at 4 us
twice as much. *Simulator besides bytes*: what `jpaged.sim` charges for an engine of the paper's time on the same
device, {layer:.0f} us a layer and {sequence:.0f} us a sequence, sampling included. Not predicted: the sampler and the
host.
"""

SAMPLER = """
## The sampler

The sampler is the second program of a step. With XLA's default options the host starts it in {calls} calls:
{list}.
The condition asks whether any row samples at random. Since it is in no command buffer, XLA copies its answer
to the host and waits for it, so there the host cannot run ahead of the device. It is in none because XLA does
not capture loops by default, and one of its branches has some. With
`xla_gpu_enable_command_buffer={capture}`
the sampler is {after}.
"""


def render(record: Record) -> str:
    """The page."""
    pieces = [
        INTRODUCTION.format(jax=record.jax, context=CONTEXT),
        LAUNCHES.format(table=_launches(record), copy=f"{max(s.largest_copy for s in record.steps.values()):,}"),
        BYTES.format(table=_bytes(record)),
        TIMES.format(
            table=_times(record),
            reached=REACHED,
            h100=HARDWARE["H100"].memory_rate / 1e12,
            h200=HARDWARE["H200"].memory_rate / 1e12,
            launch=1e6 * LAUNCH_SECONDS,
            compute=HARDWARE["H100"].compute_efficiency,
            layer=HARDWARE["H100"].layer_ns / 1e3,
            sequence=HARDWARE["H100"].sequence_ns / 1e3,
        ),
        SAMPLER.format(
            calls=len(record.sampler),
            list=", ".join(f"`{kind}`" for kind in record.sampler),
            capture=budget.ALL_THUNKS,
            after="one command buffer"
            if len(record.sampler_with_loops) == 1
            else f"{len(record.sampler_with_loops)} calls",
        ),
    ]
    return "".join(pieces)


def _launches(record: Record) -> str:
    header = ["model", "batch", *KINDS, "per step", "in a layer", "host calls"]
    rows = [
        [*(step.step.get(kind, 0) for kind in KINDS), step.launches, sum(step.layer.values()), step.host_calls]
        for step in _steps(record)
    ]
    return _table(header, rows)


def _bytes(record: Record) -> str:
    header = ["model", "batch", "weights", "KV", "logits", "at least", "besides the weights", "temporary"]
    rows = []
    for case, step in zip(CASES, _steps(record), strict=True):
        least = budget.least_bytes(*case)
        sizes = [*least.values(), sum(least.values()), step.besides_weights]
        rows.append([*(f"{size / 1e9:.2f} GB" for size in sizes), f"{step.temp / 1e6:.1f} MB"])
    return _table(header, rows)


def _times(record: Record) -> str:
    header = ["model", "batch", *TARGETS, "of it launches", "tokens/s H100", "tokens/s H200", "simulator besides bytes"]
    rows = []
    for (preset, batch), step in zip(CASES, _steps(record), strict=True):
        seconds = [budget.predicted_seconds(preset, batch, target, step) for target in TARGETS]
        launching = step.launches * LAUNCH_SECONDS
        besides = budget.simulated_overhead(preset, batch, "H100")
        times = [f"{1e3 * s:.2f} ms" for s in (*seconds, launching, besides)]
        rows.append([*times[:-1], *(f"{batch / s:,.0f}" for s in seconds), times[-1]])
    return _table(header, rows)


def _steps(record: Record) -> list[Budget]:
    return [record.steps[budget.key(*case)] for case in CASES]


def _table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table with a line for each case."""
    lines = [header, ["---"] * 2 + ["---:"] * (len(header) - 2)]
    lines += [[preset, str(batch), *map(str, row)] for (preset, batch), row in zip(CASES, rows, strict=True)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    budget.record()
    PAGE.write_text(render(budget.recorded()))
