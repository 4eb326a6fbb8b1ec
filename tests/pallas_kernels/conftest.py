"""What every test of the kernels shares: the ways to run an operation on this machine."""

import pytest

RUNS = {
    "reference": {"implementation": "reference"},
    "xla": {"implementation": "xla"},
    "triton": {"implementation": "triton", "interpret": True},
}


@pytest.fixture(params=list(RUNS))
def run(request: pytest.FixtureRequest) -> dict:
    """The arguments that pick one implementation."""
    return RUNS[request.param]


@pytest.fixture(params=["xla", "triton"])
def fast_run(request: pytest.FixtureRequest) -> dict:
    """The arguments that pick one implementation other than the reference."""
    return RUNS[request.param]
