"""What the tests of sharding share: checkpoints with eight heads, and what one device answers."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sharding.checkpoints import CONFIGS, write_checkpoint
from tests.sharding.emulated import run_emulated


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each small checkpoint, by its name."""
    folder = tmp_path_factory.mktemp("sharding")
    return {kind: write_checkpoint(folder / kind, kind) for kind in CONFIGS}


@pytest.fixture(scope="session")
def of_one_device(checkpoints: dict[str, Path]) -> Callable[[str], list]:
    """What one device answers with the checkpoint of that name, compiled as the emulated ones are."""

    @functools.cache
    def ids(kind: str) -> list:
        return run_emulated("tests.sharding.workload:answers", devices=1, model=str(checkpoints[kind]))["ids"]

    return ids
