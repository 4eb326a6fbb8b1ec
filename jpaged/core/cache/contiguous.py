"""Runs of neighbouring pages: what systems before PagedAttention gave each sequence.

A run is given to one holder; what is freed can be given again, merged with its free neighbours.
"""

from typing import Protocol


class ContiguousAllocator(Protocol):
    """Gives runs of pages, named by their first address; addresses begin at 0."""

    num_pages: int

    @property
    def num_free(self) -> int:
        """Pages in no run."""
        ...

    def size_of(self, num_pages: int) -> int:
        """Pages that a run for `num_pages` takes, rounding included."""
        ...

    def how_many(self, num_pages: int, wanted: int) -> int:
        """How many runs for `num_pages` pages each can be had now, up to `wanted`."""
        ...

    def allocate(self, num_pages: int) -> int:
        """The first address of a run of at least `num_pages` pages. The caller has checked `how_many`."""
        ...

    def free(self, start: int) -> None:
        """Give a run back."""
        ...


class BuddyAllocator:
    """Runs of a power of two, split and merged by halves, up to `largest` pages.

    The pool is carved from address 0 on: as many runs of `largest` pages as there is room for, then of half as many,
    and so on. Among the free runs of a size the one freed last is given first; of a split one the lower half.
    """

    def __init__(self, num_pages: int, largest: int) -> None:
        self.num_pages = num_pages
        self.largest = _power_of_two(largest)
        self.num_free = num_pages
        self._free: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        start, size = 0, self.largest
        while size:
            self._free[size] = []
            while start + size <= num_pages:
                self._free[size].append(start)
                start += size
            self._free[size].reverse()
            size //= 2

    def size_of(self, num_pages: int) -> int:
        """Pages that a run for `num_pages` takes: the next power of two."""
        return _power_of_two(num_pages)

    def how_many(self, num_pages: int, wanted: int) -> int:
        """How many runs for `num_pages` pages each can be had now, up to `wanted`."""
        size = self.size_of(num_pages)
        found = 0
        while size <= self.largest and found < wanted:
            found += len(self._free[size]) * (size // self.size_of(num_pages))
            size *= 2
        return min(found, wanted)

    def allocate(self, num_pages: int) -> int:
        """The first address of a run of at least `num_pages` pages. The caller has checked `how_many`."""
        size = wanted = self.size_of(num_pages)
        while not self._free[size]:
            size *= 2
        start = self._free[size].pop()
        while size > wanted:
            size //= 2
            self._free[size].append(start + size)
        self._sizes[start] = size
        self.num_free -= size
        return start

    def free(self, start: int) -> None:
        """Give a run back, merged with its buddy while that is free and whole."""
        size = self._sizes.pop(start)
        self.num_free += size
        while size < self.largest and (buddy := start ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            start = min(start, buddy)
            size *= 2
        self._free[size].append(start)


class FirstFitAllocator:
    """Runs of exactly the pages asked for, each at the lowest address with room."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._runs: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Pages in no run."""
        return self.num_pages - sum(self._runs.values())

    def size_of(self, num_pages: int) -> int:
        """Pages that a run for `num_pages` takes: these."""
        return num_pages

    def how_many(self, num_pages: int, wanted: int) -> int:
        """How many runs for `num_pages` pages each can be had now, up to `wanted`."""
        return min(wanted, sum(room // num_pages for _, room in self._gaps()))

    def allocate(self, num_pages: int) -> int:
        """The first address of a run of `num_pages` pages. The caller has checked `how_many`."""
        start = next(start for start, room in self._gaps() if room >= num_pages)
        self._runs[start] = num_pages
        return start

    def free(self, start: int) -> None:
        """Give a run back."""
        del self._runs[start]

    def _gaps(self) -> list[tuple[int, int]]:
        """The free stretches: first address and pages."""
        gaps: list[tuple[int, int]] = []
        end = 0
        for start in sorted(self._runs):
            gaps.append((end, start - end))
            end = start + self._runs[start]
        gaps.append((end, self.num_pages - end))
        return gaps


def _power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << (value - 1).bit_length()
