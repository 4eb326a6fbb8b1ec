"""Figs. 2, 13 and 15, and Table 1: what is in memory, and how many requests fit.

The paper's own definitions and windows, said in the conditions of each result.
"""

from dataclasses import replace

from experiments.config import ExperimentConfig
from experiments.kinds import Summary
from experiments.paper.plans import Plan
from experiments.paper.published import published
from experiments.paper.rows import Result, Row
from experiments.paper.summaries import number
from experiments.paper.systems import ALPACA, MAX, MODELS, ORACLE, ORCAS, POW2, VLLM, Setting, config_for
from jpaged.sim.capacity import pages_that_fit
from jpaged.sim.hardware import hardware_named
from models.families import PRESETS

GIB, GB = 1 << 30, 1e9
SHARES = ("token", "reservation", "internal", "external + others")
_CAPACITY = "the memory that the driver reports was set so that Table 1's slots come out"


def table1(full: bool) -> Plan[Result]:
    """Table 1: memory of the models, and the slots of their pools. No run is needed."""
    del full
    yield []
    rows: list[Row] = []
    data: dict[str, dict[str, float]] = {}
    for name, paper in zip(("opt-13b", "opt-66b", "opt-175b"), published()["table1"], strict=True):
        model, on = PRESETS[name], MODELS[name]
        size = on.tensor_parallel_size
        pages = pages_that_fit(model, hardware_named(on.device), tensor_parallel_size=size)
        # The paper prints the same numbers as GB where they are 2^30 bytes and where they are 10^9.
        ours = {
            "param_GB": 2 * model.num_params / GB,
            "kv_GB": pages * 16 * model.kv_bytes_per_token(2) / GIB,
            "slots_K": pages * 16 / 1000,
        }
        words = {"param_GB": "parameters, 10^9 bytes", "kv_GB": "KV cache, GiB", "slots_K": "slots, thousands"}
        fitted = {"param_GB": "", "kv_GB": _CAPACITY, "slots_K": _CAPACITY}
        reasons = {"param_GB": "346 GB of 175B parameters of 2 bytes is unexplained (they are 350 GB)"}
        for key, value in ours.items():
            rows.append(
                Row(
                    figure="Table 1",
                    quantity=f"{name}: {words[key]}",
                    paper=paper[key],
                    ours=value,
                    tolerance=0.02,
                    fitted=fitted[key],
                    reason=reasons.get(key, "") if name == "opt-175b" else "",
                )
            )
        data[name] = {**ours, "pages": pages}
    return Result(
        figure="table1",
        title="Table 1. Model sizes and what they leave for the KV cache",
        conditions=("0.95 of the memory less weights, activations of 2,560 tokens and 1 GiB; pages of 16 tokens",),
        rows=tuple(rows),
        data=data,
    )


def fig2(full: bool, *, duration_s: float = 900.0, start_s: float = 300.0) -> Plan[Result]:
    """Fig. 2: for what the slots of the pool are used, under four systems that are all overloaded."""
    del full
    systems = (MAX, POW2, ORACLE, VLLM)
    setting = Setting(duration_s=duration_s)
    configs = [config_for(setting, name, 4.0, window=(start_s, duration_s), stop_at_s=duration_s) for name in systems]
    summaries = yield configs
    rows: list[Row] = []
    data: dict[str, list[float]] = {}
    for name, config, summary in zip(systems, configs, summaries, strict=True):
        data[name] = _fig2_shares(name, summary)
        for share, paper, ours in zip(SHARES, published()["fig2"]["vector"][name], data[name], strict=True):
            rows.append(
                Row(
                    figure="Fig. 2",
                    quantity=f"{name}: {share}",
                    paper=paper,
                    ours=ours,
                    tolerance=1.5,
                    kind="difference",
                    unit="% of the slots",
                    reason="follows from lengths and memory policy alone, whatever a step takes",
                    digest=config.digest(),
                )
            )
    return Result(
        figure="2",
        title="Fig. 2. What the KV memory holds, OPT-13B, ShareGPT",
        conditions=(
            f"4 req/s (more than any system serves), {duration_s:g} s, mean over the steps from {start_s:g} s on. "
            "As in the paper, vLLM's free slots are split evenly between reservation and internal, and its last part "
            "is the unfilled ends of pages",
        ),
        rows=tuple(rows),
        data=data,
        digests=tuple(config.digest() for config in configs),
    )


def _fig2_shares(system: str, summary: Summary) -> list[float]:
    token, reserved, internal, rounding, free = (
        100 * number(summary, f"kv_{part}_share") for part in ("token", "reserved", "internal", "rounding", "free")
    )
    if system == VLLM:
        return [token, free / 2, free / 2, internal]
    return [token, reserved, internal, rounding + free]


def fig13(full: bool) -> Plan[Result]:
    """Fig. 13: how many requests run at once."""
    # Alpaca's pool is full, or not, long before 600 s.
    alpaca_s = 3600 if full else 1200
    sets = (
        ("ShareGPT 2 req/s", 2.0, Setting(duration_s=3600)),
        ("Alpaca 30 req/s", 30.0, Setting(duration_s=alpaca_s, lengths=ALPACA, profile="paper-2023-alpaca")),
    )
    systems = (*ORCAS, VLLM)
    cases = [(title, name) for title, _, _ in sets for name in systems]
    configs: list[ExperimentConfig] = [
        config_for(setting, name, rate, window=(600, setting.duration_s), stop_at_s=setting.duration_s)
        for _, rate, setting in sets
        for name in systems
    ]
    summaries = yield configs
    ours = {case: number(s, "mean_running_requests") for case, s in zip(cases, summaries, strict=True)}
    rows = _fig13_rows(dict(zip(cases, configs, strict=True)), ours)
    return Result(
        figure="13",
        title="Fig. 13. Requests that run at once, OPT-13B",
        conditions=(
            "3,600 s, mean over the steps from 600 s to 3,600 s; ShareGPT paper-2023, Alpaca paper-2023-alpaca",
        ),
        rows=tuple(rows),
        data={title: {name: ours[title, name] for name in systems} for title, _, _ in sets},
        digests=tuple(config.digest() for config in configs),
    )


def _fig13_rows(configs: dict[tuple[str, str], ExperimentConfig], ours: dict[tuple[str, str], float]) -> list[Row]:
    reasons = {
        "ShareGPT 2 req/s": "2 req/s is 4 % above the knee, so the mean depends on how soon the pool fills",
        "Alpaca 30 req/s": "the paper's 132 is below what memory holds, so it depends on its window and on the first "
        "minutes of an overload; ours is bound by memory from 600 s on",
    }
    orcas = {
        "ShareGPT 2 req/s": "set by memory alone",
        "Alpaca 30 req/s": "set by memory alone; where the paper's lengths fall in the bins of Fig. 11 is unknown, "
        "and rounding up to a power of two depends on it",
    }
    return [
        Row(
            figure="Fig. 13",
            quantity=f"{title}: running requests, {name}",
            paper=published()["fig13"][title][name],
            ours=ours[title, name],
            tolerance=0.15 if name == VLLM else 0.03,
            reason=reasons[title] if name == VLLM else orcas[title],
            digest=config.digest(),
        )
        for (title, name), config in configs.items()
    ]


def fig15(full: bool) -> Plan[Result]:
    """Fig. 15: memory that sharing saves."""
    del full
    base = Setting(lengths=ALPACA, duration_s=900)
    cases = [(method, n) for method in ("sample", "beam") for n in (2, 4, 6)]
    configs = [
        config_for(replace(base, method=method, n=n), VLLM, 20.0, window=(300, 900), stop_at_s=900)
        for method, n in cases
    ]
    summaries = yield configs
    saved = {case: 100 * number(s, "sharing_saved") for case, s in zip(cases, summaries, strict=True)}
    paper = published()["fig15"]
    rows = [
        Row(
            figure="Fig. 15",
            quantity=f"memory saved, {'beam width' if method == 'beam' else 'samples'} {n}",
            paper=dict(zip(paper["x"], paper["beam" if method == "beam" else "parallel"], strict=True))[n],
            ours=saved[method, n],
            tolerance=5.0 if method == "beam" else 1.5,
            kind="difference",
            unit="% points",
            reason="beams part as the likelihoods of SmolLM2-135M make them; OPT-13B's are not public"
            if method == "beam"
            else "only whole pages of the prompt are shared for long, so it follows the prompts' lengths",
            digest=config.digest(),
        )
        for (method, n), config in zip(cases, configs, strict=True)
    ]
    return Result(
        figure="15",
        title="Fig. 15. Memory saved by sharing, OPT-13B, Alpaca",
        conditions=(
            "20 req/s, 900 s, from 300 s on: 1 - 1 / mean over steps of (pages mapped / pages used); "
            "profile paper-2023",
        ),
        rows=tuple(rows),
        data={"parallel": [saved["sample", n] for n in (2, 4, 6)], "beam": [saved["beam", n] for n in (2, 4, 6)]},
        digests=tuple(config.digest() for config in configs),
    )
