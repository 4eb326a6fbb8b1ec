"""Engines of one shape share their compiled programs, which are most of what the tests of engines cost.

Everything else of an engine is its own: pool, lane state, host core, the table that counts its programs. So that pools
of different sizes have one shape, the arrays of a small pool are larger than the host core knows.
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from jpaged.runtime.programs import ProgramTable
from jpaged.serving import loading

BUILD_RUNNER = loading._build_runner
_STORES: dict[Hashable, dict[Hashable, Any]] = {}
_POOL_TOKENS = 1024
_SPARE_PAGES = 16


class SharedPrograms(ProgramTable):
    """A table that looks for a program in a store before it has it compiled."""

    def __init__(self, store: dict[Hashable, Any]) -> None:
        super().__init__()
        self._store = store

    def get(self, name: Hashable, lower: Callable[[], Any]) -> Any:
        if name not in self._compiled and name in self._store:
            self._compiled[name] = self._store[name]
        program = self._store[name] = super().get(name, lower)
        return program


def share_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every engine that is loaded in this process share the programs of engines of its shape."""

    def build_shared(config: Any, params: Any, implementation: str, mesh: Any, driver: Any) -> Any:
        cache, scheduler = config.cache, config.scheduler
        roomy = max(cache.num_pages, _POOL_TOKENS // cache.page_size + _SPARE_PAGES)
        config = dataclasses.replace(config, cache=dataclasses.replace(cache, num_pages=roomy))
        runner = BUILD_RUNNER(config, params, implementation, mesh, driver)
        sizes = scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.max_model_len
        pool = roomy, cache.page_size, cache.kv_cache_dtype
        key = config.model, config.dtype, implementation, config.scan_unroll, config.parallel, sizes, pool
        runner.programs = runner.mover._programs = SharedPrograms(_STORES.setdefault(key, {}))
        return runner

    monkeypatch.setattr(loading, "_build_runner", build_shared)


def forget_programs() -> None:
    """Let every stored program go."""
    _STORES.clear()
