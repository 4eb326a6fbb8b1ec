"""Which pages one program of a Mosaic kernel visits.

The splits of a row share its visible blocks evenly; a page column is always one that holds a visible token.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Int

from pallas_kernels.scores import ScoreRule


class Work(NamedTuple):
    """The blocks from `first_block` on of a row that sees the tokens from `visible_from` to `length`."""

    length: Array
    visible_from: Array
    first_block: Array
    num_blocks: Array

    def first_token(self, walk: "Walk", i: Array) -> Array:
        """The position of the first token of the i-th block."""
        return (self.first_block + i) * walk.block

    def visible(self, token: Int[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """True where the row's query sees a token."""
        return (token >= self.visible_from) & (token < self.length)

    def has_invisible(self, walk: "Walk", i: Array) -> Array:
        """True when some token of the i-th block is not visible."""
        first = self.first_token(walk, i)
        return (first < self.visible_from) | (first + walk.block > self.length)


class Walk(NamedTuple):
    """Static sizes: blocks of `block` tokens, `splits` programs per row and kv head."""

    rule: ScoreRule
    page_size: int
    num_slots: int
    block: int
    splits: int

    @property
    def piece(self) -> int:
        """Tokens copied at a time: the longest run that neither a page nor a block cuts."""
        return math.gcd(self.page_size, self.block)

    @property
    def pieces_per_block(self) -> int:
        """Copies that fill a block."""
        return self.block // self.piece

    def first_token_of_piece(
        self, layer: Array, table: Callable[[Array], Array], work: Work, i: Array, j: int
    ) -> Int[Array, ""]:
        """The index in the pool's `by_token` where the j-th piece of a program's i-th block starts.

        Past the visible pages it is one in the nearest page: it is fetched to keep the count of copies, and masked.
        """
        token = work.first_token(self, i) + j * self.piece
        column = _div(token, self.page_size)
        column = jnp.minimum(column, _div(work.length - 1, self.page_size))
        column = jnp.maximum(column, _div(work.visible_from, self.page_size))
        index = layer * self.num_slots + table(column) * self.page_size + lax.rem(token, jnp.int32(self.page_size))
        return pl.multiple_of(index, self.piece)


def split_of_row(walk: Walk, length: Array, split: Array) -> Work:
    """The share of split `split` of a row of `length` tokens."""
    visible_from = walk.rule.first_visible(jnp.maximum(length - 1, 0))
    first = _div(visible_from, walk.block)
    end = _div(length + walk.block - 1, walk.block)
    share = _div(end - first + walk.splits - 1, walk.splits)
    begin = first + split * share
    return Work(length, visible_from, begin, jnp.maximum(jnp.minimum(share, end - begin), 0))


def _div(a: Array, b: int) -> Array:
    # Operands are never negative here; `//` would spend instructions on rounding down.
    return lax.div(a, jnp.int32(b))
