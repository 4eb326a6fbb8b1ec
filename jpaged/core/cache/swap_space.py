"""The host's pool of pages: where the KV of preempted sequences waits.

Lives here: SwapSpace: host page ids, and which of them hold what of which sequence.
Promises: a set of sequences goes out whole or not at all; a page they share is stored once and shared again later.
Must not know: device pages' ref counts, arrays, when anything is copied.
"""

from collections.abc import Iterable

from jpaged.core.cache.page_pool import PagePool
from jpaged.core.requests.sequence import Sequence


class SwapSpace:
    """`num_pages` host pages, perhaps none."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._pool = PagePool(num_pages) if num_pages else None

    @property
    def num_free(self) -> int:
        """Host pages that hold nothing."""
        return self._pool.num_free if self._pool else 0

    def store(self, sequences: list[Sequence]) -> dict[int, int] | None:
        """Give every distinct page of the sequences a host page; the map from device to host, or None: no room."""
        pages = list(dict.fromkeys(page for s in sequences for page in s.table.pages))
        if self._pool is None or len(pages) > self._pool.num_free:
            return None
        hosts = {page: self._pool.allocate() for page in pages}
        seen: set[int] = set()
        for sequence in sequences:
            sequence.host_pages = [hosts[page] for page in sequence.table.pages]
            for host in sequence.host_pages:
                if host in seen:
                    self._pool.hold(host)
                seen.add(host)
        return hosts

    def release(self, sequence: Sequence) -> None:
        """Let go of the host pages of a sequence that came back, or ended."""
        for host in sequence.host_pages:
            assert self._pool is not None, "a sequence is swapped out to no pool"
            if self._pool.drop(host) == 0:
                self._pool.free(host)
        sequence.host_pages = []

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that the host pages are those that the swapped sequences hold, and no others."""
        if self._pool is not None:
            self._pool.check((host for s in sequences for host in s.host_pages), ())
