"""The measurement of what a quantised pool costs in quality, on a small slice."""

import numpy as np
import pytest

from experiments.kinds import KVCacheDtypeConfig
from experiments.kv_cache_dtype import CHUNK, PAGE_SIZE, TextScorer, chunk_inputs, measure_text, text_windows
from tests.engine.tiny import TINY_LLAMA


def test_an_int8_pool_moves_every_loss_a_little_and_none_far():
    ids = np.random.default_rng(0).integers(4, 96, (2, 48))
    scorer = TextScorer(TINY_LLAMA, 48)
    losses, choices = scorer.score(ids, "float32")
    assert losses.shape == choices.shape == (2, 47)
    near, _ = scorer.score(ids, "int8")
    # Random weights make every logit a near tie: a real model moves ten times less.
    assert 0 < np.abs(near - losses).mean() < 0.05
    assert np.abs(near - losses).max() < 0.5


def test_padding_of_the_last_chunk_writes_nowhere():
    inputs = chunk_inputs(np.arange(CHUNK + 10), CHUNK, 17)
    assert inputs.context_lens.tolist() == [CHUNK + 10, 0]
    assert inputs.query_starts.tolist() == [0, 10, 10]
    assert (np.asarray(inputs.slots)[10:] >= 18 * PAGE_SIZE).all()
    assert np.asarray(inputs.slots)[9] == CHUNK + 9 + PAGE_SIZE


@pytest.mark.slow
def test_an_int8_pool_changes_the_perplexity_of_text_by_under_one_percent():
    int8 = measure_text(KVCacheDtypeConfig(num_tokens=2000, window=512))
    numbers = {name: value for name, value in int8.items() if isinstance(value, int | float)}
    assert numbers["num_tokens"] >= 2000
    assert 5 < numbers["perplexity"] < 30
    assert abs(numbers["perplexity_change"]) < 0.01
    assert numbers["same_argmax"] > 0.95


@pytest.mark.slow
def test_more_text_than_there_is_is_refused():
    with pytest.raises(ValueError, match="ask for fewer"):
        text_windows("smollm2-135m", 10**7, 512)
