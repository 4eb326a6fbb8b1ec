"""The numbers of one point by which it is compared with others.

Times and rates are named and defined as vLLM's bench has them; None where there is nothing to measure.
"""

from itertools import pairwise

import numpy as np

from experiments.kinds import Summary
from experiments.point import Point

# A queue grows if its mean over the last quarter of the arrivals is this much above that over the third, and by this
# much of all requests: 1.1 times the rate that can be served adds 2.3 % of them.
_GROWTH, _GROWTH_OF_REQUESTS, _LEAST_GROWTH = 1.2, 0.02, 2.0
# A run that was stopped has kept up if it finished this much of what arrived.
_KEPT_UP = 0.9
Columns = dict[str, np.ndarray]
_MEMORY = ("token", "reserved", "internal", "rounding", "free")


def summarize(point: Point) -> Summary:
    """The summary of a point.

    vLLM's names: of finished requests, times in ms, rates per second; `total_output_tokens` counts every sequence of a
    request, TPOT is (latency - TTFT) / (output - 1), ITL is pooled over tokens, percentiles are linear.
    `request_goodput`: finished requests per second that keep the limits of `metrics`; None without limits.
    `mean_running_...`, `kv_..._share`, `sharing_saved`: means over the steps of the metrics' window (`..._timed`:
    weighted by their durations); shares are of the pool's slots, `kv_waste_share` of those that are held.
    """
    requests = {name: column[point.finished] for name, column in point.requests.items()}
    steps = {name: column[point.window()] for name, column in point.steps.items()}
    times = _times_ms(point, requests)
    saturated, reason = _saturation(point)
    return {
        **_counts(point, requests, _good(point, times, requests["output_tokens"])),
        **_latencies(times, requests),
        "num_steps": len(point.steps["step"]),
        "num_steps_in_window": len(steps["step"]),
        **_running(steps),
        **_memory(point, steps),
        **_engine(point),
        "saturated": saturated,
        "saturation_reason": reason,
    }


def _counts(point: Point, requests: Columns, good: int | None) -> Summary:
    duration = point.end_ns / 1e9
    inputs = int(requests["prompt_tokens"].sum())
    outputs = int(requests["output_tokens"].sum()) * point.config.decoding.n
    completed = int(point.finished.sum())
    return {
        "num_requests": len(point.finished),
        "duration": duration,
        "completed": completed,
        "failed": len(point.refused),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _ratio(completed, duration),
        "request_goodput": None if good is None else _ratio(good, duration),
        "output_throughput": _ratio(outputs, duration),
        "total_token_throughput": _ratio(inputs + outputs, duration),
        "max_concurrent_requests": _most_at_once(point),
    }


def _good(point: Point, times: Columns, outputs: np.ndarray) -> int | None:
    """Finished requests within the limits, None if none are given. A request of one token has no TPOT to keep."""
    limits = point.config.metrics
    if limits.slo_ttft_ms is None and limits.slo_tpot_ms is None:
        return None
    good = np.ones(len(outputs), bool)
    if limits.slo_ttft_ms is not None:
        good &= times["ttft"] <= limits.slo_ttft_ms
    if limits.slo_tpot_ms is not None:
        good[outputs > 1] &= times["tpot"] <= limits.slo_tpot_ms
    return int(good.sum())


def _times_ms(point: Point, requests: Columns) -> Columns:
    """Times of the finished requests; TPOT of those alone that have more than one token."""
    e2el, ttft = (requests[name] - requests["arrival_ns"] for name in ("finished_ns", "first_token_ns"))
    several = requests["output_tokens"] > 1
    tpot = (e2el - ttft)[several] / (requests["output_tokens"][several] - 1)
    times = {"ttft": ttft, "tpot": tpot, "itl": point.itl_ns, "e2el": e2el}
    return {name: column / 1e6 for name, column in times.items()}


def _latencies(times: Columns, requests: Columns) -> Summary:
    found: Summary = {}
    for name, column in times.items():
        found |= {
            f"mean_{name}_ms": _mean(column),
            f"median_{name}_ms": _percentile(column, 50),
            f"std_{name}_ms": float(np.std(column)) if len(column) else None,
            f"p99_{name}_ms": _percentile(column, 99),
        }
    normalized = (requests["finished_ns"] - requests["arrival_ns"]) / 1e9 / requests["output_tokens"]
    return {
        **found,
        "mean_normalized_latency_s": _mean(normalized),
        "p50_normalized_latency_s": _percentile(normalized, 50),
        "p99_normalized_latency_s": _percentile(normalized, 99),
    }


def _running(steps: Columns) -> Summary:
    spans, found = steps["end_ns"] - steps["start_ns"], Summary()
    for name, column in (("requests", "num_groups"), ("sequences", "num_sequences")):
        found[f"mean_running_{name}"] = _mean(steps[column])
        found[f"mean_running_{name}_timed"] = _ratio(float(np.dot(steps[column], spans)), float(spans.sum()))
    return found


def _memory(point: Point, steps: Columns) -> Summary:
    # One name differs: MemoryUse counts tokens.
    slots = {name: steps["tokens_slots" if name == "token" else f"{name}_slots"] for name in _MEMORY}
    total = point.num_pages * point.config.cache.page_size
    held = total - slots["free"]
    busy = held > 0
    used = steps["pages_used"] > 0
    sharing = steps["logical_pages"][used] / steps["pages_used"][used]
    return {
        **{f"kv_{name}_share": _mean(column / total) for name, column in slots.items()},
        "kv_waste_share": _mean(1.0 - slots["token"][busy] / held[busy]),
        "sharing_saved": max(0.0, 1.0 - 1.0 / float(np.mean(sharing))) if len(sharing) else None,
    }


def _engine(point: Point) -> Summary:
    stats, r = point.stats, point.requests
    prompts = int(r["prompt_tokens"][r["first_token_ns"] > 0].sum())
    return {
        "num_preemptions_recompute": stats["num_preemptions_recompute"],
        "num_preemptions_swap": stats["num_preemptions_swap"],
        "prefix_hit_tokens": stats["prefix_hit_tokens"],
        "prefix_hit_rate": _ratio(stats["prefix_hit_tokens"], prompts),
        "num_page_copies": stats["num_page_copies"],
        "pages_total": point.num_pages,
        "plan_digest": point.plan_digest,
    }


def _came(point: Point) -> tuple[np.ndarray, np.ndarray]:
    """When the requests came that were not refused, and when they ended (0: they did not).

    Where the run was stopped, later requests never came.
    """
    came = point.requests["arrival_ns"] <= point.end_ns
    came[list(point.refused)] = False
    return point.requests["arrival_ns"][came], point.requests["finished_ns"][came]


def _saturation(point: Point) -> tuple[bool | None, str]:
    """Whether requests came faster than they could be served, and the numbers that say so."""
    arrivals, ends = _came(point)
    completed, arrived = int((ends > 0).sum()), len(arrivals)
    if not arrived or arrivals[-1] == arrivals[0]:
        return None, "all requests came at once: there is no rate to keep up with"
    if completed < _KEPT_UP * arrived:
        return True, f"{completed} of {arrived} requests that came were completed"
    third, fourth = _mean_outstanding(arrivals, ends)
    text = f"{third:.1f} requests in the system in the third quarter of the arrivals, {fourth:.1f} in the last"
    grows = fourth > _GROWTH * third and fourth - third > max(_LEAST_GROWTH, _GROWTH_OF_REQUESTS * arrived)
    return grows, f"{text}; {completed} of {arrived} completed"


def _mean_outstanding(arrivals: np.ndarray, ends: np.ndarray) -> tuple[float, float]:
    """Mean numbers of requests that have come and not ended, over the third and fourth quarter of the arrivals."""
    start, span = int(arrivals[0]), int(arrivals[-1] - arrivals[0])
    stops = np.where(ends > 0, ends, arrivals[-1])
    means: list[float] = []
    for low, high in pairwise(start + span * quarters // 4 for quarters in (2, 3, 4)):
        inside = np.minimum(stops, high) - np.maximum(arrivals, low)
        means.append(float(np.maximum(inside, 0).sum()) / max(1, high - low))
    return means[0], means[1]


def _most_at_once(point: Point) -> int:
    """The largest number of requests that have come and not ended."""
    arrivals, ends = _came(point)
    ends = ends[ends > 0]
    times = np.concatenate([ends, arrivals])
    # One that ends when another comes has made room for it.
    changes = np.concatenate([-np.ones(len(ends), np.int64), np.ones(len(arrivals), np.int64)])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(changes[order]).max(initial=0))


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _percentile(values: np.ndarray, percent: int) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
