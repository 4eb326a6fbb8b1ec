"""The kinds of experiments: the config of each, what runs it, and what a run leaves.

`kind` in a config file says which; without it an experiment serves a workload (ExperimentConfig).
"""

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from experiments.config import Config, ExperimentConfig, MetricsSection
from jpaged.config.declaration import check_options, like, require_choice, require_int
from jpaged.config.options import CacheConfig, ParallelConfig
from jpaged.fleet.router import ROUTING
from jpaged.sim.links import link_named
from jpaged.workloads import WorkloadSpec
from models.families import PRESETS

Summary = dict[str, float | int | str | bool | None]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the numbers it is compared by, its files, and facts of where they are from."""

    summary: Summary
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class FleetSection:
    """Engines of one GPU each: `num_colocated` alike, or `num_prefill` and `num_decode` that share the work."""

    num_colocated: int = 0
    num_prefill: int = 0
    num_decode: int = 0
    link: str = "nvlink3"
    routing: str = "least_outstanding_tokens"
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    enable_prefix_caching: bool = False

    def __post_init__(self) -> None:
        for name in ("num_colocated", "num_prefill", "num_decode"):
            require_int(f"fleet.{name}", getattr(self, name), 0, None)
        require_choice("fleet.routing", self.routing, tuple(ROUTING))
        link_named(self.link)
        apart = bool(self.num_prefill and self.num_decode)
        if bool(self.num_colocated) == apart or bool(self.num_prefill) != bool(self.num_decode):
            raise ValueError(
                f"fleet.num_colocated={self.num_colocated}, num_prefill={self.num_prefill}, num_decode="
                f"{self.num_decode}: give num_colocated, or num_prefill and num_decode"
            )

    @property
    def num_gpus(self) -> int:
        """Devices in all."""
        return self.num_colocated + self.num_prefill + self.num_decode


@dataclass(frozen=True, kw_only=True)
class FleetConfig(Config):
    """Several simulated engines under the profile `ideal`.

    `turn_rate`: the workload's conversations come at this many requests per second on the whole, each turn `think_s`
    after the answer before it, on average. `search`: instead of the workload's rate, which is where the search begins
    and counts per GPU, find the largest at which 90 % of the requests keep the limits of `metrics`.
    """

    kind: ClassVar[str] = "fleet"
    results: ClassVar[tuple[str, ...]] = (
        "goodput_per_gpu", "good_share", "num_requests", "completed", "failed", "mean_ttft_ms", "p99_ttft_ms",
        "p99_tpot_ms", "prefix_hit_rate", "prompt_imbalance", "bytes_moved",
    )  # fmt: skip

    model: str = "opt-13b"
    device: str = "A100-80GB"
    fleet: FleetSection = field(default_factory=lambda: FleetSection(num_colocated=2))
    workload: WorkloadSpec = field(default_factory=lambda: WorkloadSpec(rate=1.0, duration_s=60.0))
    metrics: MetricsSection = field(default_factory=MetricsSection)
    turn_rate: float | None = None
    think_s: float = 20.0
    search: bool = False

    def __post_init__(self) -> None:
        if self.search and (self.workload.rate is None or self.turn_rate is not None):
            raise ValueError("search=True: the search begins at workload.rate; give it, and no turn_rate")


@dataclass(frozen=True, kw_only=True)
class KVCacheDtypeConfig(Config):
    """What a pool of `kv_cache_dtype` costs in quality against a float32 pool: perplexity, and greedy runs."""

    kind: ClassVar[str] = "kv_cache_dtype"
    needs_device: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = (
        "num_tokens", "perplexity", "perplexity_change", "same_argmax", "num_run_tokens", "same_tokens", "same_runs",
        "num_runs", "same_choices",
    )  # fmt: skip

    model: str = "smollm2-135m"
    kv_cache_dtype: str = like(CacheConfig, "kv_cache_dtype", "int8")
    num_tokens: int = 20_000
    window: int = 1024
    num_runs: int = 8
    run_tokens: int = 64

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("num_tokens", "window", "num_runs", "run_tokens"):
            require_int(name, getattr(self, name), 1, None)


@dataclass(frozen=True, kw_only=True)
class CompiledShardingConfig(Config):
    """The decode step of a large model, compiled for `shards` H100 that need not be there.

    `layers` (None: all) are compiled; weights are counted for all layers, and collectives are the same in each.
    """

    kind: ClassVar[str] = "compiled_sharding"
    needs_device: ClassVar[bool] = True
    measured: ClassVar[tuple[str, ...]] = ("compile_seconds",)
    results: ClassVar[tuple[str, ...]] = (
        "all_reduces_per_layer", "other_collectives", "bytes_per_layer", "bytes_of_logits", "weights", "temp", "pool",
        "aliased", "num_tokens", "predicted_step_ms", "predicted_speedup", "compile_seconds",
    )  # fmt: skip

    model: str = "opt-13b"
    shards: int = 1
    style: str = like(ParallelConfig, "parallel_style", "shard_map")
    layers: int | None = 4

    def __post_init__(self) -> None:
        require_choice("model", self.model, tuple(PRESETS))
        check_options(self)
        require_int("shards", self.shards, 1, None)


@dataclass(frozen=True, kw_only=True)
class EmulatedShardingConfig(Config):
    """An engine with a tiny model on `shards` emulated devices of this CPU, against the same on one."""

    kind: ClassVar[str] = "emulated_sharding"
    needs_device: ClassVar[bool] = True
    measured: ClassVar[tuple[str, ...]] = ("ms_per_step",)
    results: ClassVar[tuple[str, ...]] = (
        "tokens", "same_tokens", "collectives", "bytes_per_step", "pool_bytes_per_device", "preemptions", "ms_per_step",
    )  # fmt: skip

    shards: int = 1
    style: str = like(ParallelConfig, "parallel_style", "shard_map")

    def __post_init__(self) -> None:
        check_options(self)
        require_int("shards", self.shards, 1, None)


@dataclass(frozen=True, kw_only=True)
class WalkthroughConfig(Config):
    """A scripted run on the real host core, shown step by step: the paper's Fig. 8 or 9, or a map of the pages."""

    kind: ClassVar[str] = "walkthrough"
    results: ClassVar[tuple[str, ...]] = ("num_steps",)

    figure: str = "fig8"

    def __post_init__(self) -> None:
        require_choice("figure", self.figure, ("fig8", "fig9", "page_map"))


KINDS: dict[str, type[Config]] = {
    kind.kind: kind
    for kind in (
        ExperimentConfig,
        FleetConfig,
        KVCacheDtypeConfig,
        CompiledShardingConfig,
        EmulatedShardingConfig,
        WalkthroughConfig,
    )
}
_RUNNERS = {
    "serving": "experiments.serving",
    "fleet": "experiments.fleet",
    "kv_cache_dtype": "experiments.kv_cache_dtype",
    "compiled_sharding": "experiments.sharding.compiled_scaling",
    "emulated_sharding": "experiments.sharding.emulated_scaling",
    "walkthrough": "experiments.gallery",
}


def run(config: Config) -> Outcome:
    """Run a config of any kind. Raises ValueError, with the remedy, for what cannot be run as it says."""
    outcome = importlib.import_module(_RUNNERS[config.kind]).run(config)
    assert not config.results or tuple(outcome.summary) == config.results, "every run has every number of its kind"
    return outcome
