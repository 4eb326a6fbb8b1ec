"""Where KV lives in the systems before PagedAttention: one run of pages a sequence, reserved at its start.

Lives here: ReservedCache, the counterpart of CacheManager, and how much each rule reserves.
Promises: a sequence that was admitted never lacks a page; nothing is shared; all of a group gets room, or none.
Must not know: who waits, who runs, what a step costs.
"""

from collections.abc import Callable, Iterable

from jpaged.config.engine import CacheConfig
from jpaged.core.cache.block_table import pages_for
from jpaged.core.cache.contiguous import BuddyAllocator, ContiguousAllocator, FirstFitAllocator
from jpaged.core.cache.swap_space import SwapSpace
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import PageCopy, PageSwap

Estimate = Callable[[int], int | None]

# How long an output is taken to be, given how long it will be; None: as long as the model allows. Orca's three.
ESTIMATES: dict[str, Estimate] = {
    "oracle": lambda output: output,
    "pow2": lambda output: 1 << (output - 1).bit_length(),
    "max": lambda output: None,
}


class ReservedCache:
    """The reserved pages of every sequence of an engine; `reservation` is oracle, pow2, max or batch.

    The first three round a run up to a power of two of pages (a buddy allocator), as Orca does; "batch" reserves what
    the static batch of a group is padded to. A page is the unit, so the same kernels run; the pages of a sequence
    are neighbours.
    """

    prefix_cache = None
    num_pinned = 0
    num_evictions = 0
    num_swapped_out = 0
    num_swapped_in = 0

    def __init__(self, config: CacheConfig, max_model_len: int) -> None:
        assert config.num_pages is not None, "the number of pages is resolved before the engine is built"
        self.page_size = config.page_size
        self.reservation = config.reservation
        self.max_model_len = max_model_len
        self.swap_space = SwapSpace(0)
        self.pinned: dict[str, list[int]] = {}
        self.aside: set[int] = set()
        self.num_page_copies = 0
        self.on_evict: Callable[[int], None] | None = None
        self.pool = self._new_pool(config.num_pages)
        self._runs: dict[Sequence, int] = {}
        self._pending: list[PageCopy] = []

    @property
    def num_available(self) -> int:
        """Pages in no run."""
        return self.pool.num_free

    @property
    def num_used(self) -> int:
        """Pages in some run, rounding included."""
        return self.pool.num_pages - self.pool.num_free

    def reserved_tokens(self, group: SequenceGroup) -> int:
        """Slots that each sequence of the group gets, before any rounding."""
        if group.batch is not None:
            return min(group.batch.prompt_len + group.batch.num_outputs, self.max_model_len)
        return self._reserved(len(group.request.prompt_token_ids), group.max_len)

    def most_together(self, prompt_len: int, max_len: int, wanted: int) -> int:
        """How many such sequences an empty pool holds at once, up to `wanted`."""
        pages = pages_for(self._reserved(prompt_len, max_len), self.page_size)
        return self._new_pool(self.pool.num_pages).how_many(pages, wanted)

    def num_cached_tokens(self, group: SequenceGroup) -> int:
        """None: nothing outlives its sequence."""
        return 0

    def fits(self, group: SequenceGroup, reserve: int) -> bool:
        """Whether every live sequence of the group can have its run now; `reserve` is of no concern here."""
        pages = pages_for(self.reserved_tokens(group), self.page_size)
        live = len(group.live)
        return self.pool.how_many(pages, live) == live

    def admit(self, group: SequenceGroup) -> None:
        """Give each live sequence of a group that fits a run for all its tokens."""
        pages = pages_for(self.reserved_tokens(group), self.page_size)
        for sequence in group.live:
            start = self.pool.allocate(pages)
            self._runs[sequence] = start
            sequence.table.pages = list(range(start + 1, start + 1 + pages))
        # Nothing is shared, so each computes the prompt for itself.
        group.forked = True

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens of a waiting group that are to be computed before it samples: its prompt once a sequence."""
        return sum(len(sequence.token_ids) for sequence in group.live)

    def pages_to_grow(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """None: all were reserved."""
        return 0

    def owns(self, sequence: Sequence, position: int) -> bool:
        """Whether a page is held for the position."""
        return position < sequence.table.capacity

    def grow(self, sequence: Sequence, end: int) -> tuple[int, PageCopy | None]:
        """Nothing changes: the slots up to `end` are there."""
        assert end <= sequence.table.capacity, "a sequence outgrows its reservation"
        return len(sequence.table.pages), None

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Never: siblings are admitted apart."""
        raise AssertionError("sequences of a reserving cache share nothing")

    def replace_with_fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on as a copy of `parent`: its whole run is copied into the child's, before the next step."""
        pairs = zip(parent.table.pages, child.table.pages, strict=True)
        self._pending.extend(PageCopy(source, target) for source, target in pairs)
        self.num_page_copies += len(parent.table.pages)
        child.num_computed = parent.num_computed

    def take_copies(self) -> list[PageCopy]:
        """The copies that the next step is to make first."""
        copies, self._pending = self._pending, []
        return copies

    def commit(self, group: SequenceGroup, sequence: Sequence, num_written: int) -> None:
        """Nothing: no page is found again by its contents."""

    def release(self, sequence: Sequence) -> None:
        """Give the run of a sequence back."""
        start = self._runs.pop(sequence, None)
        if start is not None:
            self.pool.free(start)
        sequence.table.pages = []
        sequence.num_computed = 0

    def swap_out(self, sequences: list[Sequence]) -> list[PageSwap] | None:
        """Never."""
        return None

    def can_swap_in(self, sequences: list[Sequence], reserve: int) -> bool:
        """Never."""
        return False

    def swap_in(self, sequences: list[Sequence]) -> list[PageSwap]:
        """Never."""
        raise AssertionError("nothing was swapped out")

    def pin(self, name: str, token_ids: tuple[int, ...], cache_salt: str | None = None) -> int:
        """Raises ValueError: nothing can be shared."""
        raise ValueError(f"a prefix cannot be pinned with reservation={self.reservation!r}: use reservation='none'")

    def check_pin(self, name: str) -> None:
        """Raises ValueError, as `pin` does."""
        self.pin(name, ())

    def unpin(self, name: str) -> None:
        """Raises ValueError: nothing is pinned."""
        raise ValueError(f"prefix {name!r} is not pinned; pinned are: none")

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that every page is free or in one run, and each run that of a live sequence."""
        holders = [sequence for sequence in sequences if sequence.table.pages]
        assert set(holders) == set(self._runs), "a run without a sequence, or a sequence without a run"
        pages = [page for sequence in holders for page in sequence.table.pages]
        assert len(set(pages)) == len(pages), "a page is in two runs"
        assert all(1 <= page <= self.pool.num_pages for page in pages), "a run leaves the pool"
        taken = sum(self.pool.size_of(len(sequence.table.pages)) for sequence in holders)
        assert taken == self.num_used, "pages are lost"

    def _reserved(self, prompt_len: int, max_len: int) -> int:
        estimate = ESTIMATES.get(self.reservation, ESTIMATES["oracle"])(max_len - prompt_len)
        return self.max_model_len if estimate is None else min(prompt_len + estimate, self.max_model_len)

    def _new_pool(self, num_pages: int) -> ContiguousAllocator:
        if self.reservation == "batch":
            return FirstFitAllocator(num_pages)
        return BuddyAllocator(num_pages, pages_for(self.max_model_len, self.page_size))
