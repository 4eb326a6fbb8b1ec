"""What the slots of the pool are used for, in the paper's categories.

The five parts add up to the pool, under every memory policy.
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

    def after_tokens(self, count: int) -> "MemoryUse":
        """The same reservations, with `count` more tokens in them."""
        return self._replace(tokens=self.tokens + count, reserved=self.reserved - count)


def paged_memory(total: int, held: int, tail_slots: int) -> MemoryUse:
    """The use of a pool of `total` slots, `held` of them in pages that come with the tokens."""
    return MemoryUse(held - tail_slots, 0, tail_slots, 0, total - held)


def memory_use(scheduler: Scheduler, tail_slots: int) -> MemoryUse:
    """The use of every slot, right after a plan was made; `tail_slots` as `table_totals` finds them then."""
    cache = scheduler.cache
    held = cache.num_used * cache.page_size
    total = cache.pool.num_pages * cache.page_size
    if cache.supply is not None:
        return paged_memory(total, held, tail_slots)
    tokens = reserved = internal = 0
    for group in scheduler.running:
        run = cache.reserved_tokens(group) or 0
        for sequence in group.live:
            # What a static batch computes beyond a sequence's own end is nobody's token.
            known = min(len(sequence.token_ids), group.max_len)
            tokens += known
            reserved += group.max_len - known
            internal += run - group.max_len
    return MemoryUse(tokens, reserved, internal, held - tokens - reserved - internal, total - held)
