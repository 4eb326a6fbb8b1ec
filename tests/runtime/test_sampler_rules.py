"""logit_bias, min_tokens and the penalties, each against the oracle and in their order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_oracle import VOCAB, WIDTH, Row, ruled_logits, run, sample_50, step_arrays

from jpaged.runtime.sampling.lane_state import record_samples, record_tokens
from jpaged.runtime.sampling.rules import apply_rules

EOS = 2

rules_50 = jax.jit(functools.partial(apply_rules, vocab_size=VOCAB))


def normal_logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32) * 3


def ruled(logits: np.ndarray, rows: list[Row]) -> np.ndarray:
    padded = np.zeros((WIDTH, VOCAB), np.float32)
    padded[: len(rows)] = logits
    return np.asarray(rules_50(jnp.asarray(padded), *step_arrays(rows, VOCAB, width=WIDTH)))[: len(rows)]


few_ids = st.lists(st.integers(0, 9), max_size=12).map(tuple)
ruled_row = st.builds(
    Row,
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.25, 4, width=32)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2, width=32)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2, width=32)),
    min_tokens=st.integers(0, 12),
    prompt=few_ids.filter(bool),
    outputs=few_ids,
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=8),
    stop_ids=st.lists(st.integers(0, VOCAB - 1), max_size=4).map(tuple),
)


@settings(max_examples=100)
@given(rows=st.lists(ruled_row, min_size=4, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_the_rules_together_are_the_oracles(rows, seed):
    logits = normal_logits(4, seed)
    expected = [ruled_logits(logit, row) for logit, row in zip(logits, rows, strict=True)]
    np.testing.assert_allclose(ruled(logits, rows), expected, rtol=1e-5, atol=2e-5)


def test_rows_that_ask_for_nothing_keep_their_logits_bit_for_bit():
    logits = normal_logits(4)
    logits[0, 0] = -0.0
    busy = Row(repetition_penalty=1.3, min_tokens=5, stop_ids=(1,), bias={3: 1.0})
    out = ruled(logits, [Row(prompt=(0, 1)), busy, Row(outputs=(5,)), busy])
    assert out[0].tobytes() == logits[0].tobytes()
    assert out[2].tobytes() == logits[2].tobytes()


def test_repetition_divides_positive_logits_and_multiplies_negative_ones_in_prompt_and_output():
    logits = np.full((1, VOCAB), 3.0, np.float32)
    logits[0, [1, 3]] = -3
    out = ruled(logits, [Row(repetition_penalty=2.0, prompt=(0, 1), outputs=(2, 3, 3))])[0]
    assert out[:5].tolist() == [1.5, -6, 1.5, -6, 3]


def test_frequency_and_presence_count_outputs_only():
    row = Row(frequency_penalty=0.5, presence_penalty=0.25, prompt=(0, 1, 1), outputs=(1, 2, 2))
    out = ruled(np.zeros((1, VOCAB), np.float32), [row])[0]
    assert out[:4].tolist() == [0, -0.75, -1.25, 0]


def test_history_past_the_known_tokens_is_not_counted():
    # step_arrays fills the rest of the table with id 49.
    out = ruled(np.ones((1, VOCAB)), [Row(repetition_penalty=2.0, prompt=(0,), outputs=(1,))])[0]
    assert np.flatnonzero(out != 1).tolist() == [0, 1]


def test_ids_outside_the_vocabulary_change_neither_row_nor_neighbour():
    logits = normal_logits(3)
    bad = Row(bias={50: 9.0, -1: 9.0, 10**6: 9.0, 127: 9.0}, min_tokens=5, stop_ids=(50, -1, 10**6))
    np.testing.assert_array_equal(ruled(logits, [Row(), bad, Row()]), logits)


def test_no_stop_id_is_sampled_before_min_tokens_whatever_its_bias():
    stops = (EOS, 5)
    for outputs in range(6):
        row = Row(temperature=0, min_tokens=4, stop_ids=stops, bias={EOS: 100.0, 5: 99.0}, outputs=(1,) * outputs)
        token = int(run(normal_logits(1, outputs), [row]).token_ids[0])
        assert (token in stops) == (outputs >= 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_biased_eos_comes_exactly_after_min_tokens_outputs(temperature):
    row = Row(temperature=temperature, min_tokens=4, stop_ids=(EOS,), bias={EOS: 100.0}, prompt=tuple(range(10, 20)))
    inputs, state = step_arrays([row], VOCAB, width=WIDTH)
    outputs: list[int] = []
    while EOS not in outputs and len(outputs) < 32:
        token = sample_50(normal_logits(WIDTH, len(outputs)), inputs, state).token_ids
        state = record_tokens(state, inputs.lanes, inputs.num_tokens, token)
        state = record_samples(state, inputs.lanes, token, inputs.lanes < WIDTH)
        inputs = inputs._replace(output_position=inputs.output_position + 1, num_tokens=inputs.num_tokens + 1)
        outputs.append(int(token[0]))
    assert len(outputs) == 5


def test_min_tokens_counts_outputs_and_not_the_prompt():
    row = Row(temperature=0, min_tokens=1, stop_ids=(EOS,), bias={EOS: 100.0}, prompt=(1,) * 20)
    assert int(run(normal_logits(1), [row]).token_ids[0]) != EOS


def test_penalties_see_a_token_recorded_in_the_same_step():
    inputs, state = step_arrays([Row(frequency_penalty=1.0, prompt=(0,), outputs=(1, 1))], VOCAB, width=WIDTH)
    state = record_tokens(state, jnp.array([0]), jnp.array([2]), jnp.array([9]))
    out = np.asarray(rules_50(jnp.zeros((WIDTH, VOCAB)), inputs, state))[0]
    assert out[9] == -1
    assert out[1] == -1
