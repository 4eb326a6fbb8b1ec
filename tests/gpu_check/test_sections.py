"""Sections of a GPU check: one that fails, hangs or is late loses nothing that it or another had found."""

import json
import sys
from pathlib import Path

import pytest

from jpaged.gpu_check.sections import SectionRun, run_sections
from jpaged.gpu_check.summary import num_wrong, summary

SCRIPT = """
import json, pathlib, sys, time
given = json.loads(sys.argv[-1])
name, part = given["name"], pathlib.Path(given["part"])
before = json.loads(pathlib.Path(given["report"]).read_text())["sections"]
part.write_text(json.dumps({"name": name, "before": [n for n, e in before.items() if e["status"] == "done"]}))
if name == "hangs":
    time.sleep(60)
    part.with_name("slept").touch()
if name == "fails":
    raise RuntimeError("illegal address")
if name == "mute":
    part.unlink()
"""


DOCUMENT = {"tiny": False, "device": "gpu: X", "jax": "1", "time": "now"}


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A program whose sections do as they are called."""
    (tmp_path / "program.py").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "program.py")]


def test_failures_and_hangs_keep_what_they_had_and_stop_nobody(tmp_path, program):
    sections = {"fine": 60.0, "fails": 60.0, "hangs": 5.0, "mute": 60.0, "also fine": 60.0}
    path = tmp_path / "r.json"
    assert len(list(run_sections(path, DOCUMENT | {"sections": {}}, sections, budget=400, program=program, grace=1.0)))
    assert not (tmp_path / "slept").exists(), "a section that hangs is ended, not waited for"
    written = json.loads(path.read_text())["sections"]
    statuses = {name: entry["status"] for name, entry in written.items()}
    assert statuses == {"fine": "done", "fails": "failed", "hangs": "out of time", "mute": "done", "also fine": "done"}
    assert "illegal address" in written["fails"]["output"]
    assert [written[name]["result"].get("name") for name in ("fails", "hangs", "mute")] == ["fails", "hangs", None]
    assert written["also fine"]["result"]["before"] == ["fine", "mute"]
    assert not list(tmp_path.glob("*.part"))


def test_what_comes_after_the_budget_is_left_out_and_said_so(tmp_path, program):
    document = DOCUMENT | {"sections": {}}
    sections = {"hangs": 1.0, "fine": 20.0}
    found = dict(run_sections(tmp_path / "r.json", document, sections, budget=1.5, program=program, grace=0.5))
    assert found["fine"] == {"status": "left out", "seconds": 0.0, "result": {}}
    assert "fine: left out" in summary(document)


def test_a_section_that_has_no_time_says_what_it_left_out(tmp_path):
    run = SectionRun(tiny=True, seconds=0.0, before={}, target=tmp_path / "part")
    assert not run.has_time("the second half")
    assert json.loads((tmp_path / "part").read_text()) == {"left_out": ["the second half"]}
    assert SectionRun(tiny=True, seconds=9.0, before={}, target=tmp_path / "x").has_time("all of it")


def test_what_is_no_number_is_null_in_the_file(tmp_path):
    run = SectionRun(tiny=True, seconds=9.0, before={}, target=tmp_path / "part")
    run.found |= {"a": [float("nan"), 1.5], "b": {"c": float("inf")}}
    run.flush()
    assert json.loads((tmp_path / "part").read_text()) == {"a": [None, 1.5], "b": {"c": None}}


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"status": "done", "result": {"num_wrong": 0}}, 0),
        ({"status": "done", "result": {"num_wrong": 2}}, 2),
        # What was not checked to its end was not found right.
        ({"status": "out of time", "result": {"num_wrong": 0}}, 1),
        ({"status": "failed", "result": {}}, 1),
    ],
)
def test_a_check_that_did_not_end_counts_as_wrong(entry, wrong):
    assert num_wrong({"sections": {"correctness": entry, "kernels": {"status": "failed", "result": {}}}}) == wrong
