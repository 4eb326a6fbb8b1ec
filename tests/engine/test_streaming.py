"""A stream gives, piece by piece, exactly what generate gives; whoever leaves early gives the pages back."""

import gc
from collections.abc import Generator
from typing import Any

import pytest

from jpaged import LLM, RequestOutput, SamplingParams
from jpaged.core.requests.response import CompletionDelta
from tests.engine.tiny import GREEDY, random_prompts, tiny_llm

PROMPTS = random_prompts(3, 4, 20, seed=5)
# Spaces, the bytes of "é", "世" and "😀", words and letters, so that characters and stop strings span tokens.
BYTES = dict.fromkeys((*range(70, 97), 3, 4, 5), 12.0)
SAMPLED = SamplingParams(temperature=2.0, seed=3, max_tokens=40, ignore_eos=True, logit_bias=BYTES)
THREE = SamplingParams(n=3, temperature=1.5, seed=3, max_tokens=24, logit_bias=BYTES)


def collect(
    stream: Generator[CompletionDelta, None, list[RequestOutput]],
) -> tuple[list[CompletionDelta], list[RequestOutput]]:
    """All deltas of a stream, and what it returns."""
    deltas = []
    while True:
        try:
            deltas.append(next(stream))
        except StopIteration as end:
            return deltas, end.value


def check(deltas: list[CompletionDelta], outputs: list[RequestOutput]) -> None:
    """The deltas join to the outputs; the finish of every sequence comes once, with its last delta."""
    for i, output in enumerate(outputs):
        assert output.finished
        for completion in output.outputs:
            parts = [delta for delta in deltas if (delta.prompt_index, delta.index) == (i, completion.index)]
            assert "".join(delta.text for delta in parts) == completion.text
            assert [token for delta in parts for token in delta.token_ids] == completion.token_ids
            assert [delta.finish_reason for delta in parts[:-1]] == [None] * (len(parts) - 1)
            assert parts[-1].finish_reason == completion.finish_reason is not None
            assert parts[-1].stop_reason == completion.stop_reason
            assert {delta.request_id for delta in parts} == {output.request_id}


def answers(outputs: list[RequestOutput]) -> list[list[tuple[Any, ...]]]:
    return [[(c.text, c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs] for output in outputs]


CASES = {
    "greedy": GREEDY,
    "broken characters": SAMPLED,
    "three samples": THREE,
    "one token": SamplingParams(max_tokens=1, seed=1),
    "stop strings": SamplingParams(n=3, seed=3, max_tokens=24, stop=["e", "世", "hello", " \ufffd"], logit_bias=BYTES),
    "a stop id": SamplingParams(n=3, seed=3, max_tokens=24, stop_token_ids=[84, 90], logit_bias=BYTES),
    "no text": SamplingParams(seed=3, max_tokens=8, detokenize=False),
    "special tokens": SamplingParams(seed=3, max_tokens=24, skip_special_tokens=False, logit_bias={1: 3.0, 2: 5.0}),
    "each its own": [GREEDY, THREE, SAMPLED],
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_joined_deltas_are_the_outputs_and_those_of_generate(llm: LLM, params: Any):
    deltas, outputs = collect(llm.stream(PROMPTS, params))
    check(deltas, outputs)
    assert answers(outputs) == answers(llm.generate(PROMPTS, params, use_tqdm=False))


def test_h3_no_piece_holds_half_a_character_of_what_becomes_one(llm: LLM):
    world = llm.get_tokenizer().encode("世")
    assert len(world) == 3
    bias = dict.fromkeys(world, 100.0)
    deltas, [output] = collect(llm.stream(PROMPTS[0], SamplingParams(seed=2, max_tokens=50, logit_bias=bias)))
    text = output.outputs[0].text
    assert set(text) - {"\ufffd"}
    assert text == llm.get_tokenizer().decode(output.outputs[0].token_ids)
    # Every U+FFFD that was sent is still there in the end.
    assert sum(delta.text.count("\ufffd") for delta in deltas) == text.count("\ufffd")


def test_a_stream_needs_no_tokenizer():
    llm = tiny_llm(num_pages=40, page_size=4)
    deltas, outputs = collect(llm.stream(PROMPTS, THREE))
    check(deltas, outputs)
    assert {completion.text for output in outputs for completion in output.outputs} == {""}
    assert all(delta.token_ids for delta in deltas)


def test_the_arguments_of_a_stream_are_checked_before_it_is_read(llm: LLM):
    with pytest.raises(ValueError, match="the model's ids are 0 to 96"):
        llm.stream([97], GREEDY)
    with pytest.raises(ValueError, match="is empty"):
        llm.stream("", GREEDY)


def test_a_stream_a_call_and_another_stream_share_one_engine(llm: LLM):
    want = answers(llm.generate(PROMPTS, THREE, use_tqdm=False))
    greedy = answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    first = llm.stream(PROMPTS, THREE)
    early = [next(first) for _ in range(5)]
    second = llm.stream(PROMPTS[:1], GREEDY)
    early_second = [next(second)]
    assert answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
    early += [next(first) for _ in range(3)]
    late, outputs = collect(first)
    check([*early, *late], outputs)
    assert answers(outputs) == want
    # The first stream has made the second's steps: its deltas wait for whoever reads it.
    late_second, outputs = collect(second)
    check([*early_second, *late_second], outputs)
    assert answers(outputs) == greedy[:1]


def test_two_streams_read_in_turns_give_what_each_gives_alone(llm: LLM):
    want = answers(llm.generate(PROMPTS[:2], SAMPLED, use_tqdm=False))
    streams = [llm.stream(prompt, SAMPLED) for prompt in PROMPTS[:2]]
    ids: list[list[int]] = [[], []]
    for pair in zip(*streams, strict=True):
        for taken, delta in zip(ids, pair, strict=True):
            taken += delta.token_ids
    assert ids == [sequences[0][1] for sequences in want]


@pytest.mark.parametrize("read", [0, 1, 5])
def test_a_stream_closed_early_gives_its_pages_back_and_leaves_others_alone(llm: LLM, read: int):
    want = answers(llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False))
    other = llm.stream(PROMPTS[0], GREEDY)
    next(other)
    stream = llm.stream(PROMPTS, THREE)
    for _ in range(read):
        next(stream)
    stream.close()
    assert llm.engine.scheduler.num_running == 1
    assert not llm.engine.scheduler.waiting
    deltas, outputs = collect(other)
    assert answers(outputs) == want
    assert {delta.finish_reason for delta in deltas[:-1]} == {None}


@pytest.mark.parametrize("read", [0, 4])
def test_a_stream_that_is_dropped_gives_its_pages_back(llm: LLM, read: int):
    stream = llm.stream(PROMPTS, THREE)
    for _ in range(read):
        next(stream)
    assert llm.engine.has_unfinished
    del stream
    gc.collect()
    assert not llm.engine.has_unfinished


def test_a_stream_that_was_read_to_its_end_leaves_nothing_behind(llm: LLM):
    collect(llm.stream(PROMPTS, THREE))
    assert not llm.loop._responses
    stream = llm.stream(PROMPTS, GREEDY)
    stream.close()
    stream.close()
    assert not llm.loop._responses
    assert list(stream) == []


def test_pieces_come_as_they_are_made(llm: LLM):
    before = llm.stats()["num_steps"]
    stream = llm.stream(PROMPTS[0], GREEDY)
    assert llm.stats()["num_steps"] == before
    for count in range(1, 5):
        next(stream)
        # A piece a step; the step after it may be under way already.
        assert before + count <= llm.stats()["num_steps"] <= before + count + 1
    stream.close()
