"""min_p, top_k and top_p: which tokens stay, and with what probability."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_oracle import Row, probabilities, step_arrays

from jpaged.runtime.sampling import truncation

ROWS = 8


def kept_probabilities(logits, inputs):
    tokens = truncation.all_tokens(logits, jnp.max(logits, axis=-1), inputs)
    weights = truncation.kept_weights(tokens, truncation.truncate(tokens, inputs))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


kept_jit = jax.jit(kept_probabilities)


def kept(logits: np.ndarray, rows: list[Row]) -> np.ndarray:
    """Probabilities of up to ROWS rows; two widths, so two programs."""
    vocab = logits.shape[1]
    inputs, _ = step_arrays(rows, vocab, width=ROWS)
    padded = np.full((ROWS, 256 if vocab <= 256 else 1024), -np.inf, np.float32)
    padded[: len(rows), :vocab] = logits
    return np.asarray(kept_jit(jnp.asarray(padded), inputs))[: len(rows), :vocab]


truncating_row = st.builds(
    Row,
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 0.99999)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    top_k=st.one_of(st.just(0), st.integers(1, 1100)),
)


@settings(max_examples=120)
@given(
    rows=st.lists(truncating_row, min_size=ROWS, max_size=ROWS),
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([50, 1000]),
    tied=st.booleans(),
)
def test_the_kept_set_and_its_probabilities_are_the_oracles(rows, seed, vocab, tied):
    logits = np.random.default_rng(seed).normal(size=(ROWS, vocab)) * 3
    # Quarters scaled by a power of two are exact in float32, so that a tie is a tie in both.
    logits = (np.round(logits * 4) / 4 if tied else logits).astype(np.float32)
    actual = kept(logits, rows)
    for i, row in enumerate(rows):
        expected, margin = probabilities(logits[i].astype(np.float64), row)
        if margin < 2e-6:
            continue
        # float32 has no probability below about 1e-38, so a token there is as good as cut away.
        sure = (expected == 0) | (expected > 1e-35)
        np.testing.assert_array_equal(actual[i][sure] > 0, expected[sure] > 0)
        np.testing.assert_allclose(actual[i], expected, rtol=1e-4, atol=1e-35)


def test_ranking_and_bisection_make_the_same_cuts(monkeypatch):
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(size=(64, 256)) * 12).astype(np.float32) / 4
    rows = [
        Row(top_k=int(k), top_p=float(p), temperature=float(t))
        for k, p, t in zip(
            rng.integers(0, 60, 64), rng.uniform(0.1, 1.1, 64), 2.0 ** rng.integers(-2, 2, 64), strict=True
        )
    ]
    inputs, _ = step_arrays(rows, 256)
    by_ranking = kept_jit(logits, inputs)
    monkeypatch.setattr(truncation, "NUM_RANKED", 1)
    by_bisection = jax.jit(lambda *args: kept_probabilities(*args))(logits, inputs)
    np.testing.assert_array_equal(by_ranking > 0, by_bisection > 0)


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 200, 255])
def test_top_k_keeps_exactly_k_of_equal_tokens_and_the_lowest_ids(k):
    logits = np.zeros((2, 256), np.float32)
    logits[1, 200] = 1
    probs = kept(logits, [Row(top_k=k)] * 2)
    assert np.flatnonzero(probs[0]).tolist() == list(range(k))
    expected = sorted([*range(min(k - 1, 200)), *range(201, max(k, 201)), 200])[:k]
    assert np.flatnonzero(probs[1]).tolist() == expected


@pytest.mark.parametrize("top_k", [51, 10**7, 0, 50, 2**31 - 1])
def test_a_top_k_of_the_vocabulary_or_more_or_none_keeps_everything_beside_a_greedy_row(top_k):
    logits = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    probs = kept(logits, [Row(top_k=top_k), Row(temperature=0)])
    assert (probs[0] > 0).all()


def test_top_p_counts_in_what_top_k_left():
    probs = kept(np.zeros((1, 50), np.float32), [Row(top_k=5, top_p=0.79)])
    np.testing.assert_allclose(probs[0, :5], [0.25, 0.25, 0.25, 0.25, 0], rtol=1e-6)
    assert not probs[0, 5:].any()


@pytest.mark.parametrize("top_p", [1e-9, 1e-38, 0.0])
@pytest.mark.parametrize("top_k", [0, 5, 100])
def test_a_tiny_top_p_keeps_the_likeliest_token(top_p, top_k):
    logits = np.zeros((2, 200), np.float32)
    logits[1, 150] = 3
    probs = kept(logits, [Row(top_k=top_k, top_p=top_p)] * 2)
    assert np.flatnonzero(probs[0]).tolist() == [0]
    assert np.flatnonzero(probs[1]).tolist() == [150]


def test_top_p_just_below_one_loses_at_most_the_thinnest_tail():
    logits = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    probs = kept(logits, [Row(top_p=float(np.nextafter(np.float32(1), np.float32(0))))])
    assert np.count_nonzero(probs) >= 998


def test_min_p_of_one_keeps_the_likeliest_tokens_only():
    logits = np.zeros((1, 50), np.float32)
    logits[0, [3, 40]] = 0.001
    assert np.flatnonzero(kept(logits, [Row(min_p=1.0)])[0]).tolist() == [3, 40]
    assert np.flatnonzero(kept(logits, [Row(min_p=1.0, top_k=1)])[0]).tolist() == [3]


def test_masked_tokens_are_not_kept_though_k_would_have_room():
    logits = np.full((1, 50), -np.inf, np.float32)
    logits[0, [4, 9]] = 0
    for row in (Row(top_k=10), Row(top_k=10, top_p=0.999), Row(top_p=0.999), Row()):
        assert np.flatnonzero(kept(logits, [row])[0]).tolist() == [4, 9]
