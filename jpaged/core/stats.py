"""What happened, in numbers.

Lives here: EngineStats: counters of an engine and what is sampled after every step.
Promises: counters never fall; every key of `as_dict` is present from the first step on.
Must not know: how the numbers are shown.
"""

from dataclasses import dataclass

from jpaged.core.output import SchedulerOutput
from jpaged.core.scheduler import Scheduler


@dataclass(slots=True)
class EngineStats:
    """Facts of all steps so far. Times are in seconds, waste is a fraction of the held slots."""

    num_requests_refused: int = 0
    num_steps: int = 0
    num_tokens_computed: int = 0
    num_tokens_sampled: int = 0
    host_time: float = 0.0
    pages_used_peak: int = 0
    num_running_peak: int = 0
    _waste_sum: float = 0.0
    _waste_steps: int = 0

    def after_schedule(self, plan: SchedulerOutput, scheduler: Scheduler) -> None:
        """Take in a plan that was just made, while its pages are held and none has been given back."""
        self.num_steps += 1
        self.num_tokens_computed += plan.num_tokens
        self.num_tokens_sampled += len(plan.samples)
        used = scheduler.cache.num_used
        self.pages_used_peak = max(self.pages_used_peak, used)
        self.num_running_peak = max(self.num_running_peak, scheduler.num_running)
        if used:
            self._waste_sum += tail_slots(scheduler) / (used * scheduler.cache.page_size)
            self._waste_steps += 1

    @property
    def tail_waste_mean(self) -> float:
        """The mean over steps of the share of held slots that no known token fills (the paper's internal waste)."""
        return self._waste_sum / self._waste_steps if self._waste_steps else 0.0


def tail_slots(scheduler: Scheduler) -> int:
    """Slots of held pages that no known token of their sequence fills; a shared last page counts once."""
    seen: set[int] = set()
    slots = 0
    for group in scheduler.running:
        for sequence in group.live:
            pages = sequence.table.pages
            if not pages or pages[-1] in seen:
                continue
            seen.add(pages[-1])
            slots += max(0, sequence.table.capacity - len(sequence.token_ids))
    return slots


def as_dict(stats: EngineStats, scheduler: Scheduler) -> dict[str, float | int]:
    """The host core's part of `LLM.stats()`."""
    cache = scheduler.cache
    return {
        "num_requests_refused": stats.num_requests_refused,
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
        "tail_waste_mean": stats.tail_waste_mean,
        "prefix_hit_tokens": scheduler.prefix_hit_tokens,
        "prefix_hit_tokens_resumed": scheduler.resumed_hit_tokens,
        "num_page_copies": cache.num_page_copies,
        "num_evictions": cache.num_evictions,
        "num_pages_swapped_out": cache.num_swapped_out,
        "num_pages_swapped_in": cache.num_swapped_in,
        "host_pages_total": cache.swap_space.num_pages,
        "host_pages_free": cache.swap_space.num_free,
        "host_ms_per_step": 1e3 * stats.host_time / stats.num_steps if stats.num_steps else 0.0,
    }
