"""The kinds of experiments: the config of each, what runs it, and what a run leaves.

`kind` in a config file says which; without it an experiment serves a workload (ExperimentConfig).
"""

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from experiments.config import Config, ExperimentConfig, MetricsSection
from jpaged.config.declaration import check_options, like, option
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

    num_colocated: int = option(0, "Engines that do the whole work.", low=0)
    num_prefill: int = option(0, "Engines that compute prompts alone.", low=0)
    num_decode: int = option(0, "Engines that go on from there.", low=0)
    link: str = "nvlink3"
    routing: str = option("least_outstanding_tokens", "Who gets a request.", choices=tuple(ROUTING))
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    enable_prefix_caching: bool = False

    def __post_init__(self) -> None:
        check_options(self)
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
    num_tokens: int = option(20_000, "Tokens of text to predict.", low=1)
    window: int = option(1024, "Tokens of each piece of the text.", low=1)
    num_runs: int = option(8, "Greedy runs.", low=1)
    run_tokens: int = option(64, "Tokens of each run.", low=1)


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

    model: str = option("opt-13b", "Whose decode step.", choices=tuple(PRESETS))
    shards: int = option(1, "Devices.", low=1)
    style: str = like(ParallelConfig, "parallel_style", "shard_map")
    layers: int | None = 4


@dataclass(frozen=True, kw_only=True)
class EmulatedShardingConfig(Config):
    """An engine with a tiny model on `shards` emulated devices of this CPU, against the same on one."""

    kind: ClassVar[str] = "emulated_sharding"
    needs_device: ClassVar[bool] = True
    measured: ClassVar[tuple[str, ...]] = ("ms_per_step",)
    results: ClassVar[tuple[str, ...]] = (
        "tokens", "same_tokens", "collectives", "bytes_per_step", "pool_bytes_per_device", "preemptions", "ms_per_step",
    )  # fmt: skip

    shards: int = option(1, "Devices.", low=1)
    style: str = like(ParallelConfig, "parallel_style", "shard_map")


@dataclass(frozen=True, kw_only=True)
class WalkthroughConfig(Config):
    """A scripted run on the real host core, shown step by step: the paper's Fig. 8 or 9, or a map of the pages."""

    kind: ClassVar[str] = "walkthrough"
    results: ClassVar[tuple[str, ...]] = ("num_steps",)

    figure: str = option("fig8", "What is shown.", choices=("fig8", "fig9", "page_map"))


_RUNNERS: dict[type[Config], str] = {
    ExperimentConfig: "experiments.serving",
    FleetConfig: "experiments.fleet",
    KVCacheDtypeConfig: "experiments.kv_cache_dtype",
    CompiledShardingConfig: "experiments.sharding.compiled_scaling",
    EmulatedShardingConfig: "experiments.sharding.emulated_scaling",
    WalkthroughConfig: "experiments.gallery",
}
KINDS = {kind.kind: kind for kind in _RUNNERS}


def run(config: Config) -> Outcome:
    """Run a config of any kind. Raises ValueError, with the remedy, for what cannot be run as it says."""
    outcome = importlib.import_module(_RUNNERS[type(config)]).run(config)
    assert not config.results or tuple(outcome.summary) == config.results, "every run has every number of its kind"
    return outcome
