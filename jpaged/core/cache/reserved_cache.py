"""Where KV lives in the systems before PagedAttention: one run of pages per sequence, reserved at its start.

A sequence that was admitted never lacks a page; nothing is shared; all of a group gets room, or none.
"""

from collections.abc import Callable, Iterable

from jpaged.config.options import CacheConfig
from jpaged.core.cache.contiguous import BuddyAllocator, ContiguousAllocator, FirstFitAllocator
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.sequence import Sequence, SequenceGroup

Estimate = Callable[[int], int | None]

# How long an output is taken to be, given how long it will be; None: as long as the model allows. Orca's three.
ESTIMATES: dict[str, Estimate] = {
    "oracle": lambda output: output,
    "pow2": lambda output: 1 << (output - 1).bit_length(),
    "max": lambda output: None,
}


class ReservedCache:
    """The reserved pages of every sequence of an engine (a MemoryPolicy); `reservation` is oracle, pow2, max or batch.

    The first three round a run up to a power of two of pages (a buddy allocator), as Orca does; "batch" reserves what
    the static batch of a group is padded to. A page is the unit, so the same kernels run; the pages of a sequence
    are neighbours.
    """

    supply = prefix_cache = prefixes = swap = None
    num_pinned = 0

    def __init__(self, config: CacheConfig, max_model_len: int) -> None:
        assert config.num_pages is not None, "the number of pages is resolved before the engine is built"
        self.page_size = config.page_size
        self.reservation = config.reservation
        self.max_model_len = max_model_len
        self.moves: list[PageMove] = []
        self.num_page_copies = 0
        self.pool = self._new_pool(config.num_pages)
        self._runs: dict[Sequence, int] = {}

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
        """0: nothing outlives its sequence."""
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
            sequence.pages = list(range(start + 1, start + 1 + pages))

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens of a waiting group to compute before it samples: its prompt, once per sequence."""
        return sum(len(sequence.token_ids) for sequence in group.live)

    def pages_to_grow(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """0: all pages were reserved."""
        return 0

    def owns(self, sequence: Sequence, position: int) -> bool:
        """Whether a page is held for the position."""
        return position < len(sequence.pages) * self.page_size

    def grow(self, sequence: Sequence, end: int) -> int:
        """The slots up to `end` are there already: no column changes."""
        assert end <= len(sequence.pages) * self.page_size, "a sequence outgrows its reservation"
        return len(sequence.pages)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on as a copy of `parent`, whose whole run is copied into the child's before the next step."""
        pairs = zip(parent.pages, child.pages, strict=True)
        self.moves += (PageMove(MoveKind.COPY, source, target) for source, target in pairs)
        self.num_page_copies += len(parent.pages)
        child.fork_from(parent, self.page_size)

    def release(self, sequence: Sequence) -> None:
        """Give the run of a sequence back."""
        start = self._runs.pop(sequence, None)
        if start is not None:
            self.pool.free(start)
        sequence.pages = []
        sequence.restart()

    def check(self, sequences: Iterable[Sequence], outgoing: Iterable[list[int]]) -> None:
        """Assert that every page is free or in one run, and each run that of a live sequence."""
        holders = [sequence for sequence in sequences if sequence.pages]
        assert set(holders) == set(self._runs), "a run without a sequence, or a sequence without a run"
        pages = [page for sequence in holders for page in sequence.pages]
        assert len(set(pages)) == len(pages), "a page is in two runs"
        assert all(1 <= page <= self.pool.num_pages for page in pages), "a run leaves the pool"
        taken = sum(self.pool.size_of(len(sequence.pages)) for sequence in holders)
        assert taken == self.num_used, "pages are lost"

    def _reserved(self, prompt_len: int, max_len: int) -> int:
        estimate = ESTIMATES.get(self.reservation, ESTIMATES["oracle"])(max_len - prompt_len)
        return self.max_model_len if estimate is None else min(prompt_len + estimate, self.max_model_len)

    def _new_pool(self, num_pages: int) -> ContiguousAllocator:
        if self.reservation == "batch":
            return FirstFitAllocator(num_pages)
        return BuddyAllocator(num_pages, pages_for(self.max_model_len, self.page_size))
