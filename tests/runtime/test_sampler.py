"""The sampler as a step calls it: choice, logprobs, rows that do not feel each other, one program."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_oracle import (
    VOCAB,
    Row,
    log_probabilities,
    probabilities,
    ranking,
    ruled_logits,
    run,
    sample_50,
    step_arrays,
)

from jpaged.runtime.sampling.inputs import uniforms
from jpaged.runtime.sampling.sampler import prompt_logprobs, sample

ROWS = 8

uniforms_jit = jax.jit(uniforms)

token_ids = st.integers(0, VOCAB - 1)
any_row = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 1e-6, 1e-4, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 49, 50, 51, 10**7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.3, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    seed=st.integers(-(2**63), 2**63 - 1),
    sample_index=st.integers(0, 8),
    min_tokens=st.integers(0, 4),
    num_logprobs=st.sampled_from([-1, 0, 1, 5, 20]),
    prompt=st.lists(token_ids, min_size=1, max_size=8).map(tuple),
    outputs=st.lists(token_ids, max_size=8).map(tuple),
    bias=st.dictionaries(token_ids, st.floats(-100, 100, width=32), max_size=4),
    stop_ids=st.lists(token_ids, max_size=3).map(tuple),
)


def normal_logits(rows: int, seed: int = 0, width: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32) * 3


@settings(max_examples=100)
@given(rows=st.lists(any_row, min_size=ROWS, max_size=ROWS), seed=st.integers(0, 2**32 - 1))
def test_every_mix_of_parameters_samples_what_the_oracle_allows(rows, seed):
    logits = normal_logits(ROWS, seed)
    inputs, state = step_arrays(rows, VOCAB)
    out = jax.tree.map(np.asarray, sample_50(jnp.asarray(logits), inputs, state))
    drawn = np.asarray(uniforms_jit(inputs), np.float64)
    for i, row in enumerate(rows):
        probs, margin = probabilities(ruled_logits(logits[i], row), row)
        token = int(out.token_ids[i])
        if margin < 1e-5:
            continue
        before, after = np.sum(probs[:token]), np.sum(probs[: token + 1])
        assert probs[token] > 0
        if row.temperature >= 1e-5:
            assert before - 1e-5 <= drawn[i] <= after + 1e-5


@settings(max_examples=40)
@given(rows=st.lists(any_row, min_size=ROWS, max_size=ROWS), seed=st.integers(0, 2**32 - 1))
def test_logprobs_are_those_of_the_raw_logits_whatever_the_rules_are(rows, seed):
    logits = normal_logits(ROWS, seed)
    out = run(logits, rows)
    for i, row in enumerate(rows):
        expected, order = log_probabilities(logits[i]), ranking(logits[i])
        if row.num_logprobs < 0:
            assert out.logprobs[i] == 0
            assert out.ranks[i] == 0
        else:
            np.testing.assert_allclose(out.logprobs[i], expected[out.token_ids[i]], atol=1e-5)
            assert order[out.ranks[i] - 1] == out.token_ids[i]
        count = max(row.num_logprobs, 0)
        np.testing.assert_array_equal(out.top_ids[i, :count], order[:count])
        np.testing.assert_allclose(out.top_logprobs[i, :count], expected[order[:count]], atol=1e-5)
        assert not out.top_ids[i, count:].any()
        assert not out.top_logprobs[i, count:].any()


def test_the_lowest_index_wins_a_greedy_tie():
    logits = np.zeros((3, VOCAB), np.float32)
    logits[0, [7, 30]] = 2
    logits[1] = -5
    logits[2, 49] = 1
    assert run(logits, [Row(temperature=0)] * 3).token_ids.tolist() == [7, 0, 49]


def test_ranks_and_top_lists_order_equal_tokens_by_lowest_id():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [40, 7, 30]] = 2
    out = run(logits, [Row(temperature=0, num_logprobs=5)])
    assert out.top_ids[0, :5].tolist() == [7, 30, 40, 0, 1]
    assert out.ranks[0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-38, 0.0])
def test_a_tiny_temperature_gives_the_argmax_and_no_nan(temperature, dtype):
    logits = np.random.default_rng(0).uniform(-60, 59, (4, VOCAB))
    logits[np.arange(4), [3, 0, 49, 20]] = 60
    rows = [Row(temperature=temperature, seed=i, num_logprobs=5, top_p=0.9, top_k=7) for i in range(4)]
    out = run(logits.astype(dtype), rows)
    assert out.token_ids.tolist() == [3, 0, 49, 20]
    assert np.isfinite(out.logprobs).all()
    assert np.isfinite(out.top_logprobs).all()


def test_the_padding_of_the_head_takes_part_in_nothing():
    real = normal_logits(4) - 40  # all negative: a pad of zeros would win the argmax
    padded = np.full((4, 64), 1000.0, np.float32)
    padded[:, :VOCAB] = real
    rows = [Row(temperature=0, num_logprobs=20), Row(temperature=2, num_logprobs=20), Row(top_k=60), Row(top_p=0.5)]
    chex.assert_trees_all_equal(run(padded, rows), run(real, rows))


def test_a_vocabulary_of_three_fills_three_places_of_the_top_list_and_survives_being_masked_whole():
    rows = [Row(num_logprobs=20), Row(min_tokens=1, stop_ids=(0, 1, 2), num_logprobs=1)]
    tiny = jax.jit(functools.partial(sample, vocab_size=3, max_logprobs=20))
    out = tiny(jnp.array([[0.0, 2.0, 1.0]] * 2), *step_arrays(rows, 3))
    assert out.top_ids[0].tolist() == [1, 2, 0] + [0] * 17
    assert not np.asarray(out.top_logprobs[0, 3:]).any()
    assert ((out.token_ids >= 0) & (out.token_ids < 3)).all()
    assert np.isfinite(out.logprobs).all()


def test_a_head_narrower_than_the_vocabulary_is_refused():
    inputs, state = step_arrays([Row()], VOCAB)
    with pytest.raises(ValueError, match="vocab_size=50"):
        sample(jnp.zeros((1, 49)), inputs, state, vocab_size=VOCAB, max_logprobs=1)


def company() -> list[Row]:
    """Rows that together switch every costly part on."""
    history = {"prompt": (1, 2, 3), "outputs": (4, 4, 5)}
    return [
        Row(temperature=0, **history),
        Row(temperature=0.9, seed=1, **history),
        Row(top_k=5, top_p=0.9, seed=2, num_logprobs=5),
        Row(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=-0.5, seed=3, **history),
        Row(bias={4: 3.5, 49: -100.0}, min_tokens=9, stop_ids=(7, 8), seed=4, num_logprobs=0),
        Row(min_p=0.1, top_p=0.97, temperature=1.7, seed=2**40, num_logprobs=20),
        Row(temperature=0, num_logprobs=1, min_tokens=1, stop_ids=(0,)),
        Row(temperature=2.0, top_k=49, seed=6),
    ]


def test_a_row_alone_gives_bit_for_bit_what_it_gives_in_company():
    rows, logits = company(), normal_logits(8)
    together = run(logits, rows)
    for i, row in enumerate(rows):
        lonely = np.full_like(logits, 777)
        lonely[0] = logits[i]
        alone = run(lonely, [row], lanes=[5])
        chex.assert_trees_all_equal(jax.tree.map(lambda x: x[0], alone), jax.tree.map(lambda x, i=i: x[i], together))


def test_another_batch_size_gives_the_same_tokens():
    # Bit for bit it cannot be: another shape is another program, whose sums may round in another order.
    vocab = 1000
    run_wide = jax.jit(functools.partial(sample, vocab_size=vocab, max_logprobs=20))
    rows = [Row(**{**vars(row), "top_k": row.top_k * 40}) for row in company()]
    for seed in range(10):
        logits = normal_logits(8, seed, vocab)
        together = run_wide(jnp.asarray(logits), *step_arrays(rows, vocab))
        for i in range(0, 8, 2):
            alone = run_wide(jnp.asarray(logits[i : i + 2]), *step_arrays(rows[i : i + 2], vocab))
            some = jax.tree.map(lambda x, i=i: x[i : i + 2], together)
            chex.assert_trees_all_equal(alone.token_ids, some.token_ids)
            chex.assert_trees_all_equal(alone.top_ids, some.top_ids)
            chex.assert_trees_all_close(alone.top_logprobs, some.top_logprobs, atol=1e-5)


def test_a_greedy_row_among_sampled_rows_is_still_the_argmax():
    logits = normal_logits(8)
    rows = [Row(temperature=0 if i % 2 else 5.0, seed=i, top_k=1 if i == 2 else 0) for i in range(8)]
    out = run(logits, rows)
    best = logits.argmax(-1)
    assert out.token_ids[1::2].tolist() == best[1::2].tolist()
    assert out.token_ids[2] == best[2]


def test_padding_entries_of_zeros_ask_for_nothing():
    inputs, state = step_arrays([], VOCAB, width=8)
    out = sample_50(jnp.asarray(normal_logits(8)), inputs, state)
    assert not out.ranks.any()
    assert ((out.token_ids >= 0) & (out.token_ids < VOCAB)).all()


def test_one_program_serves_every_mix_of_parameters():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def traced(logits, inputs, state):
        return sample(logits, inputs, state, vocab_size=VOCAB, max_logprobs=20)

    logits = jnp.asarray(normal_logits(8))
    for row in company():
        traced(logits, *step_arrays([row] * 8, VOCAB))
    traced(logits, *step_arrays(company(), VOCAB))
    traced(logits, *step_arrays([], VOCAB, width=8))


def test_prompt_logprobs_give_each_targets_logprob_rank_and_the_top_list():
    logits = normal_logits(6, width=64)
    targets = np.array([0, 49, 10, 7, 7, 3])
    report = jax.jit(functools.partial(prompt_logprobs, max_logprobs=5, vocab_size=VOCAB))
    out = report(jnp.asarray(logits), jnp.asarray(targets))
    for i, target in enumerate(targets):
        expected, order = log_probabilities(logits[i, :VOCAB]), ranking(logits[i, :VOCAB])
        np.testing.assert_allclose(out.logprobs[i], expected[target], atol=1e-5)
        assert order[out.ranks[i] - 1] == target
        np.testing.assert_array_equal(out.top_ids[i], order[:5])
        np.testing.assert_allclose(out.top_logprobs[i], expected[order[:5]], atol=1e-5)
