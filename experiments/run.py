"""`python -m experiments.run CONFIG`: run the points of an experiment, or replay a recorded one.

A user's mistake is one line and exit code 2; failed points, or a replay that differs, are exit code 1.
"""

import os
import sys
from pathlib import Path

import click

from experiments.config_file import Experiment, read_experiment
from experiments.kinds import Summary
from experiments.launchers import LAUNCHERS
from experiments.record import is_done
from experiments.replay import replay
from experiments.sweep import PointsFailed, run_points
from experiments.table import results_table, results_warnings, write_index


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="A field of all points; repeatable.")
@click.option("--launcher", type=click.Choice(list(LAUNCHERS)), default="local", show_default=True)
@click.option("--ray-address", help="A Ray cluster's address, for --launcher ray; default: this machine.")
@click.option("--workers", type=click.IntRange(1), help="Points at once; default: one for each CPU.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder.")
@click.option("--dry-run", is_flag=True, help="Check the config and list its points.")
@click.option("--replay", "recorded", type=click.Path(path_type=Path), metavar="RUN", help="Run a run folder again.")
def main(
    config: Path | None,
    overrides: tuple[str, ...],
    launcher: str,
    ray_address: str | None,
    workers: int | None,
    output: Path,
    dry_run: bool,
    recorded: Path | None,
) -> None:
    """Run the experiment of a CONFIG file; each point leaves a folder in OUTPUT, and is never run twice."""
    if (config is None) == (recorded is None):
        raise click.UsageError("give a CONFIG, or --replay RUN")
    if ray_address is not None:
        os.environ["RAY_ADDRESS"] = ray_address
    try:
        if recorded is not None:
            sys.exit(_replay(recorded))
        assert config is not None
        experiment = read_experiment(_found(config), overrides)
        root = output / experiment.name
        click.echo(f"{experiment.question}\n{len(experiment.configs)} points, in {root}")
        if dry_run:
            click.echo(_listing(experiment, root))
            return
        sys.exit(_run(experiment, root, launcher, workers))
    except ValueError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _found(config: Path) -> Path:
    """The file as it is named, or that of the project's own configs: page_size.yaml, configs/page_size.yaml."""
    shipped = Path(__file__).parent / "configs" / config.name
    own = config.parent in (Path(), Path("configs")) and shipped.exists() and not config.exists()
    return shipped if own else config


def _run(experiment: Experiment, root: Path, launcher: str, workers: int | None) -> int:
    summaries: list[Summary | None]
    errors: dict[str, str] = {}
    try:
        summaries = list(run_points(experiment.configs, root, launcher=launcher, workers=workers))
    except PointsFailed as failed:
        summaries, errors = failed.summaries, failed.errors
    write_index(root / "index.csv", experiment, summaries)
    click.echo(results_table(experiment, summaries))
    for line in results_warnings(experiment, summaries):
        click.echo(f"warning: {line}", err=True)
    for digest, text in errors.items():
        click.echo(f"error: point {root / digest} failed: {text}", err=True)
    return 1 if errors else 0


def _replay(folder: Path) -> int:
    differences = replay(folder)
    for line in differences:
        click.echo(line)
    click.echo(f"{folder}: {'differs from what was recorded' if differences else 'agrees with what was recorded'}")
    return 1 if differences else 0


def _listing(experiment: Experiment, root: Path) -> str:
    lines: list[str] = []
    for config, setting in zip(experiment.configs, experiment.settings, strict=True):
        done = "done" if is_done(root / config.digest()) else "to run"
        label = ", ".join(f"{name}={value}" for name, value in setting.items())
        lines.append(f"{config.digest()}  {done:6}  {label}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
