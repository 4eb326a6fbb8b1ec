"""Which page holds the KV of which prefix: a chained hash of full, written pages, and the order of their eviction.

An entry is added only for a page all of whose slots are written; no entry survives its page's reuse.
"""

import hashlib
from array import array
from collections import abc
from typing import Protocol

# The hash is the identity of a prefix: 256 bits of SHA-256 over the parent's hash, the token ids and every tagged
# extra key. Two different prefixes are taken to have different hashes; contents are not compared.


def root_hash(cache_salt: str | None) -> bytes:
    """The parent of a sequence's first page: tagged, so that one kind of extra key cannot pass for another."""
    return b"" if cache_salt is None else hashlib.sha256(b"salt:" + cache_salt.encode(errors="surrogatepass")).digest()


def page_hash(parent: bytes, token_ids: abc.Sequence[int]) -> bytes:
    """The hash of a full page of token ids that comes after `parent`."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class EvictionPolicy(Protocol):
    """Chooses the cached page to give up."""

    def __call__(self, idle: abc.Sequence[int]) -> int:
        """One of the idle pages, which come in the order of their release, the least recent first."""
        ...


class PrefixCache:
    """The index of reusable pages, and which of them nobody holds, in the order in which they would be evicted.

    Least recently released first; whoever releases a table releases its tail first, so the end of a chain goes
    before its beginning. An eviction policy may choose otherwise.
    """

    def __init__(self, eviction_policy: EvictionPolicy | None = None) -> None:
        self._choose = eviction_policy
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def __contains__(self, page: int) -> bool:
        return page in self._hash_of

    @property
    def num_idle(self) -> int:
        """Indexed pages that no table holds: they can be evicted."""
        return len(self._idle)

    @property
    def idle_pages(self) -> tuple[int, ...]:
        """Those pages, the next victim first."""
        return tuple(self._idle)

    def find(self, digest: bytes) -> int | None:
        """The page that holds the prefix `digest`, or None."""
        return self._page_of.get(digest)

    def is_idle(self, page: int) -> bool:
        """Whether `page` is indexed and held by no table."""
        return page in self._idle

    def add(self, digest: bytes, page: int) -> None:
        """Index a full and written page; a prefix that already has a page keeps that one."""
        if digest not in self._page_of and page not in self._hash_of:
            self._page_of[digest] = page
            self._hash_of[page] = digest

    def wake(self, page: int) -> None:
        """A table takes hold of `page` again."""
        self._idle.pop(page, None)

    def retire(self, page: int) -> None:
        """The last table let go of the indexed `page`: it becomes the last in the order of eviction."""
        assert page in self._hash_of
        self._idle[page] = None

    def evict(self) -> int:
        """Forget the page whose turn it is and return it. The caller has checked `num_idle`."""
        page = next(iter(self._idle)) if self._choose is None else self._choose(tuple(self._idle))
        if page not in self._idle:
            raise ValueError(f"eviction_policy chose the page {page}, which is not one of the idle pages it was given")
        self.forget(page)
        return page

    def forget(self, page: int) -> None:
        """Take an idle page out of the index."""
        del self._idle[page]
        del self._page_of[self._hash_of.pop(page)]

    def check(self) -> None:
        """Assert that the two directions of the index agree and that only indexed pages are idle."""
        assert {page: digest for digest, page in self._page_of.items()} == self._hash_of
        assert self._idle.keys() <= self._hash_of.keys()
