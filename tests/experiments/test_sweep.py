"""Sweeps: each point once, a killed sweep goes on where it was, one bad point stops no other, on every launcher."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.config import CacheSection, ExperimentConfig, PolicySection
from experiments.record import is_done, read_summary
from experiments.run import main
from experiments.sweep import PointsFailed, run_points
from jpaged.workloads import WorkloadSpec

REPOSITORY = Path(__file__).parents[2]


def config_at(rate: float, num_requests: int = 10) -> ExperimentConfig:
    return ExperimentConfig(
        policy=PolicySection(name="vllm-2023"),
        cache=CacheSection(num_pages=400),
        workload=WorkloadSpec(rate=rate, num_requests=num_requests),
    )


BAD = ExperimentConfig(workload=WorkloadSpec(lengths="nowhere/file.csv", rate=1.0, num_requests=3))


def done_times(root: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in root.glob("*/DONE")}


def test_summaries_come_in_the_order_of_the_configs_and_equal_configs_run_once(tmp_path: Path) -> None:
    configs = [config_at(2.0), config_at(1.0), config_at(2), config_at(3.0)]
    found = run_points(configs, tmp_path, workers=2, progress=False)
    assert len(list(tmp_path.iterdir())) == 3
    assert found == [read_summary(tmp_path / config.digest()) for config in configs]
    assert found[0] == found[2] != found[1]


def test_processes_and_this_process_find_the_same(tmp_path: Path) -> None:
    configs = [config_at(1.0), config_at(2.0)]
    alone = run_points(configs, tmp_path / "alone", workers=1, progress=False)
    assert run_points(configs, tmp_path / "pool", workers=2, progress=False) == alone


def test_a_finished_point_is_read_back_and_never_run_again(tmp_path: Path) -> None:
    first = run_points([config_at(1.0)], tmp_path, progress=False)
    before = done_times(tmp_path)
    both = run_points([config_at(2.0), config_at(1.0)], tmp_path, progress=False)
    assert both[1] == first[0]
    assert {name: at for name, at in done_times(tmp_path).items() if name in before} == before


def test_a_failed_point_stops_no_other_and_runs_again_the_next_time(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(PointsFailed, match=r"nowhere/file\.csv") as failed:
            run_points([BAD, config_at(1.0)], tmp_path, workers=2, progress=False)
        assert list(failed.value.errors) == [BAD.digest()]
        assert failed.value.summaries[0] is None
        assert failed.value.summaries[1] == read_summary(tmp_path / config_at(1.0).digest())
    assert (tmp_path / BAD.digest() / "ERROR.txt").exists()


def test_an_unknown_launcher_or_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="launcher='cloud': choose one of local, ray, slurm"):
        run_points([config_at(1.0)], tmp_path, launcher="cloud")
    with pytest.raises(ValueError, match="workers=0: must be at least 1"):
        run_points([config_at(1.0)], tmp_path, workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_every_launcher_finds_what_the_local_one_finds(tmp_path: Path, package: str) -> None:
    launcher = "slurm" if package == "submitit" else package
    configs = [config_at(1.0), config_at(2.0)]
    local = run_points(configs, tmp_path / "local", progress=False)
    root = tmp_path / launcher
    assert run_points(configs, root, launcher=launcher, workers=2, progress=False) == local
    with pytest.raises(PointsFailed, match=r"nowhere/file\.csv"):
        run_points([*configs, BAD], root, launcher=launcher, workers=2, progress=False)


def test_a_launcher_whose_package_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match="pip install ray"):
        run_points([config_at(1.0)], tmp_path, launcher="ray", progress=False)


STUDY = """question: Does it go on?
policy: {name: vllm-2023}
workload: {lengths: sharegpt, rate: 3.0, num_requests: 150}
sweep: {grid: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}}
"""


def command(tmp_path: Path, *more: str) -> list[str]:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return [sys.executable, "-m", "experiments.run", str(path), "--output", str(tmp_path / "runs"), *more]


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "study"
    arguments = command(tmp_path, "--workers", "2")
    process = subprocess.Popen(arguments, cwd=REPOSITORY, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(done_times(root)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    # Its workers end with it; the pipe is closed when the last of them has gone.
    process.communicate(timeout=30)
    before = done_times(root)
    assert 2 <= len(before) < 8, "the sweep is killed in the middle"
    again = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    after = done_times(root)
    assert len(after) == 8
    assert {name: after[name] for name in before} == before
    # A table with a line a point, and the index.
    assert len(again.stdout.splitlines()) == 2 + 1 + 8
    assert len((root / "index.csv").read_text().splitlines()) == 9


def test_a_dry_run_lists_the_points_and_runs_none(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "--dry-run"), cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.count("to run") == 8
    assert not (tmp_path / "runs").exists()


def one_point(tmp_path: Path, workload: str, rest: str = "") -> list[str]:
    """The arguments that run a config of one point, which is written here."""
    path = tmp_path / "one.yaml"
    path.write_text(f"question: Does it?\nworkload: {{{workload}}}\n{rest}")
    return [str(path), "--output", str(tmp_path / "runs")]


def test_the_command_line_tells_mistakes_failures_and_differences_apart(tmp_path: Path) -> None:
    run = one_point(tmp_path, "rate: 2.0, num_requests: 5")
    wrong = CliRunner().invoke(main, [*run, "--set", "cache.page_sise=3"])
    assert wrong.exit_code == 2
    assert "did you mean page_size?" in wrong.output
    missing = CliRunner().invoke(main, [*run, "--set", "workload.lengths=nowhere/file.csv"])
    assert missing.exit_code == 2
    assert "nowhere/file.csv" in missing.output
    failed = CliRunner().invoke(main, [*run, "--set", "policy.max_model_len=2"])
    assert failed.exit_code == 1
    assert "failed: 5 of 5 requests were refused: the prompt has" in failed.output
    good = CliRunner().invoke(main, run)
    assert good.exit_code == 0, good.output
    (folder,) = (folder for folder in (tmp_path / "runs" / "one").iterdir() if is_done(folder))
    assert CliRunner().invoke(main, ["--replay", str(folder)]).exit_code == 0
    record_otherwise(folder, "requests.csv.gz")
    differs = CliRunner().invoke(main, ["--replay", str(folder)])
    assert differs.exit_code == 1
    assert "requests.csv.gz differs" in differs.output
    for name in ("requests.csv.gz", "summary.json"):
        (folder / name).write_bytes(b"")
    damaged = CliRunner().invoke(main, ["--replay", str(folder)])
    assert (damaged.exit_code, damaged.output.count("\n")) == (2, 1)
    assert "summary.json: is damaged" in damaged.output
    read_back = CliRunner().invoke(main, run)
    assert read_back.exit_code == 2
    assert "summary.json: is damaged" in read_back.output
    neither = CliRunner().invoke(main, [])
    assert neither.exit_code == 2


def test_a_number_that_no_summary_has_cannot_be_shown(tmp_path: Path) -> None:
    run = one_point(tmp_path, "rate: 2.0, num_requests: 5", "show: [mean_tft_ms]\n")
    shown = CliRunner().invoke(main, run)
    assert shown.exit_code == 2
    assert "did you mean mean_ttft_ms?" in shown.output
    assert not (tmp_path / "runs").exists(), "it is told before anything runs"


def test_requests_that_were_refused_and_runs_of_which_nothing_finished_are_warned_of(tmp_path: Path) -> None:
    run = one_point(tmp_path, "lengths: sharegpt, rate: 2.0, num_requests: 40")
    some = CliRunner().invoke(main, [*run, "--set", "policy.max_model_len=100"])
    assert some.exit_code == 0
    assert re.search(r"warning: point \w+: \d+ of 40 requests were refused; see its refused\.json", some.output)
    stopped = CliRunner().invoke(main, [*run, "--set", "stop_at_s=0.001"])
    assert re.search(r"warning: point \w+: none of 40 requests finished", stopped.output)
    assert "warning" not in CliRunner().invoke(main, run).output


@pytest.mark.parametrize("dry", [True, False])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, dry: bool) -> None:
    path, *_ = one_point(tmp_path, "rate: 2.0, num_requests: 5")
    for output in (path, tmp_path / ("a" * 300)):
        result = CliRunner().invoke(main, [path, "--output", str(output), *(["--dry-run"] if dry else [])])
        assert result.exit_code == (0 if dry else 2), result.output
        assert dry or "give a folder that can be written to" in result.output


def test_a_file_where_a_run_folder_goes_stops_no_other_point(tmp_path: Path) -> None:
    first, second = config_at(1.0), config_at(2.0)
    (tmp_path / first.digest()).write_text("mine")
    with pytest.raises(PointsFailed, match="is a file where a run's folder goes") as failed:
        run_points([first, second], tmp_path, workers=1, progress=False)
    assert failed.value.summaries == [None, read_summary(tmp_path / second.digest())]


def record_otherwise(folder: Path, name: str) -> None:
    """Give a recorded file other bytes, and DONE their digest, as other code might have recorded them."""
    old = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / name).write_bytes(b"other")
    done = (folder / "DONE").read_text()
    (folder / "DONE").write_text(done.replace(old, hashlib.sha256(b"other").hexdigest()))
