"""The whole decode step compiles for every GPU: pool in place, and no copy of a pool, a layer or its weights."""

import pytest
from ahead_of_time import COMPUTING, compile_for
from budget import is_one_command_buffer, key, largest_copy, recorded
from cases import bytes_of
from decode_step import ROWS, decode_step
from test_budget import SMALL_COPY, STEP_GROWTH

pytestmark = pytest.mark.gpu_proof

WORK = 32 * 2**20
"""Bytes a step may use for itself: activations, logits, splits."""


@pytest.mark.parametrize(
    ("preset", "target"),
    [(preset, target) for preset in ("opt-13b", "llama-3-8b") for target in ("A100-40", "A100-80", "H100", "H200")],
)
def test_a_decode_step_of_all_layers_updates_the_pool_in_place(preset: str, target: str, record_property):
    step = decode_step(preset)
    program = compile_for(target, step.function, *step.args, donate=(1, 2), registers=False)
    record_property("target", target)
    record_property("case", f"decode step {preset}, 32 rows, {len(program.thunks)} thunks")
    record_property("temp", program.temp)
    record_property("registers", {})
    assert step.largest_weight_of_a_layer > 2 * WORK > 2 * program.temp
    assert program.aliased >= bytes_of(step.pool)
    # Slices of stacked weights are part of the products that read them; a copy of one would be temporary memory.
    # What is copied are slices of the step's packed integers.
    assert set(program.kinds) <= COMPUTING | {"kCopy"}, program.kinds
    assert largest_copy(program) < SMALL_COPY
    assert is_one_command_buffer(program), program.host_calls
    if target in ("H100", "H200"):
        assert len(program.thunks) <= recorded().steps[key(preset, ROWS)].launches + STEP_GROWTH


def test_the_memory_of_a_step_does_not_depend_on_the_pool():
    small, large = (
        compile_for("H100", step.function, *step.args, donate=(1, 2), registers=False)
        for step in (decode_step("llama-3-8b", layers=4, num_pages=n) for n in (1024, 8192))
    )
    assert small.temp == large.temp
    assert small.thunks == large.thunks
