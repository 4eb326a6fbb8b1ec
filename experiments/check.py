"""What can be told of a point before any point runs; no workload is built and no model loaded.

An error names the field, its value and the remedy.
"""

import os
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from experiments.config import Config, ExperimentConfig
from experiments.files import nearest
from experiments.kinds import FleetConfig
from experiments.point import REQUEST_COLUMNS, Point, decoding_params
from experiments.resolve import cost_model, device_options, engine_configs, fleet_engine_configs, preset
from experiments.summary import summarize
from experiments.traces import TRACES
from jpaged.config.engine import resolve
from jpaged.config.options import SchedulerConfig, check_pool
from jpaged.core.scheduling.policy import ADMISSION, EVICTION, VICTIM, load_policy
from jpaged.sim.run_log import STEP_COLUMNS
from jpaged.workloads import LENGTHS, Workload
from jpaged.workloads.spec import MADE
from models.families import PRESETS


def check_point(config: Config) -> None:
    """Raise the ValueError that its run would, as far as it can be told without workload and weights."""
    if isinstance(config, FleetConfig):
        check_pool(*fleet_engine_configs(config))
        _check_lengths(config.workload.lengths)
    if not isinstance(config, ExperimentConfig):
        return
    if config.executor.kind == "sim":
        model = preset(config.model.name)
        cache, scheduler = engine_configs(config, model)
        cost_model(config, model)
        check_pool(cache, scheduler)
    else:
        cache = scheduler = device_options(config)
        if config.model.name in PRESETS:
            resolve(scheduler, PRESETS[config.model.name])
    _check_policies(scheduler)
    _check_decoding(config)
    _check_lengths(config.workload.lengths)
    if config.decoding.pin_prefix and not cache.enable_prefix_caching:
        raise ValueError(
            f"decoding.pin_prefix=True: policy {config.policy.name} has no prefix cache here to hold it in; give "
            "cache.enable_prefix_caching=true with paged or vllm-2023, or leave pin_prefix out"
        )


def check_shown(names: Sequence[str], kind: type[Config] = ExperimentConfig) -> None:
    """Raise ValueError for a name that is of no number in a summary of this kind."""
    known = list(kind.results or summarize(_nothing()))
    for name in names:
        if name not in known:
            raise ValueError(f"show: {name} is not in a summary; {nearest(name, known)}")


def _check_policies(scheduler: SchedulerConfig) -> None:
    for name, known in (("admission_policy", ADMISSION), ("victim_policy", VICTIM), ("eviction_policy", EVICTION)):
        load_policy(f"policy.{name}", getattr(scheduler, name), dict(known))


def _check_decoding(config: ExperimentConfig) -> None:
    try:
        decoding_params(config, 1)
    except ValueError as error:
        raise ValueError(f"decoding.{str(error).replace('beam_width', 'n')}") from None


def _check_lengths(name: str) -> None:
    if name in MADE or name in LENGTHS or name in TRACES:
        return
    is_path = "/" in name or name.endswith((".csv", ".jsonl", ".gz"))
    if not is_path:
        known = [*MADE, *LENGTHS, *TRACES]
        raise ValueError(f"workload.lengths={name!r}: no such lengths; {nearest(name, known)}, or give a file's path")
    if not os.path.isfile(name):
        raise ValueError(f"workload.lengths={name!r}: there is no such file; give the path of a .csv or .jsonl file")


def _nothing() -> Point:
    """A point of no request and no step, whose summary has the names of any."""
    none = np.zeros(0, np.int64)
    return Point(
        config=ExperimentConfig(),
        workload=Workload(arrival_ns=(), prompt_tokens=(), output_tokens=()),
        requests=dict.fromkeys(REQUEST_COLUMNS, none),
        steps=dict.fromkeys(STEP_COLUMNS, none),
        itl_ns=none,
        stats=defaultdict(int),
        plan_digest="",
        num_pages=1,
        end_ns=0,
    )
