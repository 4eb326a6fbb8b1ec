"""What the clients of a Rig have seen, and whether it is right.

Lives here: Track, Clients: deltas in, compared with the cache-free oracles when a sequence ends.
Promises: no token, log probability or end is lost, doubled or out of order; `texts` names every known prefix by hash.
Must not know: engines, pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from beam_oracle import beam_oracle
from oracle_executor import oracle, oracle_prompt_logprobs

from jpaged.core.cache.prefix_cache import page_hash, root_hash
from jpaged.core.plan import Hypothesis, SequenceDelta, TokenLogprobs
from jpaged.core.requests.request import FinishReason, Request


@dataclass(slots=True)
class Track:
    """What a client has seen of one sequence."""

    request: Request
    max_len: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    hypothesis: Hypothesis | None = None
    page_hashes: list[bytes] = field(default_factory=list)


class Clients:
    """The clients of an engine with pages of `page_size` tokens and `vocab_size` ids."""

    def __init__(self, page_size: int, vocab_size: int) -> None:
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.tracks: dict[tuple[str, int], Track] = {}
        self.prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        self.events: list[list[SequenceDelta]] = []
        self.texts: dict[bytes, tuple[int, ...]] = {}

    def add(self, request: Request, max_len: int) -> None:
        """Wait for the answers to a request, whose sequences end at `max_len` tokens."""
        for index in range(request.width):
            track = self.tracks[request.request_id, index] = Track(request, max_len)
            self._learn_more(track)

    def take(self, deltas: list[SequenceDelta]) -> None:
        """Take in what a step gave, or an end."""
        self.events.append(deltas)
        for delta in deltas:
            track = self.tracks[delta.request_id, delta.index]
            assert track.finish_reason is None, "a delta came after the end"
            if delta.token_id is not None:
                track.token_ids.append(delta.token_id)
                track.logprobs.append(delta.logprobs)
                self._learn_more(track)
            if delta.prompt_logprobs is not None:
                assert delta.request_id not in self.prompt_logprobs, "prompt logprobs came twice"
                self.prompt_logprobs[delta.request_id] = delta.prompt_logprobs
            track.finish_reason, track.stop_reason = delta.finish_reason, delta.stop_reason
            if delta.hypothesis is not None:
                track.token_ids, track.hypothesis = list(delta.hypothesis.token_ids), delta.hypothesis
        for delta in deltas:
            if delta.hypothesis is not None and delta.index == 0:
                self._check_search(delta.request_id)
            elif delta.finish_reason is not None and delta.hypothesis is None:
                self._check_answer(self.tracks[delta.request_id, delta.index], delta)

    def learn(self, text: Sequence[int], salt: str | None, known: list[bytes] | None = None) -> None:
        """Note the hash of every full page of a text, with the text up to there; `known` are the first hashes."""
        hashes, size = [] if known is None else known, self.page_size
        while (end := (len(hashes) + 1) * size) <= len(text):
            hashes.append(page_hash(hashes[-1] if hashes else root_hash(salt), text[end - size : end]))
            self.texts[hashes[-1]] = tuple(text[:end])

    def _learn_more(self, track: Track) -> None:
        request = track.request
        self.learn((*request.prompt_token_ids, *track.token_ids), request.cache_salt, track.page_hashes)

    def _check_answer(self, track: Track, delta: SequenceDelta) -> None:
        request, index = track.request, delta.index
        if request.beam is not None:
            assert not track.token_ids, "a search that was ended from outside has shown something"
            return
        right = oracle(request, index, track.max_len, self.vocab_size)
        count = len(track.token_ids)
        assert track.token_ids == right.token_ids[:count], f"{request.request_id}/{index} differs from the oracle"
        assert track.logprobs == right.logprobs[:count]
        if delta.token_id is not None:
            assert count == len(right.token_ids), "it ended before or after its time"
            assert track.finish_reason == right.finish_reason
        if request.params.prompt_logprobs is not None and track.token_ids:
            assert list(self.prompt_logprobs[request.request_id]) == oracle_prompt_logprobs(request)

    def _check_search(self, request_id: str) -> None:
        request = self.tracks[request_id, 0].request
        tracks = [self.tracks[request_id, index] for index in range(request.width)]
        right = beam_oracle(request, tracks[0].max_len, self.vocab_size)
        found = [track.hypothesis for track in tracks]
        assert None not in found, "a beam ended without its hypothesis"
        assert [h.token_ids for h in found if h] == [h.token_ids for h in right], (
            f"{request_id} differs from the oracle"
        )
        assert [(h.score, h.cumulative_logprob, h.finish_reason) for h in found if h] == [
            (h.score, h.total, h.finish_reason) for h in right
        ]
        assert len({h.token_ids for h in right}) == len(right), "a hypothesis came twice"
