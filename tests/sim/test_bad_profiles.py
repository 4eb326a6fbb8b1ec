"""Profiles that cannot hold are refused by name: damaged files, impossible times, unknown hardware."""

import gzip
from pathlib import Path

import pytest

from jpaged.sim.profiles import load_profile
from jpaged.workloads.column_files import read_integers
from models.families import PRESETS

HEADER = "step,start_ns,device_ns,host_ns\n"
OPT = PRESETS["opt-13b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.csv.gz", gzip.compress(b"step,start_ns,device_ns,host_ns\n" * 50, mtime=0)[:30]),
        ("list.jsonl", b"[1]\n"),
        ("deep.jsonl", b"[" * 100_000),
        ("negative.csv", (HEADER + "0,0,-5,9\n").encode()),
        ("huge.csv", (HEADER + f"0,0,{10**400},9\n").encode()),
        ("words.csv", (HEADER + "0,0,many,9\n").encode()),
    ],
)
def test_a_damaged_step_log_is_refused_with_its_path(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name):
        read_integers(path)


def test_a_folder_is_no_step_log(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(ValueError, match=r"d\.csv: Is a directory"):
        read_integers(tmp_path / "d.csv")


def test_a_table_of_steps_that_take_no_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(HEADER + "0,0,5,0\n1,5,0,0\n")
    with pytest.raises(ValueError, match="row 1 takes no time"):
        load_profile(f"table:{path}", OPT, "A100-40GB")


@pytest.mark.parametrize("profile", ["ideal", "paper-2023", "measured:x.csv", "table:x.csv"])
def test_hardware_is_checked_whatever_the_profile(profile: str) -> None:
    with pytest.raises(ValueError, match=r"hardware='nonsense' is not known; choose one of A100-40GB"):
        load_profile(profile, OPT, "nonsense")
    for size in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="tensor_parallel_size="):
            load_profile(profile, OPT, "A100-40GB", size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tensor_parallel_size=3 does not divide the model's 40 heads"):
        load_profile(profile, OPT, "A100-40GB", 3)
