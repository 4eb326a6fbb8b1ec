"""Where KV lives: the only caller of PagePool, BlockTable, PrefixCache and SwapSpace.

Lives here: CacheManager: match, admit, grow, copy-on-write, fork, commit, release, swap, send, receive, pin.
Promises: a call that cannot be met changes nothing; a page that is written has one holder and is not indexed.
Must not know: who waits, who runs, what a step costs.
"""

from collections.abc import Callable, Iterable

from jpaged.config.engine import CacheConfig
from jpaged.core.cache.block_table import pages_for
from jpaged.core.cache.page_pool import PagePool
from jpaged.core.cache.prefix_cache import EvictionPolicy, PrefixCache, page_hash, root_hash
from jpaged.core.cache.swap_space import SwapSpace
from jpaged.core.requests.handoff import KVHandoff, PageMove
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import PageCopy, PageSwap


class CacheManager:
    """The pages of every sequence of an engine."""

    def __init__(self, config: CacheConfig, eviction_policy: EvictionPolicy | None = None) -> None:
        assert config.num_pages is not None, "the number of pages is resolved before the engine is built"
        self.page_size = config.page_size
        self.pool = PagePool(config.num_pages)
        self.prefix_cache = PrefixCache(eviction_policy) if config.enable_prefix_caching else None
        self.swap_space = SwapSpace(config.num_host_pages)
        self.pinned: dict[str, list[int]] = {}
        self.outgoing: dict[str, list[list[int]]] = {}
        self.num_page_copies = 0
        self.num_evictions = 0
        self.on_evict: Callable[[int], None] | None = None
        self.num_swapped_out = 0
        self.num_swapped_in = 0

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones and idle cached ones."""
        return self.pool.num_free + (self.prefix_cache.num_idle if self.prefix_cache else 0)

    @property
    def num_used(self) -> int:
        """Pages that some block table holds."""
        return self.pool.num_pages - self.num_available

    @property
    def num_pinned(self) -> int:
        """Pages that pinned prefixes hold."""
        return len({page for pages in self.pinned.values() for page in pages})

    @property
    def aside(self) -> set[int]:
        """Pages that no sequence here holds: of pinned prefixes, and of requests that were sent away."""
        outgoing = (page for tables in self.outgoing.values() for pages in tables for page in pages)
        return {page for pages in self.pinned.values() for page in pages}.union(outgoing)

    def num_cached_tokens(self, group: SequenceGroup) -> int:
        """How many of a waiting group's first tokens are in cached pages."""
        live = group.live
        return len(self.match(group, live[0])) * self.page_size if live else 0

    def match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """The cached pages of the sequence's longest known prefix, one token at least left to compute."""
        if self.prefix_cache is None or group.request.params.prompt_logprobs is not None:
            return []
        pages: list[int] = []
        for i in range((len(sequence.token_ids) - 1) // self.page_size):
            page = self.prefix_cache.find(self._page_hash(group, sequence, i))
            if page is None:
                break
            pages.append(page)
        return pages

    def pages_to_admit(self, group: SequenceGroup) -> int:
        """Pages that all known tokens of the group's live sequences fill, shared ones counted once."""
        live = group.live
        shared = live[0].prompt_len // self.page_size
        return shared + sum(pages_for(len(s.token_ids), self.page_size) - shared for s in live)

    def fits(self, group: SequenceGroup, reserve: int) -> bool:
        """Whether a waiting group can be admitted now, with `reserve` pages still available afterwards.

        A hit page that nobody holds is not counted as available.
        """
        hits = self._hits(group)
        idle_hits = sum(1 for page in hits if self.prefix_cache and self.prefix_cache.is_idle(page))
        return self.pages_to_admit(group) - len(hits) + reserve <= self.num_available - idle_hits

    def admit(self, group: SequenceGroup) -> None:
        """Give the parent of a group that fits pages for all its known tokens, cached ones first."""
        hits = self._hits(group)
        parent = group.live[0]
        end = len(parent.token_ids) if group.forked else parent.prompt_len
        self._hold_cached(hits)
        parent.num_computed = len(hits) * self.page_size
        parent.num_indexed = len(hits)
        parent.table.pages = hits
        hits.extend(self._take(pages_for(end, self.page_size) - len(hits)))

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens of a waiting group that are to be computed before it samples: its prompt once, less cached ones."""
        parent = group.live[0]
        end = len(parent.token_ids) if group.forked else parent.prompt_len
        return end - len(self._hits(group)) * self.page_size

    def pages_to_grow(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """Pages to take before each sequence can write its tokens up to its `end`, copies of shared pages included."""
        need = 0
        writers: dict[int, int] = {}
        for sequence, end in sequences:
            pages = sequence.table.pages
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
        pages, index = sequence.table.pages, position // self.page_size
        return index < len(pages) and self.pool.ref_count(pages[index]) == 1

    def grow(self, sequence: Sequence, end: int) -> tuple[int, PageCopy | None]:
        """Make the slots of positions [num_computed, end) the sequence's own; the caller has checked the room.

        Returns the first column of its table that changed and the page copy, if any, to make before the write.
        """
        pages = sequence.table.pages
        changed = len(pages)
        copy = None
        first = sequence.num_computed // self.page_size
        if first < changed and self.pool.ref_count(pages[first]) > 1:
            copy = PageCopy(pages[first], *self._take(1))
            self.pool.drop(copy.source)
            pages[first] = copy.target
            changed = first
            self.num_page_copies += 1
        pages.extend(self._take(max(0, pages_for(end, self.page_size) - len(pages))))
        return changed, copy

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` share every page of `parent`; nothing is allocated."""
        assert not child.table.pages
        for page in parent.table.pages:
            self.pool.hold(page)
        child.table.pages = list(parent.table.pages)
        child.num_computed = parent.num_computed
        child.num_indexed = parent.num_indexed
        # The parent's chain may go on over outputs of its own, which it had before a preemption.
        child.page_hashes = parent.page_hashes[: parent.num_computed // self.page_size]

    def replace_with_fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, which is given up, go on as a copy of `parent`, sharing every page."""
        self.release(child)
        self.fork(parent, child)

    def take_copies(self) -> list[PageCopy]:
        """None: the first write into a shared page copies it."""
        return []

    def commit(self, group: SequenceGroup, sequence: Sequence, num_written: int) -> None:
        """Index the full pages among the sequence's first `num_written` tokens, all of them written by now."""
        if self.prefix_cache is None:
            return
        for i in range(sequence.num_indexed, num_written // self.page_size):
            self.prefix_cache.add(self._page_hash(group, sequence, i), sequence.table.pages[i])
            sequence.num_indexed = i + 1

    def release(self, sequence: Sequence) -> None:
        """Let go of every page, the tail first; indexed ones stay as idle pages of the cache."""
        self._let_go(sequence.table.pages)
        sequence.table.pages = []
        sequence.num_computed = 0
        sequence.num_indexed = 0

    def swap_out(self, sequences: list[Sequence]) -> list[PageSwap] | None:
        """Move all pages of the sequences to the host, and let go of them here; None, and no change: no room there."""
        hosts = self.swap_space.store(sequences)
        if hosts is None:
            return None
        for sequence in sequences:
            computed = sequence.num_computed
            self.release(sequence)
            # A token whose successor is still being drawn is computed again, so that it is drawn again.
            sequence.num_computed = min(computed, len(sequence.token_ids) - 1)
        self.num_swapped_out += len(hosts)
        return [PageSwap(device, host) for device, host in hosts.items()]

    def can_swap_in(self, sequences: list[Sequence], reserve: int) -> bool:
        """Whether all pages of the sequences find room, with `reserve` pages still available afterwards."""
        return len({host for s in sequences for host in s.host_pages}) + reserve <= self.num_available

    def swap_in(self, sequences: list[Sequence]) -> list[PageSwap]:
        """Bring all pages of the sequences, which find room, back, shared as they were."""
        hosts = list(dict.fromkeys(host for s in sequences for host in s.host_pages))
        pages = dict(zip(hosts, self._take(len(hosts)), strict=True))
        seen: set[int] = set()
        for sequence in sequences:
            sequence.table.pages = [pages[host] for host in sequence.host_pages]
            for page in sequence.table.pages:
                if page in seen:
                    self.pool.hold(page)
                seen.add(page)
            self.swap_space.release(sequence)
        self.num_swapped_in += len(hosts)
        return [PageSwap(page, host) for host, page in pages.items()]

    def send(self, name: str, sequences: Iterable[Sequence]) -> None:
        """Take the pages of the sequences from them, and hold them until `sent(name)`: they are still to be copied."""
        assert name not in self.outgoing
        self.outgoing[name] = []
        for sequence in sequences:
            self.outgoing[name].append(sequence.table.pages)
            sequence.table.pages = []
            self.release(sequence)

    def sent(self, name: str) -> None:
        """Let go of the pages that `send` held; indexed ones stay cached."""
        for pages in self.outgoing.pop(name):
            self._let_go(pages)

    def can_receive(self, handoff: KVHandoff, reserve: int) -> bool:
        """Whether all pages of a handoff find room, with `reserve` pages still available afterwards."""
        return len(handoff.pages) + reserve <= self.num_available

    def receive(self, handoff: KVHandoff, sequences: Iterable[Sequence]) -> tuple[PageMove, ...]:
        """Give the sequences of a handoff, which finds room, pages, shared as they were; what is to be copied."""
        sources = handoff.pages
        pages = dict(zip(sources, self._take(len(sources)), strict=True))
        seen: set[int] = set()
        for sequence, handed in zip(sequences, handoff.sequences, strict=True):
            sequence.table.pages = [pages[source] for source in handed.pages]
            for page in sequence.table.pages:
                if page in seen:
                    self.pool.hold(page)
                seen.add(page)
        return tuple(PageMove(source, page) for source, page in pages.items())

    def pin(self, name: str, token_ids: tuple[int, ...], cache_salt: str | None = None) -> int:
        """Hold the cached pages of a prefix until `unpin(name)`; returns how many of its tokens they hold.

        Raises ValueError if the name is taken or there is no prefix cache.
        """
        self.check_pin(name)
        assert self.prefix_cache is not None
        pages: list[int] = []
        digest = root_hash(cache_salt)
        for i in range(len(token_ids) // self.page_size):
            digest = page_hash(digest, token_ids[i * self.page_size : (i + 1) * self.page_size])
            page = self.prefix_cache.find(digest)
            if page is None:
                break
            pages.append(page)
        self._hold_cached(pages)
        self.pinned[name] = pages
        return len(pages) * self.page_size

    def check_pin(self, name: str) -> None:
        """Raise ValueError if no prefix can be pinned under this name."""
        if self.prefix_cache is None:
            raise ValueError("a prefix can only be pinned with enable_prefix_caching=True")
        if name in self.pinned:
            raise ValueError(f"prefix {name!r} is pinned already: unpin it first, or choose another name")

    def unpin(self, name: str) -> None:
        """Let go of a pinned prefix; its pages stay cached. Raises ValueError if there is none of that name."""
        if name not in self.pinned:
            raise ValueError(f"prefix {name!r} is not pinned; pinned are: {', '.join(self.pinned) or 'none'}")
        self._let_go(self.pinned.pop(name))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that nobody holds."""
        if self.prefix_cache is not None:
            for page in self.prefix_cache.idle_pages:
                self.prefix_cache.forget(page)
                self.pool.free(page)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert I1 to I4 for the tables of all live sequences."""
        sequences = list(sequences)
        self.swap_space.check(sequences)
        tables = [*(sequence.table.pages for sequence in sequences), *self.pinned.values()]
        tables += (pages for sent in self.outgoing.values() for pages in sent)
        for pages in tables:
            assert len(set(pages)) == len(pages), "a block table holds a page twice"
        idle = self.prefix_cache.idle_pages if self.prefix_cache else ()
        self.pool.check((page for pages in tables for page in pages), idle)
        if self.prefix_cache is None:
            return
        self.prefix_cache.check()
        for sequence in sequences:
            first_open = sequence.num_computed // self.page_size
            for page in sequence.table.pages[first_open:]:
                assert page not in self.prefix_cache, f"page {page} is indexed but not wholly written"
        for page in range(1, self.pool.num_pages + 1):
            if page in self.prefix_cache:
                held = self.pool.ref_count(page) > 0
                assert held != self.prefix_cache.is_idle(page), f"page {page} is held and evictable, or neither"

    def _hits(self, group: SequenceGroup) -> list[int]:
        """The cached pages that a waiting group would begin with."""
        parent = group.live[0]
        end = len(parent.token_ids) if group.forked else parent.prompt_len
        # A page that the end of the prompt shares with the parent's outputs is no hit: every sibling writes into it.
        return self.match(group, parent)[: end // self.page_size]

    def _let_go(self, pages: list[int]) -> None:
        for page in reversed(pages):
            if self.pool.drop(page):
                continue
            if self.prefix_cache is not None and page in self.prefix_cache:
                self.prefix_cache.retire(page)
            else:
                self.pool.free(page)

    def _page_hash(self, group: SequenceGroup, sequence: Sequence, index: int) -> bytes:
        hashes = sequence.page_hashes
        while len(hashes) <= index:
            i = len(hashes)
            parent = hashes[-1] if hashes else root_hash(group.request.cache_salt)
            hashes.append(page_hash(parent, sequence.token_ids[i * self.page_size : (i + 1) * self.page_size]))
        return hashes[index]

    def _hold_cached(self, pages: list[int]) -> None:
        for page in pages:
            self.pool.hold(page)
            if self.prefix_cache is not None:
                self.prefix_cache.wake(page)

    def _take(self, count: int) -> list[int]:
        # All evictions come first: a policy that fails leaves no page in nobody's hands.
        while self.pool.num_free < count:
            assert self.prefix_cache is not None, "the caller has checked that the pages are available"
            page = self.prefix_cache.evict()
            self.pool.free(page)
            self.num_evictions += 1
            if self.on_evict is not None:
                self.on_evict(page)
        return [self.pool.allocate() for _ in range(count)]
