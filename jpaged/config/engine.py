"""The frozen config that an engine runs with: `resolve` is the one way to it from what a user asked for.

A config that exists is consistent, and its digest names it.
"""

import os
from dataclasses import asdict, dataclass, field

from jpaged.config.declaration import check_options, digest_of, part_of, require_text
from jpaged.config.options import (
    CacheConfig,
    EngineOptions,
    LoadOptions,
    ParallelConfig,
    RuntimeConfig,
    SchedulerConfig,
    check_pool,
)
from models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class EngineConfig(LoadOptions):
    """What an engine runs with; `digest` names all of it that decides what the engine answers."""

    model_name: str
    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig, compare=False)

    def __post_init__(self) -> None:
        require_text("model_name", self.model_name)
        check_options(self)
        limit = self.model.max_length
        if self.scheduler.max_model_len > limit:
            raise ValueError(
                f"max_model_len={self.scheduler.max_model_len}: {self.model_name} has positions for {limit} tokens; "
                f"give at most {limit}"
            )
        check_pool(self.cache, self.scheduler)

    def digest(self) -> str:
        """A hexadecimal name of this config: equal configs, and they alone, have equal digests."""
        facts = asdict(self)
        del facts["runtime"]
        return digest_of(facts, 16)


def resolve(options: EngineOptions, model: ModelConfig, num_processes: int | None = None) -> EngineConfig:
    """The config of what a user asked for, with a model of this shape, but for a pool that memory is to size.

    Raises ValueError, naming the field, the value and the remedy.
    """
    length = options.max_model_len
    if length is None:
        room = model.max_length if options.num_pages is None else options.num_pages * options.page_size
        # Two tokens at least, so that a pool that holds less is refused by its own name.
        length = max(2, min(model.max_length, room))
    return part_of(
        EngineConfig,
        options,
        model_name=os.fspath(options.model),
        model=model,
        cache=part_of(CacheConfig, options),
        scheduler=part_of(SchedulerConfig, options, max_model_len=length),
        parallel=part_of(ParallelConfig, options, num_processes=num_processes or 1),
        runtime=part_of(RuntimeConfig, options),
    )
