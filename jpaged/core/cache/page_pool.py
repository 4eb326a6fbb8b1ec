"""The fixed set of page ids, which are free, and how often each is held.

An id is either free or held, never both and never twice; page 0 (the null page) is nobody's.
"""

from collections.abc import Iterable, Mapping


class PagePool:
    """`num_pages` usable pages with the ids 1 .. num_pages, each with a count of its holders.

    A page whose count falls to 0 stays out of the free list until `free` is called: its contents may still be of
    use to a prefix cache, which then decides.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages={num_pages}: the pool needs at least one page")
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._is_free = [False] + [True] * num_pages
        self._ref_counts = [0] * (num_pages + 1)

    @property
    def num_free(self) -> int:
        """Pages in the free list."""
        return len(self._free)

    def ref_count(self, page: int) -> int:
        """How many block tables hold `page`."""
        return self._ref_counts[page]

    def allocate(self) -> int:
        """A page from the free list, now held once. The caller has checked `num_free`."""
        page = self._free.pop()
        self._is_free[page] = False
        self._ref_counts[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Count one more holder of a page that is not in the free list."""
        assert 0 < page <= self.num_pages and not self._is_free[page], f"page {page} is free or no page at all"
        self._ref_counts[page] += 1

    def drop(self, page: int) -> int:
        """Count one holder less and return how many are left."""
        assert self._ref_counts[page] > 0, f"page {page} is released by nobody who holds it"
        self._ref_counts[page] -= 1
        return self._ref_counts[page]

    def free(self, page: int) -> None:
        """Put a page that nobody holds back into the free list."""
        assert 0 < page <= self.num_pages and not self._is_free[page], f"page {page} is freed twice"
        assert self._ref_counts[page] == 0, f"page {page} is freed while {self._ref_counts[page]} hold it"
        self._is_free[page] = True
        self._free.append(page)

    def translate(self, tables: Iterable[Iterable[int]], pages: Mapping[int, int]) -> list[list[int]]:
        """The tables in the terms of this pool, whose `pages` have just been allocated: shared ones are held again."""
        made = [[pages[page] for page in table] for table in tables]
        seen: set[int] = set()
        for table in made:
            for page in table:
                if page in seen:
                    self.hold(page)
                seen.add(page)
        return made

    def check(self, held: Iterable[int], cached: Iterable[int]) -> None:
        """Assert I1 and I2 against what the tables (`held`, a page as often as held) and the cache say."""
        counts = [0] * (self.num_pages + 1)
        for page in held:
            counts[page] += 1
        assert counts == self._ref_counts, "ref counts differ from the block tables"
        assert len(set(self._free)) == len(self._free), "a page is twice in the free list"
        kept = {page for page in range(1, self.num_pages + 1) if counts[page]} | set(cached)
        assert not kept & set(self._free), "a page is both free and held"
        assert len(kept) + len(self._free) == self.num_pages, "a page is neither free nor held"
        assert self._ref_counts[0] == 0, "the null page is held"


def pages_for(num_tokens: int, page_size: int) -> int:
    """How many pages `num_tokens` tokens fill, the last one perhaps in part."""
    return -(-num_tokens // page_size)
