"""Many small programs at once.

Lives here: `compile_all`.
Promises: one that does not compile is an error of its own; the others are there.
Must not know: what the programs are.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

Program = Callable[..., Any]


def compile_all(programs: Mapping[str, tuple[Program, tuple[Any, ...]]]) -> dict[str, Program | Exception]:
    """Each function compiled for its arguments, several at a time: XLA's compiler needs no interpreter lock."""

    def compiled(item: tuple[Program, tuple[Any, ...]]) -> Program | Exception:
        function, arguments = item
        try:
            return jax.jit(function).lower(*arguments).compile()
        except Exception as error:
            return error

    with ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1))) as pool:
        return dict(zip(programs, pool.map(compiled, programs.values()), strict=True))
