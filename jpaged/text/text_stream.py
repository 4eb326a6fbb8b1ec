"""Text that arrives a token at a time: whole characters, and stop strings.

The pieces join to the text, no piece is ever taken back, and the cost of a token does not grow with the text.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A character of UTF-8 is at most four bytes, so an unfinished one decodes to at most three U+FFFD (byte-level
# decoders give one for the lot, SentencePiece's byte fallback one a byte).
_MAX_INCOMPLETE = 3
# Ids of the prompt that give the first token its context, at most.
_MAX_CONTEXT = 7
# Ids decoded together, at most; reached only by long runs of broken bytes.
_MAX_WINDOW = 32


class Decoder(Protocol):
    """What a stream needs of a tokenizer. One that has `piece` too, as Tokenizer's, is asked far less to decode."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class TextStream:
    """The text of one sequence, as its tokens come.

    `prompt_token_ids` is context (whether the first word takes a space); its text is neither returned nor searched.
    `stop`: the text ends before the first of these strings to be completed (after it, with
    `include_stop_str_in_output`); of two completed by the same character, the longer. As in vLLM, a stop string counts
    only if it is completed by a token after the first `min_tokens`.
    """

    __slots__ = ("_characters", "_finished", "_min_tokens", "_num_tokens", "_stops")

    def __init__(
        self,
        tokenizer: Decoder,
        *,
        prompt_token_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(item, str) and item for item in stops):
            raise ValueError(f"stop={stop!r}: every entry must be a string that is not empty")
        self._characters = _CharacterStream(tokenizer, prompt_token_ids, skip_special_tokens)
        self._stops = _StopSearch(stops, include_stop_str_in_output)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._finished = False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    def push(self, token_id: int) -> str:
        """The text that became final with this token, often "". After a stop, "" for ever."""
        assert not self._finished, "push after finish"
        self._num_tokens += 1
        stops = self._stops
        if stops.matched is not None:
            return ""
        return stops.push(self._characters.push(token_id), self._may_stop)

    def finish(self) -> str:
        """What was still held back: an unfinished character (as U+FFFD), the beginning of a stop string. Then "".

        Look at `stopped` once more afterwards: the held text may complete a stop string that ends in U+FFFD.
        """
        if self._finished or self.stopped is not None:
            self._finished = True
            return ""
        self._finished = True
        last = self._stops.push(self._characters.finish(), self._may_stop)
        return last + self._stops.finish()

    @property
    def _may_stop(self) -> bool:
        return self._num_tokens > self._min_tokens


class _CharacterStream:
    """Ids in, whole characters out.

    Ids are decoded in a short window, because a token's text depends on its neighbours: characters span tokens, and
    some decoders drop the space before the first word. `tokenizers.decoders.DecodeStream` does this too, but wants a
    Rust tokenizer (slow ones, and fakes in tests, are none), cannot flush an unfinished tail, holds back whole tokens
    where one character is in doubt, and raises where a decoder changes its mind about earlier bytes.

    Invariants: `_sent` is the part of `_decoded`, the window's text, that needs no returning: it was returned, or it is
    context. The first `_settled` ids of the window have been returned completely.
    """

    __slots__ = ("_decoded", "_piece", "_sent", "_settled", "_skip_special_tokens", "_tokenizer", "_window")

    def __init__(self, tokenizer: Decoder, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._piece: Callable[[int, bool], str | None] | None = getattr(tokenizer, "piece", None)
        self._skip_special_tokens = skip_special_tokens
        self._window, self._decoded = self._context(prompt_token_ids)
        self._sent = self._decoded
        self._settled = len(self._window)

    def push(self, token_id: int) -> str:
        if self._piece is not None and self._whole:
            piece = self._piece(token_id, self._skip_special_tokens)
            if piece is not None:
                # Context for the next one that has no text of its own.
                self._window, self._sent, self._decoded, self._settled = [token_id], piece, piece, 1
                return piece
        return self._push_in_window(token_id)

    @property
    def _whole(self) -> bool:
        """Whether all of the window has been returned, and it does not end within a character."""
        settled = self._settled == len(self._window) and self._sent == self._decoded
        return settled and not self._decoded.endswith(REPLACEMENT)

    def _push_in_window(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        if self._adds_nothing(token_id, text):
            self._window.pop()
            return ""
        self._decoded = text
        complete = _without_incomplete_tail(text)
        start = self._sent_length()
        if start is not None:
            delta = complete[start:]
            self._sent = text[: max(start, len(complete))]
        elif complete == text or len(self._window) > _MAX_WINDOW:
            delta = self._decode(self._window[self._settled :])
            self._sent = text
        else:
            return ""
        if complete == text:
            self._settle()
        if len(self._window) > _MAX_WINDOW:
            self._shorten()
        return delta

    def finish(self) -> str:
        start = self._sent_length()
        if start is not None:
            return self._decoded[start:]
        return self._decode(self._window[self._settled :])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, self._skip_special_tokens)

    def _context(self, prompt_token_ids: Sequence[int]) -> tuple[list[int], str]:
        """The last ids of the prompt, from the start of a character on, and their text."""
        ids, text = list(prompt_token_ids[-_MAX_CONTEXT:]), ""
        for size in range(min(_MAX_CONTEXT - _MAX_INCOMPLETE, len(ids)), len(ids) + 1):
            window = ids[len(ids) - size :]
            text = self._decode(window)
            if text and not text.startswith(REPLACEMENT):
                return window, text
        return ids, text

    def _adds_nothing(self, token_id: int, text: str) -> bool:
        """True for one more token without text, such as a skipped EOS: a long run of them must not fill the window.

        Not so the second byte of a character, which leaves the text as it is but is U+FFFD alone. The first few such
        tokens stay, in case they are spaces that a decoder drops from an end of the text.
        """
        return text == self._decoded and len(self._window) > _MAX_CONTEXT and self._decode([token_id]) == ""

    def _sent_length(self) -> int | None:
        """How many characters of the window's text were sent; None if it no longer begins with what was sent.

        That happens in two ways. The prompt ended within a character, which the new tokens complete: it counts as
        theirs. Or a byte fallback decoder, to which one broken byte spoils the whole run of bytes around it, has seen
        the first half of a character: until the other half comes, all before it is U+FFFD.
        """
        for sent in (self._sent, _without_incomplete_tail(self._sent)):
            if self._decoded.startswith(sent):
                return len(sent)
        return None

    def _settle(self) -> None:
        """Forget the ids that came before the last settled ones: these are context enough."""
        window = self._window[self._settled :]
        text = self._decode(window)
        # Without text, only the older ids tell that a space must not be dropped. With U+FFFD first, the cut may be
        # within a character (the prompt's last), which would spoil a byte fallback decoder's run.
        if text and not text.startswith(REPLACEMENT):
            self._window, self._sent, self._decoded = window, text, text
        self._settled = len(self._window)

    def _shorten(self) -> None:
        """Halve a window that never came to an end of a character, keeping what is held back held back."""
        held = len(self._decoded) - len(self._sent)
        dropped = len(self._window) - _MAX_WINDOW // 2
        self._window = self._window[dropped:]
        self._settled = max(0, self._settled - dropped)
        self._decoded = self._decode(self._window)
        self._sent = self._decoded[: max(0, len(self._decoded) - held)]


class _StopSearch:
    """Text in, text out up to the first stop string; text that may be the beginning of one is held back.

    Invariant: `_held` is the longest end of the text seen that begins a stop string, so a match never starts before it.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, delta: str, may_stop: bool) -> str:
        if not delta or not self._stops:
            return delta
        text = self._held + delta
        match = self._first_match(text, len(self._held)) if may_stop else None
        if match is not None:
            end, start, self.matched = match
            self._held = ""
            return text[: end if self._include else start]
        keep = self._length_to_hold(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, seen: int) -> tuple[int, int, str] | None:
        """End, start and stop string of the first match that ends after the first `seen` characters."""
        found = []
        for stop in self._stops:
            start = text.find(stop, max(0, seen + 1 - len(stop)))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        return min(found, default=None)

    def _length_to_hold(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(len(stop) > size and stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0


def _without_incomplete_tail(text: str) -> str:
    """`text` less the U+FFFD at its end that may yet turn into a character."""
    end = len(text)
    while end > 0 and len(text) - end < _MAX_INCOMPLETE and text[end - 1] == REPLACEMENT:
        end -= 1
    return text[:end]
