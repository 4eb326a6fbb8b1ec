"""Random tokens: seeds, distributions, and the search in a running sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_oracle import VOCAB, Row, probabilities, run, sample_50, step_arrays

from jpaged.runtime.sampling.inputs import split_seed, uniforms
from jpaged.runtime.sampling.vocabulary import index_above

index_above_jit = jax.jit(index_above)


def sequence(seed: int, sample_index: int) -> list[int]:
    """The first 8 outputs of one sample over uniform logits, all positions in one batch."""
    rows = [Row(seed=seed, sample_index=sample_index, outputs=(0,) * i) for i in range(8)]
    return run(np.zeros((8, VOCAB), np.float32), rows).token_ids.tolist()


def test_samples_of_one_request_differ_pairwise_and_repeat():
    first = [sequence(7, index) for index in range(3)]
    assert len({tuple(ids) for ids in first}) == 3
    assert first == [sequence(7, index) for index in range(3)]


def test_a_sample_does_not_depend_on_how_many_there_are_or_where_its_row_is():
    wanted = Row(seed=7, sample_index=1, outputs=(0,) * 5)
    found = set()
    for place in range(8):
        rows = [Row(seed=7, sample_index=index) for index in range(8)]
        rows[place] = wanted
        lanes = np.random.default_rng(place).permutation(8).tolist()
        found.add(int(run(np.zeros((8, VOCAB), np.float32), rows, lanes).token_ids[place]))
    assert found == {sequence(7, 1)[5]}


def test_a_long_prompt_does_not_change_what_is_sampled():
    rows = [Row(seed=3, prompt=(1,) * n, outputs=(2, 2)) for n in (1, 5, 17, 40)]
    assert len(set(run(np.zeros((4, VOCAB), np.float32), rows).token_ids.tolist())) == 1


def test_seeds_that_share_a_low_word_differ():
    seeds = [0, 2**32, 2**63 - 1, -1, -(2**63), 1, 2**31]
    sequences = {tuple(sequence(seed, 0)) for seed in seeds}
    assert len(sequences) == len(seeds)


def test_split_seed_keeps_all_64_bits():
    assert split_seed(0) == (0, 0)
    assert split_seed(2**32) == (1, 0)
    assert split_seed(2**63 - 1) == (2**31 - 1, -1)
    assert split_seed(-1) == (-1, -1)
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="does not fit in 64 bits"):
            split_seed(seed)


def test_the_key_is_jaxs_own_for_that_seed():
    inputs, _ = step_arrays([Row(seed=7, sample_index=2, outputs=(0, 0, 0))], VOCAB)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7, impl="threefry2x32"), 2), 3)
    assert uniforms(inputs)[0] == jax.random.uniform(key)


def sample_many(logits: np.ndarray, row: Row, samples: int = 10_000) -> np.ndarray:
    """How often each column of a head of 64 is sampled, over as many sample indices and a few seeds."""
    rows = [Row(**{**vars(row), "seed": 11 + i % 5, "sample_index": i}) for i in range(samples)]
    inputs, state = step_arrays(rows, VOCAB, max_model_len=1)
    padded = np.zeros((samples, 64), np.float32)
    padded[:, :VOCAB] = logits
    return np.bincount(np.asarray(sample_50(jnp.asarray(padded), inputs, state).token_ids), minlength=64)


def test_uniform_logits_sample_every_id_of_the_vocabulary_and_none_of_the_padding():
    counts = sample_many(np.zeros(VOCAB), Row(temperature=2.0))
    assert counts[:VOCAB].all()
    assert not counts[VOCAB:].any()


@pytest.mark.parametrize(
    "row",
    [
        Row(),
        Row(temperature=0.5),
        Row(temperature=2.0, top_k=10),
        Row(top_p=0.8),
        Row(min_p=0.1),
        Row(temperature=1.5, min_p=0.02, top_k=20, top_p=0.9),
    ],
    ids=["plain", "cold", "top_k", "top_p", "min_p", "all"],
)
def test_ten_thousand_samples_follow_the_oracles_distribution(row):
    logits = np.random.default_rng(5).normal(size=VOCAB).astype(np.float32) * 1.5
    counts = sample_many(logits, row)[:VOCAB]
    expected = probabilities(logits.astype(np.float64), row)[0] * counts.sum()
    assert not counts[expected == 0].any()
    common = expected >= 5
    chi_square = np.sum((counts[common] - expected[common]) ** 2 / expected[common])
    freedom = int(np.sum(common))
    # Four standard deviations of a chi-square of that many degrees of freedom.
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_positions_of_one_seed_give_uniform_numbers_in_the_half_open_interval():
    inputs, _ = step_arrays([Row(seed=1)] * 4096, VOCAB, max_model_len=1)
    numbers = np.asarray(uniforms(inputs._replace(output_position=jnp.arange(4096, dtype=jnp.int32))))
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) > 4090
    assert abs(numbers.mean() - 0.5) < 0.02


def test_a_weightless_index_is_never_found_at_either_end_of_the_target():
    rng = np.random.default_rng(0)
    weights = (rng.random((64, 512)) * (rng.random((64, 512)) < 0.02)).astype(np.float32)
    weights[:, 0] = weights[:, -1] = 0
    total = weights.sum(-1)
    for share in (0.0, 1e-7, 0.3, 1.0, 2.0):
        index = np.asarray(index_above_jit(jnp.asarray(weights), jnp.asarray(total * np.float32(share))))
        assert (weights[np.arange(64), index] > 0).all()
        if share == 0:
            assert index.tolist() == (weights > 0).argmax(-1).tolist()
        if share == 2:
            assert index.tolist() == (511 - (weights > 0)[:, ::-1].argmax(-1)).tolist()


def test_the_index_found_is_the_running_sums_own():
    rng = np.random.default_rng(1)
    weights = rng.random((200, 384)).astype(np.float32)
    running = np.cumsum(weights.astype(np.float64), axis=-1)
    target = rng.random(200) * running[:, -1]
    index = np.asarray(index_above_jit(jnp.asarray(weights), jnp.asarray(target, jnp.float32)))
    expected = np.sum(running <= target[:, None], axis=-1)
    near = np.min(np.abs(running - target[:, None]), axis=-1) < 1e-3
    assert (near | (index == expected)).all()
    assert near.mean() < 0.1
