"""SamplingParams and BeamSearchParams: what is wrong is refused in one line that names the field."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from jpaged.core.requests.sampling_params import MAX_LOGIT_BIAS, BeamSearchParams, SamplingParams

NAN, INF = math.nan, math.inf
NOT_A_NUMBER = [NAN, INF, -INF, True, False, "1", None, [1], 1j, 10**400, -(10**400)]
NOT_AN_INTEGER = [1.0, 1.5, NAN, INF, True, False, "1", [1], b"1"]

BAD: list[tuple[str, list[Any]]] = [
    ("temperature", [*NOT_A_NUMBER, -0.1, 2.1]),
    ("top_p", [*NOT_A_NUMBER, 0, 0.0, -0.1, 1.01]),
    ("min_p", [*NOT_A_NUMBER, -0.1, 1.01]),
    ("presence_penalty", [*NOT_A_NUMBER, -2.1, 2.1]),
    ("frequency_penalty", [*NOT_A_NUMBER, -2.1, 2.1]),
    ("repetition_penalty", [*NOT_A_NUMBER, 0, 0.0, -1.0, 101.0]),
    ("n", [*NOT_AN_INTEGER, None, 0, -1, 10**7]),
    ("top_k", [*NOT_AN_INTEGER, None, -2]),
    ("seed", [*NOT_AN_INTEGER, -2, 2**63]),
    ("max_tokens", [*NOT_AN_INTEGER, 0, -1]),
    ("min_tokens", [*NOT_AN_INTEGER, None, -1, 17]),
    ("logprobs", [*NOT_AN_INTEGER, -1, 21]),
    ("prompt_logprobs", [*NOT_AN_INTEGER, -1, 21]),
    ("stop", ["", [""], ["a", ""], [1], [None], 1, b"x", {"a"}, {"a": 1}, ["a"] * 65]),
    ("stop_token_ids", [*[[x] for x in NOT_AN_INTEGER], [None], [-1], 5, "5", {5}, list(range(61))]),
    ("logit_bias", [5, "5", [(1, 2)], {1}, {"1": 1.0}, {1.0: 1.0}, {True: 1.0}, {-1: 1.0}]),
    ("logit_bias", [{3: value} for value in NOT_A_NUMBER]),
    ("logit_bias", [dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)]),
    *(
        (name, [0, 1, "True", None, NAN])
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
    ),
]


def message_of(kind: type, **fields: Any) -> str:
    """The text of the ValueError that these fields give."""
    with pytest.raises(ValueError, match=r".") as caught:
        kind(**fields)
    assert type(caught.value) is ValueError
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD for value in values], ids=lambda x: repr(x)[:20]
)
def test_a_bad_value_is_refused_in_one_line_that_names_the_field_and_the_remedy(name: str, value: Any) -> None:
    text = message_of(SamplingParams, **{name: value})
    assert text.startswith(name)
    assert "\n" not in text and len(text) < 400
    assert any(word in text for word in ("must be", "use ", "give ")), text


def test_more_than_ten_million_biases_are_refused_without_being_looked_at() -> None:
    class Huge(Mapping[int, float]):
        def __len__(self) -> int:
            return 10**7

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("the entries were read")

        def __getitem__(self, key: int) -> float:
            raise AssertionError("the entries were read")

    assert "10000000 entries" in message_of(SamplingParams, logit_bias=Huge())


def test_a_long_value_is_not_printed_in_full() -> None:
    assert len(message_of(SamplingParams, logit_bias=[0] * 10**5)) < 400
    assert len(message_of(SamplingParams, stop=["a"] * 10**5 + [""])) < 400
    assert len(message_of(SamplingParams, temperature="9" * 10**5)) < 400


def test_a_value_of_several_lines_gives_a_message_of_one() -> None:
    class Array:
        def __repr__(self) -> str:
            return "[[1,\n  2]]"

    assert "\n" not in message_of(SamplingParams, temperature=Array())
    assert "\n" not in message_of(SamplingParams, n="1\n2")


def test_greedy_sequences_would_be_equal_so_several_are_refused() -> None:
    assert "n=2" in message_of(SamplingParams, n=2, temperature=0.0)
    assert "n=2" in message_of(SamplingParams, n=2, temperature=1e-38)
    assert SamplingParams(n=2, temperature=0.1).n == 2


def test_stop_strings_need_text() -> None:
    assert "detokenize" in message_of(SamplingParams, stop="a", detokenize=False)


def test_min_tokens_may_equal_max_tokens_but_not_exceed_it() -> None:
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    assert SamplingParams(min_tokens=400, max_tokens=None).min_tokens == 400
    assert "max_tokens=4" in message_of(SamplingParams, min_tokens=5, max_tokens=4)


def test_values_at_the_edges_are_taken() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=1, top_k=-1, repetition_penalty=100, seed=2**63 - 1)
    SamplingParams(temperature=2, top_p=1e-9, min_p=0, top_k=10**7, presence_penalty=-2, frequency_penalty=2, seed=0)
    SamplingParams(logprobs=0, prompt_logprobs=20, max_tokens=None, stop=[], stop_token_ids=[], logit_bias={})


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-38, 9.9e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).greedy


def test_stops_and_biases_are_copied_so_that_the_caller_cannot_change_them_later() -> None:
    stop, ids, bias = ["a"], [3], {1: 5}
    params = SamplingParams(stop=stop, stop_token_ids=ids, logit_bias=bias)
    stop.append("b"), ids.append(4), bias.update({2: 6})
    assert params.stop == ("a",) and params.stop_token_ids == (3,) and params.logit_bias == {1: 5.0}
    assert SamplingParams(stop="ab").stop == ("ab",)


def test_biases_are_clipped_and_minus_one_is_no_seed() -> None:
    assert SamplingParams(logit_bias={1: 1e9, 2: -500, 3: 7}).logit_bias == {1: 100.0, 2: -100.0, 3: 7.0}
    assert SamplingParams(seed=-1).seed is None


def test_params_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().n = 2  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("beam_width", value) for value in (*NOT_AN_INTEGER, None, 0, -1, 11)),
        *(("max_tokens", value) for value in (*NOT_AN_INTEGER, None, 0)),
        *(("length_penalty", value) for value in (*NOT_A_NUMBER, -101, 101)),
        *(
            (name, value)
            for name in ("ignore_eos", "early_stopping", "include_stop_str_in_output")
            for value in (0, 1, "True", None)
        ),
    ],
    ids=lambda x: repr(x)[:20],
)
def test_a_bad_value_of_a_beam_search_is_refused_by_name(name: str, value: Any) -> None:
    text = message_of(BeamSearchParams, **{"beam_width": 4, "max_tokens": 8, name: value})
    assert text.startswith(name) and "\n" not in text
