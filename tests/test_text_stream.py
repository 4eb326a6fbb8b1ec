"""jpaged.text.text_stream on fake byte tokens and on the decoders of the tokenizers library.

Promises: needs no model and no file.
Must not know: any real vocabulary.
"""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from jpaged.text.text_stream import TextStream

REPLACEMENT = "\ufffd"


class ByteTokens:
    """A decoder whose token i stands for the bytes pieces[i]; those in `special` are skipped on request."""

    def __init__(self, pieces: Sequence[bytes], special: Sequence[int] = ()) -> None:
        self.pieces = [bytes(piece) for piece in pieces]
        self.special = set(special)
        self.longest = 0  # most ids ever decoded in one call

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.longest = max(self.longest, len(ids))
        kept = [index for index in ids if not (skip_special_tokens and index in self.special)]
        return b"".join(self.pieces[index] for index in kept).decode("utf-8", errors="replace")


class SentencePieceTokens:
    """A decoder as LLaMA's: ▁ is a space, <0xNN> a byte, the first space is dropped; ids index `vocab`."""

    def __init__(self, vocab: Sequence[str]) -> None:
        self.vocab = list(dict.fromkeys(vocab))
        self.longest = 0
        self._tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(self.vocab)}, merges=[]))
        self._tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.longest = max(self.longest, len(ids))
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def ids(self, *pieces: str) -> list[int]:
        return [self.vocab.index(piece) for piece in pieces]


class ScriptedTexts:
    """A decoder that knows only how many ids it is given: the n-th text for n ids."""

    def __init__(self, *texts: str) -> None:
        self.texts = ("", *texts)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.texts[len(ids)]


class Joined(TextStream):
    """A stream that keeps all the text it has given."""

    text = ""

    def push(self, token_id: int) -> str:
        delta = super().push(token_id)
        self.text += delta
        return delta

    def finish(self) -> str:
        delta = super().finish()
        self.text += delta
        return delta


def stream_of(*pieces: bytes | str, **options) -> tuple[Joined, list[str]]:
    """A stream fed with one token a piece, and the pieces of text it returned, `finish` last."""
    tokens = ByteTokens([piece.encode() if isinstance(piece, str) else piece for piece in pieces])
    stream = Joined(tokens, **options)
    deltas = [stream.push(index) for index in range(len(pieces))]
    return stream, [*deltas, stream.finish()]


def byte_tokens(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


# --- characters -----------------------------------------------------------------------------------------------------


def test_a_character_of_two_tokens_comes_whole_with_the_second():
    _, deltas = stream_of(b"\xe4", b"\xb8\x96")
    assert deltas == ["", "世", ""]


def test_an_emoji_of_three_tokens_comes_whole_with_the_third():
    _, deltas = stream_of("a", b"\xf0\x9f", b"\x99", b"\x82", "b")
    assert deltas == ["a", "", "", "🙂", "b", ""]


def test_whole_characters_before_an_unfinished_one_are_not_held_back():
    _, deltas = stream_of("A 世".encode() + b"\xf0", b"\x9f\x99\x82")
    assert deltas == ["A 世", "🙂", ""]


def test_a_decoder_whose_tail_stays_in_doubt_gives_each_character_once():
    stream = Joined(ScriptedTexts("A 世" + REPLACEMENT, "A 世a" + REPLACEMENT, "A 世ab"))
    assert [stream.push(0) for _ in range(3)] == ["A 世", "a", "b"]
    assert stream.text == "A 世ab"


def test_an_unfinished_character_at_the_end_is_flushed_once():
    stream, deltas = stream_of("ok", b"\xf0\x9f", b"\x99")
    assert deltas == ["ok", "", "", REPLACEMENT]
    assert stream.finish() == ""
    assert stream.text == "ok" + REPLACEMENT


def test_broken_bytes_become_replacement_characters_as_in_the_whole_text():
    _, deltas = stream_of("a", b"\xff", b"\xc3", "b", b"\x80", "c")
    assert "".join(deltas) == b"a\xff\xc3b\x80c".decode("utf-8", errors="replace")
    assert deltas[:3] == ["a", "", ""]


def test_a_replacement_character_that_was_meant_is_kept():
    _, deltas = stream_of("x", REPLACEMENT, "y")
    assert "".join(deltas) == f"x{REPLACEMENT}y"


def test_special_tokens_within_a_character_do_not_break_it():
    tokens = ByteTokens([b"\xe4", b"<eos>", b"\xb8\x96"], special=[1])
    stream = Joined(tokens)
    assert [stream.push(i) for i in (0, 1, 1, 2)] == ["", "", "", "世"]


def test_special_tokens_are_text_when_they_are_not_skipped():
    tokens = ByteTokens([b"a", b"<eos>"], special=[1])
    assert "".join(map(Joined(tokens, skip_special_tokens=False).push, [0, 1])) == "a<eos>"
    assert "".join(map(Joined(tokens).push, [0, 1])) == "a"


@given(text=st.text(), cuts=st.lists(st.integers(0, 10_000)), prompt=st.text(max_size=4))
@example(text="世" * 60, cuts=[2 + 3 * i for i in range(60)], prompt="")  # every token ends within a character
@example(text="世" * 12, cuts=[*range(1, 36, 3), 35], prompt="")  # ... and the last but one leaves the text as it is
@example(text=REPLACEMENT * 100, cuts=list(range(300)), prompt=REPLACEMENT)
def test_the_pieces_join_to_the_whole_text_and_show_no_unfinished_character(text: str, cuts: list[int], prompt: str):
    pieces = [prompt.encode(), *byte_tokens(text.encode(), cuts)]
    stream = Joined(ByteTokens(pieces), prompt_token_ids=[0])
    deltas = []
    for index in range(1, len(pieces)):
        deltas.append(stream.push(index))
        assert stream.text == "".join(deltas)
        assert text.startswith(stream.text)
    assert "".join(deltas) + stream.finish() == text == stream.text


@given(data=st.binary(), cuts=st.lists(st.integers(0, 10_000)))
@example(data=b"\xff" * 90, cuts=list(range(90)))
@example(data=b"\xe4\xb8" * 60, cuts=list(range(120)))
def test_bytes_that_are_not_unicode_stream_as_they_decode(data: bytes, cuts: list[int]):
    stream, deltas = stream_of(*byte_tokens(data, cuts))
    assert "".join(deltas) == stream.text == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"word "] * 3000,
        [b"\x96\xe4\xb8"] * 3000,
        [b"\xff"] * 3000,
        [REPLACEMENT.encode()] * 3000,
        [b"\xe4"] + [b""] * 3000,
        [b""] * 3000,
    ],
    ids=["words", "never at the end of a character", "broken", "replacement characters", "stuck", "no text"],
)
def test_the_ids_decoded_for_a_token_do_not_grow_with_the_text(pieces: list[bytes]):
    tokens = ByteTokens(pieces)
    stream = Joined(tokens)
    out = "".join(stream.push(i) for i in range(len(pieces))) + stream.finish()
    assert tokens.longest <= 33
    assert out == b"".join(pieces).decode("utf-8", errors="replace")


# --- context --------------------------------------------------------------------------------------------------------


def test_the_prompt_is_context_but_not_text():
    tokens = SentencePieceTokens(["▁Hello", "▁world"])
    assert Joined(tokens, prompt_token_ids=tokens.ids("▁Hello")).push(1) == " world"
    assert Joined(tokens).push(1) == "world"


def test_a_character_begun_by_the_prompt_belongs_to_the_token_that_completes_it():
    tokens = ByteTokens([b"\xe4", b"\xb8", b"\x96", b"a"])
    stream = Joined(tokens, prompt_token_ids=[3, 0])
    assert [stream.push(i) for i in (1, 2, 3)] == ["", "世", "a"]


def test_a_broken_end_of_the_prompt_is_not_text():
    tokens = ByteTokens([b"\xe4", b"a"])
    stream = Joined(tokens, prompt_token_ids=[1, 0])
    assert stream.push(1) + stream.finish() == "a"


def test_a_long_prompt_is_not_decoded():
    tokens = ByteTokens([b"word "])
    Joined(tokens, prompt_token_ids=[0] * 10_000).push(0)
    assert tokens.longest <= 8


def test_spaces_at_the_start_stream_as_they_decode():
    tokens = SentencePieceTokens(["▁", "▁a", "▁▁"])
    for pieces in itertools.product(tokens.vocab, repeat=4):
        ids = tokens.ids(*pieces)
        stream = Joined(tokens)
        assert "".join(map(stream.push, ids)) + stream.finish() == tokens.decode(ids)


@given(text=st.text("ab 世é🙂", max_size=60), prompt=st.text("a世🙂", max_size=4))
@example(text="世🙂" * 40, prompt="🙂世")
def test_byte_fallback_text_streams_as_it_decodes(text: str, prompt: str):
    def pieces(of: str) -> list[str]:
        in_vocab = {"a": ["a"], "b": ["b"], " ": ["▁"]}
        spelled = [in_vocab.get(char) or [f"<0x{byte:02X}>" for byte in char.encode()] for char in of]
        return list(itertools.chain.from_iterable(spelled))

    tokens = SentencePieceTokens(["x", *pieces("ab 世é🙂")])
    before = tokens.ids("x", *pieces(prompt))
    stream = Joined(tokens, prompt_token_ids=before)
    deltas = [stream.push(index) for index in tokens.ids(*pieces(text))]
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert "".join(deltas) + stream.finish() == text


def test_a_broken_byte_does_not_take_back_the_byte_fallback_characters_before_it():
    tokens = SentencePieceTokens([*(f"<0x{byte:02X}>" for byte in "世".encode()), "a"])
    stream = Joined(tokens)
    deltas = [stream.push(index) for index in (0, 1, 2, 0, 3)]
    assert deltas == ["", "", "世", "", REPLACEMENT + "a"]
    assert stream.finish() == ""


def test_a_long_run_of_broken_bytes_is_neither_held_for_ever_nor_read_again_and_again():
    tokens = SentencePieceTokens([*(f"<0x{byte:02X}>" for byte in "世".encode()), "a"])
    stream = Joined(tokens)
    deltas = [stream.push(index) for index in [0, 1, 2, *[0] * 100, 3]]
    assert "".join(deltas) == "世" + REPLACEMENT * 100 + "a"
    assert "".join(deltas[:60]).startswith("世" + REPLACEMENT)
    assert tokens.longest <= 33


def test_a_byte_fallback_character_begun_by_the_prompt_does_not_spoil_those_after_it():
    tokens = SentencePieceTokens([*(f"<0x{byte:02X}>" for byte in "世".encode()), "a"])
    stream = Joined(tokens, prompt_token_ids=[3, 0])
    assert [stream.push(index) for index in (1, 2, 0, 1, 2, 0, 1, 2)] == ["", "世", "", "", "世", "", "", "世"]


def test_spaces_that_a_decoder_drops_at_both_ends_come_with_the_next_word():
    class Stripped(ByteTokens):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            return super().decode(ids, skip_special_tokens).strip()

    stream = Joined(Stripped([b"a", b" "]))
    assert [stream.push(index) for index in (0, 1, 1, 0, 1, 0)] == ["a", "", "", "  a", "", " a"]


# --- stop strings ---------------------------------------------------------------------------------------------------


def test_a_stop_string_over_several_tokens_never_shows():
    stream, deltas = stream_of("DEF", "G", "HI", "J", stop=["DEFGHIJ"])
    assert deltas == [""] * 5
    assert stream.stopped == "DEFGHIJ"
    assert stream.text == ""


def test_a_stop_string_within_one_token_cuts_it():
    stream, deltas = stream_of("x\n\ny", stop=["\n\n"])
    assert deltas == ["x", ""]
    assert stream.stopped == "\n\n"


def test_the_earliest_of_two_stop_strings_wins_whatever_their_order():
    for stop in (["world", "lo"], ["lo", "world"]):
        stream, _ = stream_of("hello world", stop=stop)
        assert (stream.text, stream.stopped) == ("hel", "lo")


def test_of_two_stop_strings_that_end_together_the_longer_wins():
    stream, _ = stream_of("x", "ab", stop=["b", "ab"])
    assert (stream.text, stream.stopped) == ("x", "ab")


def test_a_stop_string_is_found_behind_a_false_start():
    stream, deltas = stream_of("a", "a", "b", "c", stop=["ab"])
    assert deltas == ["", "a", "", "", ""]
    assert (stream.text, stream.stopped) == ("a", "ab")
    assert stream_of("aab", stop=["ab"])[0].text == "a"


def test_held_text_is_released_when_the_match_fails():
    _, deltas = stream_of("DE", "F", "X", stop=["DEFG"])
    assert deltas == ["", "", "DEFX", ""]


def test_held_text_is_released_at_the_end():
    stream, deltas = stream_of("ab", "DEF", stop=["DEFG"])
    assert deltas == ["ab", "", "DEF"]
    assert stream.stopped is None


def test_the_stop_string_can_be_kept():
    stream, deltas = stream_of("a ST", "OP b", stop=["STOP"], include_stop_str_in_output=True)
    assert deltas == ["a ", "STOP", ""]
    assert stream.text == "a STOP"


def test_a_stop_string_may_end_within_a_token_and_begin_within_a_character():
    stream, _ = stream_of("x" + "世".encode().decode(), b"\xe4\xb8", b"\x96!", stop=["世!"])
    assert (stream.text, stream.stopped) == ("x世", "世!")


def test_tokens_after_a_stop_give_nothing():
    stream, deltas = stream_of("a", "STOP", "b", stop=["STOP"])
    assert deltas == ["a", "", "", ""]
    assert stream.text == "a"


def test_the_prompt_is_not_searched_for_stop_strings():
    tokens = ByteTokens([b"ST", b"OP"])
    stream = Joined(tokens, prompt_token_ids=[0], stop=["STOP"])
    assert stream.push(1) == "OP"
    assert stream.stopped is None


def test_a_stop_string_completed_within_min_tokens_does_not_count():
    stream, _ = stream_of("ab", "c", "ab", "d", stop=["ab"], min_tokens=1)
    assert (stream.text, stream.stopped) == ("abc", "ab")
    stream, _ = stream_of("ab", "c", stop=["ab"], min_tokens=2)
    assert (stream.text, stream.stopped) == ("abc", None)


def test_a_stop_string_completed_within_min_tokens_does_not_count_later_either():
    stream, _ = stream_of("ab", "x", "y", stop=["ab", "abc"], min_tokens=1)
    assert (stream.text, stream.stopped) == ("abxy", None)


def test_a_stop_string_begun_within_min_tokens_counts_when_completed_after_it():
    stream, _ = stream_of("xa", "b", stop=["ab"], min_tokens=1)
    assert (stream.text, stream.stopped) == ("x", "ab")


def test_a_stop_string_that_ends_in_an_unfinished_character_counts_at_the_end():
    stream, deltas = stream_of("a", b"\xe4", stop=["a" + REPLACEMENT])
    assert deltas == ["", "", ""]
    assert stream.stopped == "a" + REPLACEMENT


@pytest.mark.parametrize("stop", [[""], ["a", ""], [3]])
def test_an_empty_stop_string_is_refused(stop: list):
    with pytest.raises(ValueError, match="not empty"):
        Joined(ByteTokens([b"a"]), stop=stop)


def test_one_stop_string_is_not_taken_for_its_characters():
    stream, _ = stream_of("a", "STOP", stop="STOP")
    assert (stream.text, stream.stopped) == ("a", "STOP")


def cut_at_first_completed(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """What one-character tokens would give: the definition that a stream must meet for any tokens."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(
    text=st.text("ab世", max_size=40),
    cuts=st.lists(st.integers(0, 200)),
    stops=st.lists(st.text("ab世", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_where_the_text_stops_does_not_depend_on_the_tokens(
    text: str, cuts: list[int], stops: list[str], include: bool
):
    stream, deltas = stream_of(*byte_tokens(text.encode(), cuts), stop=stops, include_stop_str_in_output=include)
    assert ("".join(deltas), stream.stopped) == cut_at_first_completed(text, stops, include)
    assert stream.text == "".join(deltas)
