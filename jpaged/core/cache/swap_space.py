"""The host's pool of page ids, where the KV of preempted sequences waits, and the way there and back.

A set of sequences goes out whole or not at all; a page that they share is stored once and shared again later.
"""

from collections.abc import Iterable

from jpaged.core.cache.page_pool import PagePool
from jpaged.core.cache.page_supply import PageSupply
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.sequence import Sequence


class SwapSpace:
    """`num_pages` host pages, for sequences whose device pages are of `supply`."""

    def __init__(self, num_pages: int, supply: PageSupply) -> None:
        self.num_pages = num_pages
        self.num_swapped_out = self.num_swapped_in = 0
        self._pool = PagePool(num_pages)
        self._supply = supply

    @property
    def num_free(self) -> int:
        """Host pages that hold nothing."""
        return self._pool.num_free

    def swap_out(self, sequences: list[Sequence]) -> bool:
        """Move all pages of the sequences to the host, and let go of them here; False, and no change: no room there."""
        pages = list(dict.fromkeys(page for s in sequences for page in s.pages))
        if len(pages) > self._pool.num_free:
            return False
        hosts = {page: self._pool.allocate() for page in pages}
        tables = self._pool.translate([s.pages for s in sequences], hosts)
        for sequence, host_pages in zip(sequences, tables, strict=True):
            sequence.host_pages = host_pages
            computed = sequence.num_computed
            self._supply.release(sequence)
            # A token whose successor is still being sampled is computed again, so that it is sampled again.
            sequence.restart(min(computed, len(sequence.token_ids) - 1))
        self.num_swapped_out += len(hosts)
        self._supply.moves += [PageMove(MoveKind.SWAP_OUT, page, host) for page, host in hosts.items()]
        return True

    def can_swap_in(self, sequences: list[Sequence], reserve: int) -> bool:
        """Whether all pages of the sequences find room, with `reserve` pages still available afterwards."""
        return len({host for s in sequences for host in s.host_pages}) + reserve <= self._supply.num_available

    def swap_in(self, sequences: list[Sequence]) -> None:
        """Bring all pages of the sequences, which find room, back, shared as they were."""
        pages = self._supply.allocate_as([s.host_pages for s in sequences], sequences)
        for sequence in sequences:
            self.discard(sequence)
        self.num_swapped_in += len(pages)
        self._supply.moves += [PageMove(MoveKind.SWAP_IN, host, page) for host, page in pages.items()]

    def discard(self, sequence: Sequence) -> None:
        """Let go of the host pages of a sequence that came back, or ended."""
        for host in sequence.host_pages:
            if self._pool.drop(host) == 0:
                self._pool.free(host)
        sequence.host_pages = []

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that the host pages are those that the swapped sequences hold, and no others."""
        self._pool.check((host for s in sequences for host in s.host_pages), ())
