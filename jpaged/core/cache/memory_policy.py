"""What the scheduler asks of where KV lives, whichever the policy."""

from collections.abc import Callable, Iterable
from typing import Protocol

from jpaged.config.options import CacheConfig
from jpaged.core.cache.cache_manager import CacheManager
from jpaged.core.cache.page_supply import PageSupply
from jpaged.core.cache.prefix_cache import EvictionPolicy, PrefixCache
from jpaged.core.cache.prefixes import Prefixes
from jpaged.core.cache.reserved_cache import ReservedCache
from jpaged.core.cache.swap_space import SwapSpace
from jpaged.core.plan import PageMove
from jpaged.core.requests.sequence import Sequence, SequenceGroup


class Pool(Protocol):
    """The pages as a whole."""

    num_pages: int

    @property
    def num_free(self) -> int:
        """Pages that nobody holds, the cached ones not counted."""
        ...


class MemoryPolicy(Protocol):
    """Gives pages to sequences. What a policy cannot do it has no part for: that attribute is None.

    `moves` are those that the next plan must make; the scheduler takes them out. `supply`: pages are shared and
    allocated one by one. `prefixes`: they are found again by what they hold. `swap`: they can wait on the host.
    `most_together`: as RequestLimits has it, where pages are reserved.
    """

    page_size: int
    moves: list[PageMove]
    num_page_copies: int

    @property
    def pool(self) -> Pool: ...
    @property
    def supply(self) -> PageSupply | None: ...
    @property
    def prefix_cache(self) -> PrefixCache | None: ...
    @property
    def prefixes(self) -> Prefixes | None: ...
    @property
    def swap(self) -> SwapSpace | None: ...
    @property
    def most_together(self) -> Callable[[int, int, int], int] | None: ...
    @property
    def num_available(self) -> int: ...
    @property
    def num_used(self) -> int: ...
    @property
    def num_pinned(self) -> int: ...

    def reserved_tokens(self, group: SequenceGroup) -> int | None:
        """The tokens that each sequence of the group has room for from its start; None: room comes with the tokens."""
        ...

    def num_cached_tokens(self, group: SequenceGroup) -> int:
        """How many of a waiting group's first tokens are in cached pages."""
        ...

    def fits(self, group: SequenceGroup, reserve: int) -> bool:
        """Whether a waiting group can be admitted now, with `reserve` pages still available afterwards."""
        ...

    def admit(self, group: SequenceGroup) -> None:
        """Give a group that fits its first pages."""
        ...

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens of a waiting group to compute before it samples."""
        ...

    def pages_to_grow(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """Pages to allocate before each sequence can write its tokens up to its `end`."""
        ...

    def owns(self, sequence: Sequence, position: int) -> bool:
        """Whether a page is held for the position, and by this sequence alone."""
        ...

    def grow(self, sequence: Sequence, end: int) -> int:
        """Give the sequence the slots up to `end`; the first column of its block table that changed."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on as a copy of `parent`."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Take back every page of a sequence."""
        ...

    def check(self, sequences: Iterable[Sequence], outgoing: Iterable[list[int]]) -> None:
        """Assert that each page is held by whom the tables say, and by nobody else."""
        ...


def make_cache(config: CacheConfig, max_model_len: int, eviction_policy: EvictionPolicy | None) -> MemoryPolicy:
    """The paged cache, or the one with the reservation that the config names."""
    if config.reservation == "none":
        return CacheManager(config, eviction_policy)
    return ReservedCache(config, max_model_len)
