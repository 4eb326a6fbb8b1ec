"""The compiled programs of an engine: each shape is compiled once, counted and timed.

Lives here: ProgramTable and the persistent compilation cache.
Promises: a shape never compiles twice; a call with other shapes than those compiled for is an error, not a retrace.
Must not know: what the programs compute.
"""

import time
from collections.abc import Callable, Hashable
from typing import Any

import jax

from models.catalog import cache_dir


class _CacheHits:
    """How often JAX has found a program in its cache on disk, as its own monitoring says."""

    def __init__(self) -> None:
        self.hits = 0
        jax.monitoring.register_event_listener(self._take)

    def _take(self, event: str, **_: Any) -> None:
        self.hits += event == "/jax/compilation_cache/cache_hits"


_CACHE = _CacheHits()


class ProgramTable:
    """Ahead-of-time compiled programs by name; `seconds` is what tracing and compiling took in all, `num_cached` how
    many came out of the cache on disk."""

    def __init__(self) -> None:
        self._compiled: dict[Hashable, Any] = {}
        self.seconds = 0.0
        self.num_cached = 0

    def __contains__(self, name: object) -> bool:
        return name in self._compiled

    def __len__(self) -> int:
        return len(self._compiled)

    def get(self, name: Hashable, lower: Callable[[], Any]) -> Any:
        """The program `name`; the first time, what `lower` gives is compiled."""
        program = self._compiled.get(name)
        if program is None:
            start, hits = time.perf_counter(), _CACHE.hits
            program = lower().compile()
            self.seconds += time.perf_counter() - start
            self.num_cached += _CACHE.hits > hits
            self._compiled[name] = program
        return program

    def temp_bytes(self) -> dict[str, int]:
        """Bytes of temporary memory that each compiled program needs."""
        return {str(name): program.memory_analysis().temp_size_in_bytes for name, program in self._compiled.items()}

    def aliased_bytes(self) -> dict[str, int]:
        """Bytes of donated arguments that each compiled program updates in place."""
        return {str(name): program.memory_analysis().alias_size_in_bytes for name, program in self._compiled.items()}

    def texts(self) -> dict[str, str]:
        """The optimised HLO of each compiled program."""
        return {str(name): program.as_text() for name, program in self._compiled.items()}

    def operations(self) -> dict[str, float]:
        """Arithmetic operations of each compiled program, by XLA's own count (a loop's body counts once)."""
        return {str(name): program.cost_analysis()["flops"] for name, program in self._compiled.items()}


def use_persistent_cache() -> None:
    """Keep compiled programs on disk, unless the user has set JAX's own cache folder or switched the cache off."""
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
