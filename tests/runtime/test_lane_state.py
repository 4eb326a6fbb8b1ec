"""What a lane remembers: histories, last ids, references to them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jpaged.runtime.sampling.lane_state import (
    LaneState,
    init_lane_state,
    record_samples,
    record_tokens,
    resolve_token_ids,
    set_lane,
)

VOCAB, LANES, LENGTH = 50, 3, 8


def fresh() -> LaneState:
    return init_lane_state(LANES, LENGTH, VOCAB, max_bias=2, max_stop_ids=2)


def ints(*values: int) -> jax.Array:
    return jnp.array(values, jnp.int32)


def test_a_fresh_state_has_a_spare_lane_and_no_bias_or_stop_id():
    state = init_lane_state(LANES, LENGTH, VOCAB)
    chex.assert_shape(state.last_ids, (LANES + 1,))
    chex.assert_shape(state.history, (LANES + 1, LENGTH))
    chex.assert_shape([state.bias_ids, state.bias_values], (LANES + 1, 512))
    chex.assert_shape(state.stop_ids, (LANES + 1, 64))
    assert (state.bias_ids >= VOCAB).all()
    assert (state.stop_ids >= VOCAB).all()


def test_tokens_land_at_their_lane_and_position_and_padding_nowhere():
    state = record_tokens(
        fresh(), ints(0, 0, 2, LANES, 1, 1, -1), ints(0, 1, 7, 0, LENGTH, -1, 3), ints(11, 12, 13, 14, 15, 16, 17)
    )
    expected = np.zeros((LANES + 1, LENGTH), np.int32)
    expected[0, :2] = 11, 12
    expected[2, 7] = 13
    np.testing.assert_array_equal(state.history, expected)


def test_a_negative_reference_is_the_id_last_sampled_in_its_lane():
    state = record_samples(fresh(), ints(0, 2, 1), ints(21, 22, 23), jnp.array([True, True, False]))
    assert resolve_token_ids(ints(5, -1, -3, 0, -2), state).tolist() == [5, 21, 22, 0, 0]


def test_invalid_and_padding_samples_are_not_recorded():
    state = record_samples(fresh(), ints(LANES, 1, LANES), ints(9, 9, 8), jnp.array([True, False, True]))
    assert not state.last_ids.any()


def test_a_new_sequence_replaces_all_of_its_lane_but_the_last_id_and_nothing_of_the_others():
    before = record_samples(fresh(), ints(1), ints(33), jnp.array([True]))
    admit = jax.jit(set_lane, donate_argnums=0)
    after = admit(
        jax.tree.map(jnp.copy, before),
        jnp.int32(1),
        jnp.arange(LENGTH, dtype=jnp.int32),
        ints(4, VOCAB),
        jnp.array([1.5, 0.0]),
        ints(7, VOCAB),
    )
    assert after.last_ids.tolist() == [0, 33, 0, 0]
    assert after.history[1].tolist() == list(range(LENGTH))
    assert after.bias_ids[1].tolist() == [4, VOCAB]
    assert after.bias_values[1].tolist() == [1.5, 0]
    assert after.stop_ids[1].tolist() == [7, VOCAB]
    others = np.array([0, 2, 3])
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[others], after), jax.tree.map(lambda x: x[others], before))
