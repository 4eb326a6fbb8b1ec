"""Prefixes of requests found in the pages of others: what is matched, what is indexed, what is pinned."""

from collections.abc import Iterable

from jpaged.core.cache.page_supply import PageSupply
from jpaged.core.cache.prefix_cache import PrefixCache, page_hash, root_hash
from jpaged.core.requests.sequence import Sequence, SequenceGroup


class Prefixes:
    """The prefix cache `index` of an engine with pages of `page_size` tokens, and who was asked to stay in it."""

    def __init__(self, index: PrefixCache, supply: PageSupply, page_size: int) -> None:
        self.pinned: dict[str, list[int]] = {}
        self._index = index
        self._supply = supply
        self._page_size = page_size

    @property
    def pinned_pages(self) -> set[int]:
        """Pages that pinned prefixes hold."""
        return {page for pages in self.pinned.values() for page in pages}

    def match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """The cached pages of the sequence's longest known prefix, one token at least left to compute."""
        if group.request.params.prompt_logprobs is not None:
            return []
        full = (len(sequence.token_ids) - 1) // self._page_size
        return self._found(self._page_hash(group, sequence, i) for i in range(full))

    def commit(self, group: SequenceGroup, sequence: Sequence, num_written: int) -> None:
        """Index the full pages among the sequence's first `num_written` tokens, all of them written by now."""
        end = num_written // self._page_size
        for i in range(sequence.num_indexed, end):
            self._index.add(self._page_hash(group, sequence, i), sequence.pages[i])
        sequence.index_to(end)

    def pin(self, name: str, token_ids: tuple[int, ...], cache_salt: str | None = None) -> int:
        """Hold the cached pages of a prefix until `unpin(name)`; returns how many of its tokens they hold.

        Raises ValueError if the name is in use.
        """
        self.check_pin(name)
        size, digest = self._page_size, root_hash(cache_salt)
        digests: list[bytes] = []
        for end in range(size, len(token_ids) + 1, size):
            digests.append(digest := page_hash(digest, token_ids[end - size : end]))
        pages = self.pinned[name] = self._found(digests)
        self._supply.hold(pages)
        return len(pages) * size

    def check_pin(self, name: str) -> None:
        """Raise ValueError if no prefix can be pinned under this name."""
        if name in self.pinned:
            raise ValueError(f"prefix {name!r} is pinned already: unpin it first, or choose another name")

    def unpin(self, name: str) -> None:
        """Let go of a pinned prefix; its pages stay cached. Raises ValueError if there is none of that name."""
        if name not in self.pinned:
            raise ValueError(f"prefix {name!r} is not pinned; pinned are: {', '.join(self.pinned) or 'none'}")
        self._supply.let_go(self.pinned.pop(name))

    def reset(self) -> None:
        """Forget every cached prefix that nobody holds."""
        for page in self._index.idle_pages:
            self._index.forget(page)
            self._supply.pool.free(page)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that indexed pages are wholly written, and either held or evictable."""
        self._index.check()
        for sequence in sequences:
            for page in sequence.pages[sequence.num_computed // self._page_size :]:
                assert page not in self._index, f"page {page} is indexed but not wholly written"
        for page in range(1, self._supply.pool.num_pages + 1):
            if page in self._index:
                held = self._supply.pool.ref_count(page) > 0
                assert held != self._index.is_idle(page), f"page {page} is held and evictable, or neither"

    def _found(self, digests: Iterable[bytes]) -> list[int]:
        """The pages of a chain, as far as it is cached."""
        pages: list[int] = []
        for digest in digests:
            page = self._index.find(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def _page_hash(self, group: SequenceGroup, sequence: Sequence, index: int) -> bytes:
        hashes = sequence.page_hashes
        while len(hashes) <= index:
            i = len(hashes)
            parent = hashes[-1] if hashes else root_hash(group.request.cache_salt)
            hashes.append(page_hash(parent, sequence.token_ids[i * self._page_size : (i + 1) * self._page_size]))
        return hashes[index]
