"""A decode step launches, copies and keeps no more than is recorded, and the host starts it with one call."""

from dataclasses import replace

import budget
import pytest
from budget import CASES, Budget, compiled, is_one_command_buffer, key, measure, recorded

pytestmark = pytest.mark.gpu_proof

LAYER_GROWTH, STEP_GROWTH = 0, 4
"""Launches more than recorded that a layer, and what is outside of the layers, may have."""

BYTES_GROWTH = 1.10
"""Times the recorded bytes, of memory and of traffic."""

SMALL_COPY = 2**20
CACHE = 50e6
"""Bytes of the second-level cache of both devices; what launches leave for each other is expected to stay in it."""


def grown(now: Budget, before: Budget) -> dict[str, tuple[float, float]]:
    """What has grown by more than is allowed: now, and at most."""
    layers = sum(before.layer.values())
    allowed = {
        "launches of a layer": (sum(now.layer.values()), layers + LAYER_GROWTH),
        "launches": (now.launches, before.launches + STEP_GROWTH),
        "host calls": (now.host_calls, before.host_calls),
        "temporary memory": (now.temp, BYTES_GROWTH * before.temp),
        "largest copy": (now.largest_copy, before.largest_copy),
        "bytes besides the weights": (now.besides_weights, BYTES_GROWTH * before.besides_weights),
    }
    return {what: pair for what, pair in allowed.items() if pair[0] > pair[1]}


@pytest.mark.parametrize(("preset", "batch"), CASES)
def test_a_step_stays_within_its_budget_as_one_command_buffer_on_both_devices(preset: str, batch: int, record_property):
    now = measure(preset, batch)
    record_property("target", "H100")
    record_property("case", f"budget {key(preset, batch)}: {now.launches} launches, {now.host_calls} host calls")
    record_property("temp", now.temp)
    record_property("registers", {})
    assert not grown(now, recorded().steps[key(preset, batch)])
    assert set(now.step) <= {"matrix products", "pallas kernels", "fusions", "copies"}
    assert now.layer["pallas kernels"] == 2 and now.layer.get("copies", 0) == 0
    assert now.largest_copy < SMALL_COPY
    assert all(is_one_command_buffer(compiled(preset, batch, depth, "H100")) for depth in budget.DEPTHS)
    one, other = (compiled(preset, batch, budget.DEPTHS[0], target) for target in budget.TARGETS)
    assert len(other.thunks) <= len(one.thunks) and other.host_calls == one.host_calls
    assert max(now.temp, other.temp) < CACHE


def test_a_sampler_is_started_in_no_more_calls_than_recorded():
    record = recorded()
    assert len(budget.sampler_calls("")) <= len(record.sampler)
    assert len(budget.sampler_calls(budget.ALL_THUNKS)) <= len(record.sampler_with_loops)


def test_growth_beyond_what_is_stated_is_found():
    (before, *_) = recorded().steps.values()
    more = {**before.layer, "fusions": before.layer["fusions"] + 1}
    assert grown(before, before) == {}
    assert set(grown(replace(before, layer=more), before)) == {"launches of a layer"}
    assert set(grown(replace(before, temp=2 * before.temp), before)) == {"temporary memory"}
