"""What eight devices exchange in a step: two sums a layer, and the logits of the rows that sample. The pool stays."""

from collections import Counter
from typing import Any

import pytest

from tests.sharding.emulated import run_emulated

ROWS, VOCAB, PADDED = 8, 97, 104


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_a_decode_step_has_two_all_reduces_a_layer_and_one_gather_of_the_selected_rows(checkpoints, kind):
    facts = run_emulated(
        "tests.sharding.compiled:decode_step", devices=8, model=str(checkpoints[kind]), shards=8, style="shard_map",
        num_pages=64,
    )  # fmt: skip
    kinds = Counter(kind for kind, _ in facts["collectives"])
    assert kinds == {"all-reduce": 2 * facts["layers"], "all-gather": 1}
    shapes = dict(facts["collectives"])
    assert shapes["all-reduce"] == [[ROWS, facts["width"]]]
    assert shapes["all-gather"] == [[ROWS, PADDED]]
    # All of a device's part of the pool is updated in place.
    assert facts["aliased"] >= facts["pool"]


@pytest.mark.slow
def test_memory_and_collectives_do_not_depend_on_the_pool(checkpoints):
    # The loop over layers as the engine has it on a CPU.
    arguments: dict[str, Any] = {
        "model": str(checkpoints["llama"]),
        "shards": 8,
        "style": "shard_map",
        "scan_unroll": 1,
    }
    small, large = (
        run_emulated("tests.sharding.compiled:decode_step", devices=8, **arguments, num_pages=pages)
        for pages in (64, 4096)
    )
    assert large["pool"] == 64 * small["pool"]
    assert small["temp"] == large["temp"] < large["pool"]
    assert small["collectives"] == large["collectives"]


@pytest.mark.slow
def test_the_compiler_s_own_collectives_are_as_few(checkpoints):
    facts = run_emulated(
        "tests.sharding.compiled:decode_step", devices=8, model=str(checkpoints["llama"]), shards=8, style="pjit",
        num_pages=64,
    )  # fmt: skip
    kinds = Counter(kind for kind, _ in facts["collectives"])
    assert kinds["all-reduce"] == 2 * facts["layers"] and sum(kinds.values()) == 2 * facts["layers"] + 1
    assert facts["aliased"] >= facts["pool"]


@pytest.mark.slow
def test_an_engine_moves_pages_and_draws_without_a_collective(checkpoints):
    facts = run_emulated(
        "tests.sharding.compiled:engine_programs", devices=4, model=str(checkpoints["llama"]), shards=4
    )
    assert facts["swaps"] > 0 and facts["donated"]
    for name, kinds in facts["collectives"].items():
        if name.startswith("decode"):
            assert sorted(kinds) == ["all-gather", "all-reduce", "all-reduce"], "the loop's body has one layer"
        elif not name.startswith("ragged"):
            assert kinds == [], name
    assert {name.partition("[")[0] for name in facts["collectives"]} >= {"swap_in", "swap_out", "copy_pages", "sample"}
    # Two kv heads are four, one for each device, and every device has all pages.
    assert facts["pool_of_a_device"] == [[3, facts["pages"], 4, 1, 8]] * 4
