"""Shapes of steps: few, large enough, and compiled only when it pays."""

import numpy as np
import pytest

from jpaged.runtime.buckets import PADDED_DECODE_STEPS, PADDED_RAGGED_STEPS, Buckets
from jpaged.runtime.step_shape import StepShape, unpack


@pytest.fixture
def buckets() -> Buckets:
    return Buckets(max_num_seqs=24, max_num_batched_tokens=300, table_width=5)


def decode(buckets: Buckets, rows: int) -> StepShape:
    return buckets.fit(num_rows=rows, num_tokens=rows, num_samples=rows, decode=True)


def ragged(buckets: Buckets, tokens: int) -> StepShape:
    return buckets.fit(num_rows=1, num_tokens=tokens, num_samples=1, decode=False)


def test_a_step_gets_the_smallest_shape_that_holds_it(buckets):
    assert [decode(buckets, n).num_rows for n in (1, 2, 3, 8, 9, 17, 24)] == [2, 2, 4, 8, 16, 24, 24]
    assert [ragged(buckets, n).num_tokens for n in (2, 16, 17, 256, 257, 300)] == [16, 16, 32, 256, 300, 300]
    assert [ragged(buckets, n).num_tokens for n in (33, 65, 97, 129, 193)] == [64, 96, 128, 192, 256]
    assert {ragged(buckets, n).num_rows for n in (2, 300)} == {24}
    assert buckets.fit(num_rows=1, num_tokens=1, num_samples=7, decode=True).num_samples == 8


def test_every_shape_that_can_be_needed_is_listed(buckets):
    shapes = {decode(buckets, n) for n in range(1, 25)} | {ragged(buckets, n) for n in range(1, 301)}
    assert shapes == set(buckets.all())


def test_the_most_padding_is_that_of_the_smallest_step_that_needs_the_shape(buckets):
    for shape in buckets.all():
        kind = decode if shape.decode else ragged
        sizes = [n for n in range(1, shape.num_tokens + 1) if kind(buckets, n) == shape]
        assert buckets.most_padding(shape) == 1 - sizes[0] / shape.num_tokens


def test_fields_of_a_packed_array_lie_side_by_side_and_fill_it(buckets):
    for shape in buckets.all():
        fields = unpack(np.arange(shape.num_ints), shape.int_shapes)
        assert {name: field.shape for name, field in fields.items()} == shape.int_shapes
        assert np.concatenate([field.ravel() for field in fields.values()]).tolist() == list(range(shape.num_ints))


def test_a_compiled_shape_is_used_as_it_is(buckets):
    assert buckets.choose(decode(buckets, 3), {decode(buckets, 3), decode(buckets, 8)}) == decode(buckets, 3)


def test_a_larger_compiled_shape_is_used_until_compiling_pays(buckets):
    wanted, larger = decode(buckets, 4), decode(buckets, 8)
    shapes = [buckets.choose(wanted, {larger}) for _ in range(PADDED_DECODE_STEPS + 1)]
    assert shapes == [larger] * PADDED_DECODE_STEPS + [wanted]
    shapes = [buckets.choose(ragged(buckets, 32), {ragged(buckets, 64)}) for _ in range(PADDED_RAGGED_STEPS + 1)]
    assert shapes == [ragged(buckets, 64)] * PADDED_RAGGED_STEPS + [ragged(buckets, 32)]


def test_the_larger_what_takes_its_place_the_sooner_the_shape_is_compiled(buckets):
    larger = decode(buckets, 16)
    chosen = [buckets.choose(decode(buckets, 2), {larger}) for _ in range(PADDED_DECODE_STEPS)].count(larger)
    assert chosen == PADDED_DECODE_STEPS / 16


def test_a_smaller_shape_or_one_of_the_other_kind_is_never_used(buckets):
    assert buckets.choose(decode(buckets, 8), {decode(buckets, 4), ragged(buckets, 64)}) == decode(buckets, 8)
