"""What happened, in numbers. Counters never fall; every key of `as_dict` is present from the first step on."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from jpaged.core.plan import SchedulerOutput
from jpaged.core.requests.request import RequestMetrics
from jpaged.core.scheduling.scheduler import Scheduler

# Medians are over this many of the latest: an engine may live for months.
KEPT_REQUESTS = 4096
KEPT_TOKENS = 65536


def _latest_requests() -> deque[float]:
    return deque(maxlen=KEPT_REQUESTS)


def _latest_tokens() -> deque[float]:
    return deque(maxlen=KEPT_TOKENS)


@dataclass(slots=True)
class EngineStats:
    """Facts of all steps so far. Times are in seconds, waste is a fraction of the held slots.

    A request's times are taken in once, when it has ended, however it ended: `num_first_tokens` counts those that
    had produced a token by then. `logical_pages` and `tail_slots` are of the latest step (see `table_totals`).
    """

    num_requests_refused: int = 0
    num_requests_finished: int = 0
    num_first_tokens: int = 0
    num_steps: int = 0
    num_tokens_computed: int = 0
    num_tokens_sampled: int = 0
    host_time: float = 0.0
    pages_used_peak: int = 0
    pages_saved_peak: int = 0
    num_running_peak: int = 0
    logical_pages: int = 0
    tail_slots: int = 0
    ttft: deque[float] = field(default_factory=_latest_requests)
    itl: deque[float] = field(default_factory=_latest_tokens)
    queue_time: deque[float] = field(default_factory=_latest_requests)
    _waste_sum: float = 0.0
    _sharing_sum: float = 0.0
    _busy_steps: int = 0

    def after_schedule(self, plan: SchedulerOutput, scheduler: Scheduler) -> None:
        """Take in a plan that was just made, while its pages are held and none has been given back."""
        self.num_running_peak = max(self.num_running_peak, scheduler.num_running)
        used = scheduler.cache.num_used
        totals = table_totals(scheduler)
        self.after_step(plan.num_tokens, len(plan.samples), used, used * scheduler.cache.page_size, *totals)

    def after_step(self, tokens: int, samples: int, used: int, slots: int, logical: int, tail: int) -> None:
        """Take in a step that computes `tokens` tokens, and that holds `used` pages with this number of slots."""
        self.num_steps += 1
        self.num_tokens_computed += tokens
        self.num_tokens_sampled += samples
        if not used:
            return
        self.logical_pages, self.tail_slots = logical, tail
        self.pages_used_peak = max(self.pages_used_peak, used)
        self.pages_saved_peak = max(self.pages_saved_peak, logical - used)
        self._waste_sum += tail / slots
        self._sharing_sum += logical / used
        self._busy_steps += 1

    def after_finish(self, metrics: RequestMetrics) -> None:
        """Take in the times of a request that has ended."""
        self.num_requests_finished += 1
        if metrics.queue_time is not None:
            self.queue_time.append(metrics.queue_time)
        if metrics.ttft is not None:
            self.num_first_tokens += 1
            self.ttft.append(metrics.ttft)
        self.itl.extend(metrics.itl)

    @property
    def tail_waste_mean(self) -> float:
        """The mean over steps of the share of held slots that no known token fills (the paper's internal waste)."""
        return self._waste_sum / self._busy_steps if self._busy_steps else 0.0

    @property
    def sharing_steps(self) -> tuple[float, int]:
        """The sum over steps of logical / physical pages, and how many steps held any: two looks give a span's mean."""
        return self._sharing_sum, self._busy_steps

    @property
    def sharing_saved(self) -> float:
        """The share of pages that sharing saves, as the paper's Fig. 15 has it: 1 - 1 / mean(logical / physical).

        Logical pages are the lengths of all running block tables, physical ones those that are held.
        """
        return max(0.0, 1.0 - self._busy_steps / self._sharing_sum) if self._sharing_sum else 0.0


def table_totals(scheduler: Scheduler) -> tuple[int, int]:
    """The summed lengths of all running block tables, and the slots of their last pages that no known token fills.

    A last page that several sequences hold counts once among the slots.
    """
    page_size = scheduler.cache.page_size
    logical = tail = 0
    for group in scheduler.running:
        sequences = group.sequences if len(group.sequences) == 1 else group.live
        seen: set[int] | None = set() if len(sequences) > 1 else None
        for sequence in sequences:
            pages = sequence.pages
            if not pages:
                continue
            held = len(pages)
            logical += held
            if seen is not None:
                if pages[-1] in seen:
                    continue
                seen.add(pages[-1])
            empty = held * page_size - len(sequence.token_ids) - sequence.num_pending
            if empty > 0:
                tail += empty
    return logical, tail


def as_dict(stats: EngineStats, scheduler: Scheduler) -> dict[str, float | int | None]:
    """The host core's part of `LLM.stats()`. A median of nothing is None."""
    cache, supply, swap = scheduler.cache, scheduler.cache.supply, scheduler.cache.swap
    return {
        "num_requests_refused": stats.num_requests_refused,
        "num_requests_finished": stats.num_requests_finished,
        "num_first_tokens": stats.num_first_tokens,
        "num_steps": stats.num_steps,
        "num_tokens_computed": stats.num_tokens_computed,
        "num_tokens_sampled": stats.num_tokens_sampled,
        "num_running_peak": stats.num_running_peak,
        "num_preemptions_recompute": scheduler.num_preemptions,
        "num_preemptions_swap": scheduler.num_preemptions_swap,
        "page_size": cache.page_size,
        "pages_total": cache.pool.num_pages,
        "pages_free": cache.num_available,
        "pages_cached": cache.prefix_cache.num_idle if cache.prefix_cache else 0,
        "pages_used_peak": stats.pages_used_peak,
        "pages_saved_peak": stats.pages_saved_peak,
        "sharing_saved": stats.sharing_saved,
        "tail_waste_mean": stats.tail_waste_mean,
        "prefix_hit_tokens": scheduler.prefix_hit_tokens,
        "prefix_hit_tokens_resumed": scheduler.resumed_hit_tokens,
        "num_page_copies": cache.num_page_copies,
        "num_evictions": supply.num_evictions if supply else 0,
        "num_pages_swapped_out": swap.num_swapped_out if swap else 0,
        "num_pages_swapped_in": swap.num_swapped_in if swap else 0,
        "host_pages_total": swap.num_pages if swap else 0,
        "host_pages_free": swap.num_free if swap else 0,
        "median_queue_ms": _median_ms(stats.queue_time),
        "median_ttft_ms": _median_ms(stats.ttft),
        "median_itl_ms": _median_ms(stats.itl),
        "host_ms_per_step": 1e3 * stats.host_time / stats.num_steps if stats.num_steps else 0.0,
    }


def _median_ms(seconds: deque[float]) -> float | None:
    return 1e3 * median(seconds) if seconds else None
