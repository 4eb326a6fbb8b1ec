"""Who is compared, on what: the paper's systems and settings as configs.

Systems differ in their memory policy alone, but FasterTransformer, which is another engine.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from experiments.config import (
    CacheSection,
    DecodingSection,
    ExecutorSection,
    ExperimentConfig,
    HardwareSection,
    MetricsSection,
    ModelSection,
    PolicySection,
)
from jpaged.workloads import WorkloadSpec


class System(NamedTuple):
    """A system of the paper: the policy that it is here, and how the paper plots it."""

    policy: str
    colour: str
    marker: str


FT, MAX, POW2, ORACLE, VLLM = "FasterTransformer", "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM"
SYSTEMS = {
    FT: System("static", "#7f7f7f", "o"),
    MAX: System("orca-max", "#d62728", "x"),
    POW2: System("orca-pow2", "#ff7f0e", "^"),
    ORACLE: System("orca-oracle", "#2ca02c", "s"),
    VLLM: System("vllm-2023", "#1f77b4", "o"),
}
ORCAS = (MAX, POW2, ORACLE)
# What the paper ran each model on.
MODELS = {
    "opt-13b": HardwareSection(device="A100-40GB", tensor_parallel_size=1),
    "llama-13b": HardwareSection(device="A100-40GB", tensor_parallel_size=1),
    "opt-66b": HardwareSection(device="A100-40GB", tensor_parallel_size=4),
    "opt-175b": HardwareSection(device="A100-80GB", tensor_parallel_size=8),
}
SHAREGPT, ALPACA, WMT16, CHATBOT = "sharegpt_pairs", "alpaca_fig11", "wmt16", "chatbot"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all systems of a panel have in common. Durations are of the arrivals, in seconds.

    `ft_batch`: the most requests of FasterTransformer's batches. `ft_duration_s`: where its trace is another.
    """

    model: str = "opt-13b"
    lengths: str = SHAREGPT
    duration_s: float = 600.0
    profile: str = "paper-2023"
    ft_profile: str = "paper-2023-ft"
    ft_batch: int | None = None
    ft_duration_s: float | None = None
    method: str = "sample"
    n: int = 1
    prefix: int = 0
    page_size: int = 16
    seed: int = 0
    executor: dict[str, Any] = field(default_factory=dict[str, Any])


def config_for(
    setting: Setting,
    system: str,
    rate: float,
    *,
    window: tuple[float, float | None] = (0.0, None),
    stop_at_s: float | None = None,
    **policy: Any,
) -> ExperimentConfig:
    """The config of one system of a setting at one rate; `policy` are fields of PolicySection that differ."""
    static, paged = system == FT, system == VLLM
    if static:
        policy = {"max_num_seqs": setting.ft_batch, **policy}
    duration = setting.ft_duration_s if static and setting.ft_duration_s else setting.duration_s
    pinned = paged and setting.prefix > 0
    return ExperimentConfig(
        question="paper",
        model=ModelSection(name=setting.model),
        hardware=MODELS[setting.model],
        executor=ExecutorSection(cost_profile=setting.ft_profile if static else setting.profile, **setting.executor),
        policy=PolicySection(name=SYSTEMS[system].policy, **policy),
        cache=CacheSection(page_size=setting.page_size, enable_prefix_caching=True if pinned else None),
        workload=WorkloadSpec(
            lengths=setting.lengths,
            arrivals="paper",
            rate=rate,
            duration_s=duration,
            seed=setting.seed,
            shared_prefix_tokens=setting.prefix,
        ),
        decoding=DecodingSection(method=setting.method, n=setting.n, pin_prefix=pinned),
        metrics=MetricsSection(start_s=window[0], end_s=window[1]),
        stop_at_s=stop_at_s,
    )
