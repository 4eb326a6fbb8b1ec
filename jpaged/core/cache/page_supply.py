"""The pages of a paged engine's device pool: free, held by tables, or cached and held by nobody.

All evictions of an allocation come before it, so a policy that fails leaves no page in nobody's hands.
"""

from collections import abc
from collections.abc import Callable, Iterable

from jpaged.core.cache.page_pool import PagePool
from jpaged.core.cache.prefix_cache import PrefixCache
from jpaged.core.plan import PageMove
from jpaged.core.requests.sequence import Sequence


class PageSupply:
    """What gives pages to block tables and takes them back; `moves` are those that the next plan must make."""

    def __init__(self, num_pages: int, prefix_cache: PrefixCache | None) -> None:
        self.pool = PagePool(num_pages)
        self.prefix_cache = prefix_cache
        self.moves: list[PageMove] = []
        self.num_evictions = 0
        self.on_evict: Callable[[int], None] | None = None

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones and idle cached ones."""
        return self.pool.num_free + (self.prefix_cache.num_idle if self.prefix_cache else 0)

    def allocate(self, count: int) -> list[int]:
        """This many pages, each held once. The caller has checked `num_available`."""
        while self.pool.num_free < count:
            assert self.prefix_cache is not None, "the caller has checked that the pages are available"
            page = self.prefix_cache.evict()
            self.pool.free(page)
            self.num_evictions += 1
            if self.on_evict is not None:
                self.on_evict(page)
        return [self.pool.allocate() for _ in range(count)]

    def allocate_as(self, tables: abc.Sequence[abc.Sequence[int]], sequences: Iterable[Sequence]) -> dict[int, int]:
        """Give the sequences new pages, shared as in the given tables; which new page stands for which of theirs."""
        distinct = list(dict.fromkeys(page for pages in tables for page in pages))
        pages = dict(zip(distinct, self.allocate(len(distinct)), strict=True))
        for sequence, table in zip(sequences, self.pool.translate(tables, pages), strict=True):
            sequence.pages = table
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """One more table holds the pages, cached ones among them."""
        for page in pages:
            self.pool.hold(page)
            if self.prefix_cache is not None:
                self.prefix_cache.wake(page)

    def let_go(self, pages: list[int]) -> None:
        """A table lets go of the pages, the tail first; indexed ones stay as idle pages of the cache."""
        for page in reversed(pages):
            if self.pool.drop(page):
                continue
            if self.prefix_cache is not None and page in self.prefix_cache:
                self.prefix_cache.retire(page)
            else:
                self.pool.free(page)

    def release(self, sequence: Sequence) -> None:
        """Let go of every page of a sequence."""
        self.let_go(self.detach(sequence))

    def detach(self, sequence: Sequence) -> list[int]:
        """The block table of a sequence, which has it no longer; its pages are still held."""
        pages, sequence.pages = sequence.pages, []
        sequence.restart()
        return pages
