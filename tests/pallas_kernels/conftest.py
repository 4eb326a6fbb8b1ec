"""What every test of the kernels shares: the ways to run an operation on this machine."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from pallas_kernels import dispatch

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


# Two thirds of what these tests cost is LLVM's work on the interpreter's loops, which no user runs.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture(autouse=True)
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels and the reference are compiled as one program each, without optimisation.

    What users run on a CPU, `xla`, is compiled as users compile it, and so is whatever a test compiles itself.
    """
    load = dispatch.load

    def loaded(operation: str, implementation: str | None, interpret: bool) -> Callable[..., Any]:
        function = load(operation, implementation, interpret)
        return _quick(function) if interpret or implementation == "reference" else function

    monkeypatch.setattr(dispatch, "load", loaded)


def _quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a program of its arrays; everything else that it is given is part of the program."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def program(arrays: list[jax.Array]) -> Any:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            filled_args, filled_kwargs = jax.tree.unflatten(tree, filled)
            return function(*filled_args, **filled_kwargs)

        return jax.jit(program, compiler_options=QUICK)([leaves[place] for place in places])

    return call
