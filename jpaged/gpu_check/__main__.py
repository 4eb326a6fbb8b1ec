"""`python -m jpaged.gpu_check`: its flags.

Exit code 0 when every check is right, 1 when one is not, 2 for a user's mistake and where there is no GPU.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from jpaged.config.declaration import require_choice
from jpaged.gpu_check.sections import SectionRun, run_sections, write_whole
from jpaged.gpu_check.summary import num_wrong, summary

SECTIONS = {
    "device": (30.0, "device", "check_device"),
    "correctness": (75.0, "correctness", "check_correctness", "triton"),
    "correctness_mosaic": (45.0, "correctness", "check_correctness", "mosaic_gpu"),
    "autotune": (90.0, "autotune", "autotune"),
    "kernels": (60.0, "kernels", "bench"),
    "engine": (110.0, "engine", "check_engine"),
    "swap": (35.0, "engine", "check_swap"),
    "devices": (25.0, "engine", "check_devices"),
    "page_sizes": (70.0, "engine", "sweep_page_sizes"),
}
"""Most seconds of each section, in the order in which they run, and where it is: imported in its own process alone."""
# Nobody waits for an H200 there, and the machine may be a small one with other work.
_REHEARSAL_TAKES = 4


@click.command("gpu-check")
@click.option("--platform", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True)
@click.option("--tiny", is_flag=True, help="Rehearse: smallest shapes, kernels interpreted; goes with --platform cpu.")
@click.option("--budget", type=float, default=None, help="Seconds in all; default: 440, in a rehearsal 1800.")
@click.option("--sections", default=",".join(SECTIONS), help="Which sections to run: a list.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON; default: $OUT or runs/gpu-check, by time.")
@click.option(
    "--write-tuned", type=click.Path(path_type=Path), help="Put the best sizes of such a JSON into the table."
)
@click.option("--section", hidden=True)
def main(platform: str, tiny: bool, write_tuned: Path | None, section: str | None, **run: Any) -> None:
    """Check and measure every kernel and the engine on the GPU of this machine; under eight minutes."""
    try:
        if write_tuned is not None:
            from jpaged.gpu_check import autotune

            click.echo(f"{autotune.write_tuned(write_tuned)} measured entries")
            return
        if section is not None:
            _run_section(**json.loads(section))
            return
        if tiny != (platform == "cpu"):
            raise ValueError("--tiny and --platform cpu go together: a rehearsal, in which kernels are interpreted")
        if platform == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        sys.exit(_run(tiny, **run))
    except ValueError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _run_section(name: str, tiny: bool, seconds: float, report: str, part: str) -> None:
    """The section of this name, in this process, which `run_sections` started for it."""
    before = json.loads(Path(report).read_text())["sections"]
    run = SectionRun(tiny=tiny, seconds=seconds, before=before, target=Path(part))
    _, module, function, *arguments = SECTIONS[name]
    getattr(importlib.import_module(f"jpaged.gpu_check.{module}"), function)(run, *arguments)
    run.flush()


def _run(tiny: bool, sections: str, budget: float | None, output: Path | None) -> int:
    names = [name.strip() for name in sections.split(",")]
    for name in names:
        require_choice("sections", name, tuple(SECTIONS))
    if budget is None:
        budget = 1800.0 if tiny else 440.0
    if budget <= 0:
        raise ValueError(f"budget={budget}: must be above 0 seconds")
    document: dict[str, Any] = {"tiny": tiny, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **_device(tiny)}
    document["sections"] = {}
    path = _target(output)
    click.echo(f"{document['device']}, JAX {document['jax']}; results go to {path}")
    seconds = {name: SECTIONS[name][0] * (_REHEARSAL_TAKES if tiny else 1) for name in SECTIONS if name in names}
    for name, entry in run_sections(path, document, seconds, budget=budget):
        click.echo(f"{name}: {entry['status']} in {entry['seconds']:.0f} s")
    document["num_wrong"] = num_wrong(document)
    document["failed_sections"] = [n for n, entry in document["sections"].items() if entry["status"] != "done"]
    write_whole(path, document)
    click.echo(f"\n{summary(document)}")
    return 1 if document["num_wrong"] else 0


def _device(tiny: bool) -> dict[str, Any]:
    """The device, asked for by a process that gives it back at once: two processes do not share a GPU's memory."""
    question = "import jax, json; d = jax.devices()[0]; print(json.dumps([d.platform, d.device_kind, jax.__version__]))"
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise ValueError(f"JAX finds no device here: {asked.stderr.strip().splitlines()[-1:]}")
    platform, kind, version = json.loads(asked.stdout.splitlines()[-1])
    if platform == "cpu" and not tiny:
        raise ValueError(
            "there is no GPU that JAX can use on this machine (JAX_PLATFORMS="
            f"{os.environ.get('JAX_PLATFORMS')!r}, JAX {version}). Run it where there is one, with "
            "pip install 'jpaged[cuda12]', or rehearse: --platform cpu --tiny"
        )
    return {"device": f"{platform}: {kind}", "jax": version}


def _target(output: Path | None) -> Path:
    if output is None:
        folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else Path("runs") / "gpu-check"
        output = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
    except OSError as error:
        raise ValueError(f"output={output}: no file can be written there: {error.strerror}; check the path") from None
    return output.resolve()


if __name__ == "__main__":
    main()
