"""The compiled programs of an engine: each is compiled once, counted and timed, and kept on disk.

A call with other shapes than those compiled for is an error, not a retrace.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax

_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_events: Counter[str] = Counter()  # of JAX's own monitoring
jax.monitoring.register_event_listener(lambda event, **_: _events.update((event,)))


class ProgramTable:
    """Ahead-of-time compiled programs by name; `seconds` is what tracing and compiling took in total, `num_cached` how
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
            start, hits = time.perf_counter(), _events[_CACHE_HIT]
            program = lower().compile()
            self.seconds += time.perf_counter() - start
            self.num_cached += _events[_CACHE_HIT] > hits
            self._compiled[name] = program
        return program

    def read(self, fact: Callable[[Any], Any]) -> dict[str, Any]:
        """`fact` of each compiled program (a jax.stages.Compiled), by the program's name."""
        return {str(name): fact(program) for name, program in self._compiled.items()}


def use_persistent_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`, unless the user has set JAX's own cache folder or switched the cache off."""
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
