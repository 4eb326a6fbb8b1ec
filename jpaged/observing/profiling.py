"""A trace of what ran when, for TensorBoard or Perfetto.

Without a folder nothing is recorded; a folder that cannot be written is refused before the run. The stages of a step
name themselves (runtime/stages.py).
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

profile_option = click.option(
    "--profile", type=click.Path(path_type=Path), help="Write a trace of the run (jax.profiler) into this folder."
)


def check_profile(folder: Path | None) -> None:
    """Raise ValueError if no trace can be written there."""
    if folder is None:
        return
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"--profile {folder}: no folder can be written there; check the path")


def profiled(folder: Path | None) -> AbstractContextManager[object]:
    """A span whose trace goes into `folder`; None records nothing."""
    if folder is None:
        return nullcontext()
    import jax

    return jax.profiler.trace(str(folder))
