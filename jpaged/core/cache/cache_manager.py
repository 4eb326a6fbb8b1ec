"""Where KV lives under PagedAttention: which pages each sequence gets, shares, copies and gives back.

A call that cannot be met changes nothing; a page that is written has one holder and is not indexed.
"""

from collections.abc import Iterable

from jpaged.config.options import CacheConfig
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.cache.page_supply import PageSupply
from jpaged.core.cache.prefix_cache import EvictionPolicy, PrefixCache
from jpaged.core.cache.prefixes import Prefixes
from jpaged.core.cache.swap_space import SwapSpace
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.sequence import Sequence, SequenceGroup


class CacheManager:
    """The pages of every sequence of an engine, allocated as its tokens come (a MemoryPolicy)."""

    most_together = None

    def __init__(self, config: CacheConfig, eviction_policy: EvictionPolicy | None = None) -> None:
        assert config.num_pages is not None, "the number of pages is resolved before the engine is built"
        self.page_size = config.page_size
        self.prefix_cache = PrefixCache(eviction_policy) if config.enable_prefix_caching else None
        self.supply = PageSupply(config.num_pages, self.prefix_cache)
        self.pool, self.moves = self.supply.pool, self.supply.moves
        self.prefixes = None if self.prefix_cache is None else Prefixes(self.prefix_cache, self.supply, self.page_size)
        self.swap = SwapSpace(config.num_host_pages, self.supply) if config.num_host_pages else None
        self.num_page_copies = 0
        self.release = self.supply.release

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones and idle cached ones."""
        return self.supply.num_available

    @property
    def num_used(self) -> int:
        """Pages that some block table holds."""
        return self.pool.num_pages - self.num_available

    @property
    def num_pinned(self) -> int:
        """Pages that pinned prefixes hold."""
        return len(self.prefixes.pinned_pages) if self.prefixes else 0

    def reserved_tokens(self, group: SequenceGroup) -> int | None:
        """The tokens that a sequence has room for from its start: None, since pages come with the tokens."""
        return None

    def num_cached_tokens(self, group: SequenceGroup) -> int:
        """How many of a waiting group's first tokens are in cached pages."""
        live = group.live
        return len(self.prefixes.match(group, live[0])) * self.page_size if self.prefixes and live else 0

    def fits(self, group: SequenceGroup, reserve: int) -> bool:
        """Whether a waiting group can be admitted now, with `reserve` pages still available afterwards.

        A hit page that nobody holds is not counted as available.
        """
        hits, live = self._hits(group), group.live
        idle_hits = sum(1 for page in hits if self.prefix_cache and self.prefix_cache.is_idle(page))
        # All known tokens of the group's live sequences, the pages of their common prompt counted once.
        shared = live[0].prompt_len // self.page_size
        need = shared + sum(pages_for(len(s.token_ids), self.page_size) - shared for s in live)
        return need - len(hits) + reserve <= self.num_available - idle_hits

    def admit(self, group: SequenceGroup) -> None:
        """Give the parent of a group that fits pages for all its known tokens, cached ones first."""
        hits, parent = self._hits(group), group.live[0]
        num_hits = len(hits)
        self.supply.hold(hits)
        parent.restart(num_hits * self.page_size, num_hits)
        parent.pages = hits
        hits += self.supply.allocate(pages_for(group.first_end, self.page_size) - num_hits)

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens of a waiting group to compute before it samples: its prompt once, less cached ones."""
        return group.first_end - len(self._hits(group)) * self.page_size

    def pages_to_grow(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """Pages to allocate before each sequence can write its tokens up to its `end`, with copies of shared ones."""
        need = 0
        writers: dict[int, int] = {}
        for sequence, end in sequences:
            pages = sequence.pages
            held = len(pages)
            if end > held * self.page_size:
                need += pages_for(end, self.page_size) - held
            first = sequence.num_computed // self.page_size
            if first < held and self.pool.ref_count(pages[first]) > 1:
                writers[pages[first]] = writers.get(pages[first], 0) + 1
        for page, count in writers.items():
            # The last of a page's holders keeps it.
            need += min(count, self.pool.ref_count(page) - 1)
        return need

    def owns(self, sequence: Sequence, position: int) -> bool:
        """Whether a page is held for the position, and by this sequence alone."""
        pages, index = sequence.pages, position // self.page_size
        return index < len(pages) and self.pool.ref_count(pages[index]) == 1

    def grow(self, sequence: Sequence, end: int) -> int:
        """Make the slots of positions [num_computed, end) the sequence's own; the caller has checked the room.

        Returns the first column of its block table that changed. A shared page is copied before the write.
        """
        pages = sequence.pages
        changed = len(pages)
        first = sequence.num_computed // self.page_size
        if first < changed and self.pool.ref_count(pages[first]) > 1:
            [own] = self.supply.allocate(1)
            self.moves.append(PageMove(MoveKind.COPY, pages[first], own))
            self.pool.drop(pages[first])
            pages[first] = own
            changed = first
            self.num_page_copies += 1
        pages += self.supply.allocate(max(0, pages_for(end, self.page_size) - len(pages)))
        return changed

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on as a copy of `parent`: it shares every page, and nothing is allocated."""
        self.release(child)
        for page in parent.pages:
            self.pool.hold(page)
        child.pages = list(parent.pages)
        child.fork_from(parent, self.page_size)

    def check(self, sequences: Iterable[Sequence], outgoing: Iterable[list[int]]) -> None:
        """Assert I1 to I4 for the tables of all live sequences, and of those that were sent to another engine."""
        sequences = list(sequences)
        if self.swap is not None:
            self.swap.check(sequences)
        tables = [*(sequence.pages for sequence in sequences), *outgoing]
        tables += self.prefixes.pinned.values() if self.prefixes else ()
        for pages in tables:
            assert len(set(pages)) == len(pages), "a block table holds a page twice"
        idle = self.prefix_cache.idle_pages if self.prefix_cache else ()
        self.pool.check((page for pages in tables for page in pages), idle)
        if self.prefixes is not None:
            self.prefixes.check(sequences)

    def _hits(self, group: SequenceGroup) -> list[int]:
        """The cached pages that a waiting group would begin with."""
        if self.prefixes is None:
            return []
        # A page that the end of the prompt shares with the parent's outputs is no hit: every sibling writes into it.
        return self.prefixes.match(group, group.live[0])[: group.first_end // self.page_size]
