"""Requests that begin alike go to the same replica, which has their prefix in its cache.

Lives here: PrefixAffinity.
Promises: equal prefixes of full pages meet on one replica while it is not overloaded; what is remembered is bounded.
Must not know: what a replica's cache really holds.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from jpaged.config.declaration import require_int
from jpaged.core.cache.prefix_cache import page_hash, root_hash
from jpaged.core.requests.request import Request
from jpaged.fleet.load import ReplicaLoad


class PrefixAffinity:
    """The replica that was last given the longest known prefix of the prompt; else the one with the least to do.

    What everyone begins with, such as a system prompt, is no reason to send all to one: a prefix counts if it is at
    least `min_share` of the prompt's full pages.

    A prefix is told by the chained hash of its full pages of `page_size` tokens, the same as the prefix cache's, up to
    `max_pages` of them. A replica is overloaded, and passed over, if it has more than `factor` times the least load of
    any and `slack_tokens` besides. `max_prefixes` hashes are remembered, the latest used.
    """

    def __init__(
        self,
        page_size: int,
        *,
        max_pages: int = 1024,
        min_share: float = 0.25,
        factor: float = 1.25,
        slack_tokens: int = 8192,
        max_prefixes: int = 1 << 20,
    ) -> None:
        for name, value in (("page_size", page_size), ("max_pages", max_pages), ("max_prefixes", max_prefixes)):
            require_int(name, value, 1, None)
        require_int("slack_tokens", slack_tokens, 0, None)
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share={min_share!r}: a share of the prompt is between 0 and 1")
        if not factor >= 1:
            raise ValueError(f"factor={factor!r}: at least 1, or the least loaded replica would be overloaded")
        self._page_size = page_size
        self._max_pages = max_pages
        self._min_share = min_share
        self._factor = factor
        self._slack_tokens = slack_tokens
        self._max_prefixes = max_prefixes
        # Where each prefix went last, and which life of that replica it was: a failure empties a cache.
        self._went_to: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._given: dict[int, int] = {}

    def __call__(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """The index of the replica to choose."""
        hashes = list(self._hashes(request))
        index = self._where_known(hashes, replicas)
        if index is None:
            index = self._for_a_new_one(replicas)
        self._remember(hashes, replicas[index])
        self._given[replicas[index].number] = self._given.get(replicas[index].number, 0) + len(request.prompt_token_ids)
        return index

    def overloaded(self, replica: ReplicaLoad, replicas: Sequence[ReplicaLoad]) -> bool:
        """Whether the replica has so much more to do than another that a cached prefix is no reason to choose it."""
        least = min(other.tokens for other in replicas)
        return replica.tokens > self._factor * least + self._slack_tokens

    def _where_known(self, hashes: list[bytes], replicas: Sequence[ReplicaLoad]) -> int | None:
        places = {(replica.number, replica.life): i for i, replica in enumerate(replicas)}
        shortest = max(1, math.ceil(self._min_share * len(hashes)))
        for digest in reversed(hashes[shortest - 1 :]):
            index = places.get(self._went_to.get(digest, (-1, -1)))
            if index is not None and not self.overloaded(replicas[index], replicas):
                return index
        return None

    def _for_a_new_one(self, replicas: Sequence[ReplicaLoad]) -> int:
        """The least loaded; among equals, as idle ones are, whoever was given the fewest prompt tokens so far."""
        given = [self._given.get(replica.number, 0) for replica in replicas]
        return min(range(len(replicas)), key=lambda i: (replicas[i].tokens, given[i], i))

    def _remember(self, hashes: list[bytes], replica: ReplicaLoad) -> None:
        for digest in hashes:
            self._went_to[digest] = (replica.number, replica.life)
            self._went_to.move_to_end(digest)
        while len(self._went_to) > self._max_prefixes:
            self._went_to.popitem(last=False)

    def _hashes(self, request: Request) -> Iterator[bytes]:
        ids, size = request.prompt_token_ids, self._page_size
        digest = root_hash(request.cache_salt)
        for i in range(min(len(ids) // size, self._max_pages)):
            digest = page_hash(digest, ids[i * size : (i + 1) * size])
            yield digest
