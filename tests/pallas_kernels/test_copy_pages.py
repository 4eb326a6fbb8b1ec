"""Page copies, every implementation."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KVPages, copy_pages

SHAPE = (4, 7, 3, 5, 8)


def build_pool(shape=SHAPE, dtype=jnp.float32) -> KVPages:
    rng = np.random.default_rng(0)
    return KVPages(*(jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(2)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_targets_get_their_source_in_every_layer_and_nothing_else_changes(run, dtype):
    pool = build_pool(dtype=dtype)
    out = copy_pages(pool, jnp.array([2, 2, 5]), jnp.array([3, 6, 1]), **run)
    right = np.array([0, 5, 2, 2, 4, 5, 2])
    np.testing.assert_array_equal(out.k, pool.k[:, right])
    np.testing.assert_array_equal(out.v, pool.v[:, right])


def test_padding_pairs_change_nothing(run):
    pool = build_pool()
    out = copy_pages(pool, jnp.array([2, 0, 0, 0]), jnp.array([4, 0, 0, 0]), **run)
    right = np.array([0, 1, 2, 3, 2, 5, 6])
    np.testing.assert_array_equal(out.k, pool.k[:, right])


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_all_sources_are_read_before_a_target_is_written(implementation):
    """Not asked of a caller, who must not chain pairs; the array implementations hold it all the same."""
    pool = build_pool()
    out = copy_pages(pool, jnp.array([1, 2, 3]), jnp.array([2, 3, 1]), implementation=implementation)
    np.testing.assert_array_equal(out.k, pool.k[:, np.array([0, 3, 1, 2, 4, 5, 6])])


def test_pages_larger_than_one_piece_are_copied_whole():
    pool = build_pool((1, 4, 48, 5, 16))
    out = copy_pages(pool, jnp.array([1]), jnp.array([3]), implementation="triton", interpret=True)
    np.testing.assert_array_equal(out.v, pool.v[:, np.array([0, 1, 2, 1])])


def test_pairs_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        copy_pages(build_pool(), jnp.array([1, 2]), jnp.array([3]))
