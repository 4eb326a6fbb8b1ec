"""A run's folder: whole or absent, the same bytes for the same config, and enough to run it again."""

import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from experiments.config import CacheSection, DecodingSection, ExecutorSection, ExperimentConfig, PolicySection
from experiments.config_file import read_experiment
from experiments.launchers import Job, attempt
from experiments.point import REQUEST_COLUMNS
from experiments.record import is_done, read_summary
from experiments.replay import read_config, replay
from experiments.serving import FACT_FILES, TIME_FILES, run_point
from jpaged.sim.run_log import STEP_COLUMNS
from jpaged.sim.work import LOG_COLUMNS
from jpaged.workloads import WorkloadSpec
from jpaged.workloads.column_files import read_integers

SMALL = ExperimentConfig(
    question="Is it written?",
    policy=PolicySection(name="vllm-2023"),
    cache=CacheSection(num_pages=200),
    workload=WorkloadSpec(lengths="sharegpt", rate=4.0, num_requests=40),
    decoding=DecodingSection(method="sample", n=2),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / SMALL.digest()
    assert attempt(Job(SMALL, folder)).error is None
    return folder


def test_two_simulations_of_a_config_leave_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / recorded.name
    assert attempt(Job(SMALL, again)).error is None
    assert run_point(SMALL).stats["num_preemptions_swap"] > 0
    for name in (*FACT_FILES, *TIME_FILES):
        assert (recorded / name).read_bytes() == (again / name).read_bytes(), name


def test_the_question_changes_no_byte_that_is_compared(recorded: Path, tmp_path: Path) -> None:
    other = read_config(recorded)
    assert other.digest() == SMALL.digest()
    assert other.question == ""
    again = tmp_path / recorded.name
    attempt(Job(other, again))
    assert (recorded / "config.yaml").read_bytes() == (again / "config.yaml").read_bytes()
    assert json.loads((recorded / "provenance.json").read_text())["question"] == "Is it written?"


def test_the_tables_hold_all_columns_of_the_point_facts_and_times_apart(recorded: Path) -> None:
    point = run_point(SMALL)
    requests, times = (read_integers(recorded / f"{name}.csv.gz") for name in ("requests", "request_times"))
    assert requests["request"] == times["request"] == list(range(40))
    for name in REQUEST_COLUMNS:
        assert (((name in times) and times[name]) or requests[name]) == point.requests[name].tolist()
    assert requests["finished"] == [1] * 40
    steps, step_times = (read_integers(recorded / f"{name}.csv.gz") for name in ("steps", "step_times"))
    assert set(steps) == set(STEP_COLUMNS) - {"start_ns", "end_ns"}
    assert tuple(step_times) == LOG_COLUMNS
    ends = [start + span for start, span in zip(step_times["start_ns"], step_times["device_ns"], strict=True)]
    assert ends == point.steps["end_ns"].tolist()


def test_done_names_every_file_with_its_digest(recorded: Path) -> None:
    lines = {line[66:]: line[:64] for line in (recorded / "DONE").read_text().splitlines()}
    assert set(lines) == {path.name for path in recorded.iterdir()} - {"DONE"}
    for name, digest in lines.items():
        assert hashlib.sha256((recorded / name).read_bytes()).hexdigest() == digest


def test_provenance_says_which_code_inputs_and_machine(recorded: Path) -> None:
    facts = json.loads((recorded / "provenance.json").read_text())
    assert facts["schema_version"] == 2
    assert facts["workload_sha256"] == run_point(SMALL).workload.digest()
    assert facts["seeds"] == {"engine": 0, "workload": 0}
    assert facts["hostname"] and facts["python"] and facts["versions"]["numpy"]
    assert {"git_sha", "git_dirty", "xla_flags", "cost_profile", "cost_profile_sha256"} <= set(facts)


def test_wall_time_is_in_timing_alone(recorded: Path) -> None:
    timing = json.loads((recorded / "timing.json").read_text())
    assert timing["wall_s"] > 0
    assert timing["requests_per_wall_second"] == pytest.approx(40 / timing["wall_s"])
    for name in (*FACT_FILES, *TIME_FILES):
        assert "wall" not in name and b"wall" not in _plain(recorded / name)


def test_a_run_is_a_cost_profile_for_another(recorded: Path, tmp_path: Path) -> None:
    """In the times of its own steps a run is the same again."""
    profile = f"table:{recorded / 'step_times.csv.gz'}"
    config = ExperimentConfig(
        policy=SMALL.policy,
        cache=SMALL.cache,
        workload=SMALL.workload,
        decoding=SMALL.decoding,
        executor=ExecutorSection(cost_profile=profile),
    )
    assert run_point(config).plan_digest == read_summary(recorded)["plan_digest"]
    folder = tmp_path / "table"
    attempt(Job(config, folder))
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["cost_profile_sha256"] == hashlib.sha256((recorded / "step_times.csv.gz").read_bytes()).hexdigest()


def test_a_replay_agrees_with_what_was_recorded_and_leaves_it_alone(recorded: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()}
    assert replay(recorded) == []
    assert {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()} == before


def test_a_replay_says_what_differs(recorded: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(recorded, changed)
    # What other code may have written: its DONE is of its files.
    summary = json.loads((changed / "summary.json").read_text())
    came = summary["completed"]
    summary["completed"] = 7
    (changed / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    done_again(changed)
    assert replay(changed) == ["summary.json differs", f"  completed: 7 was recorded, {came} came"]
    with gzip.open(changed / "steps.csv.gz", "at") as file:
        file.write("1\n")
    done_again(changed)
    assert "steps.csv.gz differs" in replay(changed)


def test_a_folder_without_a_whole_run_cannot_be_replayed(recorded: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(recorded, changed)
    (changed / "DONE").unlink()
    assert not is_done(changed)
    with pytest.raises(ValueError, match=r"no whole run; .* or give the folder of a run"):
        replay(changed)


DAMAGES = [b"", b"[1]", b"{}", b"[\xff", None]


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "requests.csv.gz", "provenance.json", "DONE"])
@pytest.mark.parametrize("data", DAMAGES, ids=["empty", "list", "object", "junk", "missing"])
def test_a_damaged_run_is_refused_in_one_line_that_names_the_file(
    recorded: Path, tmp_path: Path, name: str, data: bytes | None
) -> None:
    folder = damaged(recorded, tmp_path, name, data)
    with pytest.raises(ValueError, match=re.escape(str(folder))) as caught:
        replay(folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert "run its config again" in str(caught.value)


@pytest.mark.parametrize("data", DAMAGES, ids=["empty", "list", "object", "junk", "missing"])
def test_a_damaged_summary_is_never_read_back(recorded: Path, tmp_path: Path, data: bytes | None) -> None:
    folder = damaged(recorded, tmp_path, "summary.json", data)
    with pytest.raises(ValueError, match=r"summary\.json: (is damaged|cannot be read)"):
        read_summary(folder)
    if data is not None:
        done_again(folder)
        with pytest.raises(ValueError, match=r"summary\.json: (is no JSON|holds no summary)"):
            read_summary(folder)


@pytest.mark.parametrize("text", ["", "[1]", "page_sise: 3", "seed: ["])
def test_a_config_that_was_recorded_wrong_is_refused_by_name(recorded: Path, tmp_path: Path, text: str) -> None:
    folder = damaged(recorded, tmp_path, "config.yaml", text.encode())
    done_again(folder)
    with pytest.raises(ValueError, match=r"config\.yaml: (holds no fields|page_sise: no such|is no YAML)"):
        read_config(folder)


def test_a_file_where_the_run_folder_goes_is_an_error_of_that_point_alone(tmp_path: Path) -> None:
    folder = tmp_path / SMALL.digest()
    folder.write_text("mine")
    error = attempt(Job(SMALL, folder)).error
    assert error == f"{folder}: is a file where a run's folder goes; remove it"
    assert folder.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (
            WorkloadSpec(
                lengths="constant", prompt_tokens=5000, output_tokens=4, arrivals="all_at_once", num_requests=3
            ),
            "3 of 3 requests were refused: the prompt has 5000 tokens",
        ),
        (WorkloadSpec(rate=1.0, duration_s=1e-9), "workload: has no requests: num_requests=None, duration_s=1e-09"),
        (
            WorkloadSpec(lengths="small", arrivals="all_at_once", max_model_len=2),
            "are longer than max_model_len=2; raise it",
        ),
    ],
    ids=["all refused", "none drawn", "all dropped"],
)
def test_a_run_that_would_serve_nobody_is_a_failed_point(tmp_path: Path, workload: WorkloadSpec, reason: str) -> None:
    config = ExperimentConfig(workload=workload)
    folder = tmp_path / config.digest()
    error = attempt(Job(config, folder)).error
    assert error is not None and reason in error
    assert not is_done(folder)


def test_a_failed_point_leaves_its_error_and_no_run(tmp_path: Path) -> None:
    config = ExperimentConfig(workload=WorkloadSpec(lengths="nowhere/file.csv", rate=1.0, num_requests=3))
    folder = tmp_path / config.digest()
    ended = attempt(Job(config, folder))
    assert ended.error is not None and "nowhere/file.csv" in ended.error and "\n" not in ended.error
    assert "Traceback" in (folder / "ERROR.txt").read_text()
    assert not is_done(folder)


def test_the_resolved_config_can_be_run_as_a_config_file_once_it_has_a_question(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text("question: Again?\n" + (recorded / "config.yaml").read_text())
    (config,) = read_experiment(path).configs
    assert config.digest() == SMALL.digest()


def damaged(recorded: Path, tmp_path: Path, name: str, data: bytes | None) -> Path:
    """A copy of the run with other bytes in one file, or without it."""
    folder = tmp_path / "damaged"
    shutil.copytree(recorded, folder)
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    return folder


def done_again(folder: Path) -> None:
    """Write DONE for the files as they are now."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "DONE")
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "DONE").write_text("".join(lines))


def _plain(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
