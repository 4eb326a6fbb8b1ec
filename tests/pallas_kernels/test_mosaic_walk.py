"""Which tokens of the pool a Mosaic decode program fetches."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.mosaic_walk import Walk, split_of_row
from pallas_kernels.scores import ScoreRule

NUM_SLOTS, LAYER = 10_000, 2


def fetched_tokens(walk: Walk, length: int, table: list[int]) -> dict[int, int]:
    """Visible position -> index in the pool that it is fetched from, over all splits; fails if one is fetched twice."""
    found: dict[int, int] = {}
    pages = jnp.array(table)
    for split in range(walk.splits):
        work = split_of_row(walk, jnp.int32(length), jnp.int32(split))
        for i in range(int(work.num_blocks)):
            for j in range(walk.pieces_per_block):
                column = lambda c: pages[c]  # noqa: E731
                start = int(walk.first_token_of_piece(jnp.int32(LAYER), column, work, jnp.int32(i), j))
                token = int(work.first_token(walk, jnp.int32(i))) + j * walk.piece
                for offset in range(walk.piece):
                    if bool(work.visible(jnp.int32(token + offset))):
                        assert token + offset not in found
                        found[token + offset] = start + offset
    return found


@pytest.mark.parametrize(
    ("page_size", "length", "window", "splits"),
    [(16, 0, None, 2), (16, 1, None, 4), (24, 150, None, 2), (256, 300, None, 3), (48, 200, 70, 2), (16, 129, 1, 2)],
)
def test_every_visible_token_is_fetched_once_from_its_own_slot(page_size, length, window, splits):
    # Past the row's pages and before its window: ids that no pool has.
    first = 0 if window is None else max(0, length - window)
    columns = range(-(-length // page_size) + 2)
    table = [7 + 3 * c if first // page_size <= c < -(-length // page_size) else 10**8 for c in columns]
    walk = Walk(ScoreRule(1.0, window), page_size, NUM_SLOTS, 64, splits)
    with jax.disable_jit():
        found = fetched_tokens(walk, length, table)
    right = {
        t: LAYER * NUM_SLOTS + table[t // page_size] * page_size + t % page_size for t in range(first, length)
    }  # fmt: skip
    assert found == right
