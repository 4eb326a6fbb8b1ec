"""What an experiment is, in one tree of frozen configs.

A tree that exists is consistent. Options of an engine are as the engine declares them; every error names the field, the
value and the remedy.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from jpaged.config.declaration import check_options, digest_of, left_open, like, option, require_choice, require_int
from jpaged.config.options import CacheConfig, LoadOptions, ParallelConfig, SchedulerConfig
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.core.scheduling.presets import POLICIES
from jpaged.workloads import WorkloadSpec


def _require_factor(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
        raise ValueError(f"{name}={value!r}: must be a factor above 0")


class Checked:
    """Options that are held to their declarations."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
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
        facts = _without_none(asdict(self))
        del facts["question"]
        if self.kind != "serving":
            facts["kind"] = self.kind
        return digest_of(facts, 12)


@dataclass(frozen=True, kw_only=True)
class ModelSection(Checked):
    """The model: of `sim` a preset's name; of `jax` what `LLM(model=...)` takes."""

    name: str = option("opt-13b", "Name of the model.")
    dtype: str = like(LoadOptions, "dtype", "float16")
    load_format: str = like(LoadOptions, "load_format", "auto")


@dataclass(frozen=True, kw_only=True)
class HardwareSection(Checked):
    """What the simulation runs on (of `jax`: the machine it is on, whatever this says)."""

    device: str = option("A100-40GB", "Name of the device.")
    tensor_parallel_size: int = like(ParallelConfig, "tensor_parallel_size", 1)


@dataclass(frozen=True, kw_only=True)
class ExecutorSection(Checked):
    """Who runs the steps: `sim` with the times of `cost_profile`, or `jax`."""

    kind: str = option("sim", "Who runs the steps.", choices=("sim", "jax"))
    cost_profile: str = option("ideal", "The times of the simulated steps.")
    bandwidth: float = option(1.0, "Scales the profile's bandwidth.", check=_require_factor)
    flops: float = option(1.0, "Scales the profile's rate of operations.", check=_require_factor)
    host: float = option(1.0, "Scales the host's time.", check=_require_factor)
    strides: bool = option(True, "Let the simulation run several decode steps at once; changes no result.")


@dataclass(frozen=True, kw_only=True)
class _PolicyName:
    name: str = "paged"


@dataclass(frozen=True, kw_only=True)
class PolicySection(left_open(SchedulerConfig), _PolicyName):
    """The memory policy by name, and options of SchedulerConfig that differ from it; None: as the policy has it."""

    def __post_init__(self) -> None:
        require_choice("policy.name", self.name, tuple(POLICIES))
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class CacheSection(Checked, left_open(CacheConfig, page_size=16, kv_cache_dtype="auto")):
    """The pool: options of CacheConfig that differ from the policy's; None: as the policy has it.

    `num_pages` None: what the paper's arithmetic leaves on the device; of `jax`: what memory allows. `num_host_pages`
    None: the paper's 20 GiB per device under a policy that swaps, none of `jax`.
    """


@dataclass(frozen=True, kw_only=True)
class DecodingSection:
    """How tokens are chosen: `greedy`, `sample` (`n` sequences per request) or `beam` (of width `n`).

    Every sequence has exactly its request's output tokens: no stop token ends it.
    """

    method: str = option("greedy", "How tokens are chosen.", choices=("greedy", "sample", "beam"))
    n: int = option(1, "Sequences per request, or the width of the beam.", low=1, high=1024)
    temperature: float = like(SamplingParams, "temperature", 1.0)
    top_p: float = like(SamplingParams, "top_p", 1.0)
    pin_prefix: bool = option(False, "Compute the workload's shared prefix before the clock starts, and hold it.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.method == "greedy" and self.n != 1:
            raise ValueError(f"decoding.n={self.n}: greedy decoding gives one sequence; choose sample or beam, or n=1")


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


def _without_none(facts: dict[str, Any]) -> dict[str, Any]:
    """The nested facts that are given: a field that is added later, and left open, changes no digest."""
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in facts.items()
        if value is not None
    }
