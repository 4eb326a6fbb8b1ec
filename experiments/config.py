"""What an experiment is, in one tree of frozen configs.

A tree that exists is consistent; every error names the field, the value and the remedy.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from jpaged.config.engine import (
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    PREEMPTION_MODES,
    require_bool,
    require_choice,
    require_fraction,
    require_int,
    require_text,
)
from jpaged.core.scheduling.presets import PRESETS
from jpaged.workloads import WorkloadSpec

EXECUTORS = ("sim", "jax")
METHODS = ("greedy", "sample", "beam")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A point of any kind of experiment: its question, and a digest of everything that decides its outcome.

    `results` are the numbers of a run (none: those of `summarize`), `measured` those that differ from one to the next.
    """

    kind: ClassVar[str]
    results: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[tuple[str, ...]] = ()
    needs_device: ClassVar[bool] = False

    question: str = ""

    @property
    def on_device(self) -> bool:
        """Whether a run takes a process, and where there is one a GPU, for itself."""
        return self.needs_device

    def digest(self) -> str:
        """A hexadecimal name of the point: equal configs have equal digests, whatever question they are asked for."""
        facts = asdict(self)
        del facts["question"]
        if self.kind != "serving":
            facts["kind"] = self.kind
        # 1 and 1.0 are equal, so they are written alike.
        plain = json.loads(json.dumps(facts), parse_float=_int_if_whole)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model: of `sim` a preset's name; of `jax` what `LLM(model=...)` takes."""

    name: str = "opt-13b"
    dtype: str = "float16"
    load_format: str = "auto"

    def __post_init__(self) -> None:
        require_text("model.name", self.name)
        require_choice("model.dtype", self.dtype, DTYPES)
        require_choice("model.load_format", self.load_format, LOAD_FORMATS)


@dataclass(frozen=True, kw_only=True)
class HardwareSection:
    """What the simulation runs on (of `jax`: the machine it is on, whatever this says)."""

    device: str = "A100-40GB"
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        require_text("hardware.device", self.device)
        require_int("hardware.tensor_parallel_size", self.tensor_parallel_size, 1, None)


@dataclass(frozen=True, kw_only=True)
class ExecutorSection:
    """Who runs the steps: `sim` with the times of `cost_profile`, or `jax`.

    `bandwidth`, `flops` and `host` scale the rates and the host's time of the profile (1.0: as they are).
    `strides`: let the simulation run several decode steps at once; it changes no result.
    """

    kind: str = "sim"
    cost_profile: str = "ideal"
    bandwidth: float = 1.0
    flops: float = 1.0
    host: float = 1.0
    strides: bool = True

    def __post_init__(self) -> None:
        require_choice("executor.kind", self.kind, EXECUTORS)
        require_text("executor.cost_profile", self.cost_profile)
        require_bool("executor.strides", self.strides)
        for name in ("bandwidth", "flops", "host"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
                raise ValueError(f"executor.{name}={value!r}: must be a factor above 0")


@dataclass(frozen=True, kw_only=True)
class PolicySection:
    """The memory policy by name (see core/baselines/presets.py), and fields of SchedulerConfig that differ from it.

    None leaves a field as the policy has it.
    """

    name: str = "paged"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    chunked_prefill: bool | None = None
    preemption_mode: str | None = None
    admission_policy: str | None = None
    victim_policy: str | None = None
    eviction_policy: str | None = None
    max_static_batch_len: int | None = None

    def __post_init__(self) -> None:
        require_choice("policy.name", self.name, tuple(PRESETS))
        if self.preemption_mode is not None:
            require_choice("policy.preemption_mode", self.preemption_mode, PREEMPTION_MODES)

    def overrides(self) -> dict[str, Any]:
        """The fields of SchedulerConfig that are given."""
        return {name: value for name, value in asdict(self).items() if name != "name" and value is not None}


@dataclass(frozen=True, kw_only=True)
class CacheSection:
    """The pool. `num_pages` None: what the paper's arithmetic leaves on the device; of `jax`: what memory allows.

    `num_host_pages` None: the paper's 20 GiB a device under a policy that swaps, none of `jax`.
    `enable_prefix_caching` and `watermark` None: as the policy has them.
    """

    page_size: int = 16
    num_pages: int | None = None
    num_host_pages: int | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool | None = None
    watermark: float | None = None

    def __post_init__(self) -> None:
        require_int("cache.page_size", self.page_size, 1, 256)
        for name, low in (("num_pages", 1), ("num_host_pages", 0)):
            if getattr(self, name) is not None:
                require_int(f"cache.{name}", getattr(self, name), low, None)
        require_choice("cache.kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if self.watermark is not None:
            require_fraction("cache.watermark", self.watermark)


@dataclass(frozen=True, kw_only=True)
class DecodingSection:
    """How tokens are chosen: `greedy`, `sample` (`n` sequences per request) or `beam` (of width `n`).

    Every sequence has exactly its request's output tokens: no stop token ends it.
    `pin_prefix`: the workload's shared prefix is computed before the clock starts and held throughout.
    """

    method: str = "greedy"
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    pin_prefix: bool = False

    def __post_init__(self) -> None:
        require_choice("decoding.method", self.method, METHODS)
        require_int("decoding.n", self.n, 1, 1024)
        if self.method == "greedy" and self.n != 1:
            raise ValueError(f"decoding.n={self.n}: greedy decoding gives one sequence; choose sample or beam, or n=1")
        require_bool("decoding.pin_prefix", self.pin_prefix)
        for name in ("temperature", "top_p"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"decoding.{name}={getattr(self, name)!r}: must be a finite number")


@dataclass(frozen=True, kw_only=True)
class MetricsSection:
    """Means over steps are taken from `start_s` on to `end_s` (None: to the run's end).

    A request is good if its time to first token and its mean time per output token keep `slo_ttft_ms` and
    `slo_tpot_ms`, as far as they are given.
    """

    start_s: float = 0.0
    end_s: float | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None

    def __post_init__(self) -> None:
        end = float("inf") if self.end_s is None else self.end_s
        if not 0 <= self.start_s < end:
            raise ValueError(f"metrics.start_s={self.start_s!r}: must be at least 0 and before end_s={self.end_s!r}")
        for name in ("slo_ttft_ms", "slo_tpot_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"metrics.{name}={value!r}: must be above 0")


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config):
    """One point: which question it belongs to, and everything that decides its outcome.

    `stop_at_s`: the run ends then, finished or not (None: when every request has finished). `seed` is of the engine and
    the simulated sampler; the workload has its own.
    """

    kind: ClassVar[str] = "serving"

    model: ModelSection = field(default_factory=ModelSection)
    hardware: HardwareSection = field(default_factory=HardwareSection)
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    policy: PolicySection = field(default_factory=PolicySection)
    cache: CacheSection = field(default_factory=CacheSection)
    workload: WorkloadSpec = field(default_factory=lambda: WorkloadSpec(rate=1.0, num_requests=100))
    decoding: DecodingSection = field(default_factory=DecodingSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    stop_at_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("seed", self.seed, 0, 2**63 - 1)
        if self.stop_at_s is not None and not 0 < self.stop_at_s < math.inf:
            raise ValueError(
                f"stop_at_s={self.stop_at_s!r}: must be above 0 and finite; leave it out to run to the end"
            )
        if self.decoding.pin_prefix and not self.workload.shared_prefix_tokens:
            raise ValueError("decoding.pin_prefix=True: the workload has no prefix; give workload.shared_prefix_tokens")
        if self.executor.kind == "jax" and self.hardware.tensor_parallel_size != 1:
            raise ValueError(
                f"hardware.tensor_parallel_size={self.hardware.tensor_parallel_size}: executor jax runs on one device "
                "so far; give 1, or executor sim"
            )

    @property
    def on_device(self) -> bool:
        """Whether the executor is a real one."""
        return self.executor.kind == "jax"


def _int_if_whole(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
