"""What the slots of the pool are used for, in the paper's categories.

Lives here: MemoryUse and memory_use.
Promises: the five parts add up to the pool, under every memory policy.
Must not know: how the parts are drawn or averaged.
"""

from typing import NamedTuple

from jpaged.core.scheduling.scheduler import Scheduler


class MemoryUse(NamedTuple):
    """Slots by use: those that hold a known token, those that will hold one of a running sequence, and the rest.

    `internal` slots are held for tokens that never come, `rounding` ones are lost to rounding a reservation up to
    pages and to a power of two, `free` ones belong to nobody. A paged cache has only tokens, the unfilled ends of
    last pages (its `internal`) and free slots; a page that several sequences share counts once.
    """

    tokens: int
    reserved: int
    internal: int
    rounding: int
    free: int

    @property
    def total(self) -> int:
        """All slots of the pool."""
        return sum(self)

    @property
    def waste(self) -> float:
        """The share of the held slots that hold no token now."""
        held = self.total - self.free
        return 1.0 - self.tokens / held if held else 0.0


def memory_use(scheduler: Scheduler, tail_slots: int) -> MemoryUse:
    """The use of every slot, right after a plan was made; `tail_slots` as `table_totals` finds them then."""
    cache = scheduler.cache
    held = cache.num_used * cache.page_size
    free = cache.pool.num_pages * cache.page_size - held
    if cache.supply is not None:
        return MemoryUse(held - tail_slots, 0, tail_slots, 0, free)
    tokens = reserved = internal = 0
    for group in scheduler.running:
        run = cache.reserved_tokens(group) or 0
        for sequence in group.live:
            # What a static batch computes beyond a sequence's own end is nobody's token.
            known = min(len(sequence.token_ids), group.max_len)
            tokens += known
            reserved += group.max_len - known
            internal += run - group.max_len
    return MemoryUse(tokens, reserved, internal, held - tokens - reserved - internal, free)
