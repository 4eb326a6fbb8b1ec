"""Each device reads its own slices of a checkpoint, and no process needs the memory for all of it."""

import re

import pytest

from tests.sharding.checkpoints import write_checkpoint
from tests.sharding.emulated import run_emulated
from tests.sharding.job import job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "shards", "dtype"), [("llama", 8, "float32"), ("llama-tied", 4, "bfloat16"), ("opt", 8, "float32")]
)
def test_slices_of_the_files_are_the_slices_of_the_whole(checkpoints, kind, shards, dtype):
    folder = checkpoints[kind]
    got = run_emulated(
        "tests.sharding.loading:by_slices_and_whole", devices=shards, model=str(folder), shards=shards, dtype=dtype
    )
    assert got["same"] and got["leaves"] >= 9
    # What all devices hold whole is read once; kv heads that are repeated are read once for each copy.
    size = (folder / "model.safetensors").stat().st_size
    assert got["bytes_read"] < 1.3 * size


def test_a_checkpoint_that_is_larger_than_a_process_may_hold_loads_in_two(tmp_path):
    folder = write_checkpoint(
        tmp_path / "large", "llama", hidden_size=512, head_dim=64, num_key_value_heads=8, intermediate_size=2048,
        num_hidden_layers=16,
    )  # fmt: skip
    with job("load", {}, {}, devices=1, model=str(folder)) as members:
        for i, member in enumerate(members):
            assert member.ends(150) == 0, member.err
            found = re.search(r"read (\d+) held (\d+) of (\d+)", member.out)
            assert found is not None, member.out
            read, held, size = map(int, found.groups())
            assert held == read + i * 512 * 4, "a row of zeros in the last shard pads the vocabulary of 97"
            assert held < 0.51 * size
            assert "the whole does not fit" in member.out
