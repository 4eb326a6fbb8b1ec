"""`--profile DIR`: a trace is left there, with the stages of a step in it; a folder that cannot be is refused."""

from pathlib import Path

import jax
import pytest
from click.testing import CliRunner

from jpaged.cli.main import main
from jpaged.observing.profiling import check_profile, profiled
from tests.engine.tiny import TINY_LLAMA

FLAGS = ["--model", TINY_LLAMA, "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--max-model-len", "32"]


def test_a_profiled_run_leaves_a_trace_that_names_the_stages(tmp_path: Path):
    folder = tmp_path / "new" / "trace"
    lengths = ["--num-prompts", "2", "--input-len", "4", "--output-len", "4"]
    result = CliRunner().invoke(main, ["bench", "throughput", *lengths, *FLAGS, "--profile", str(folder)])
    assert result.exit_code == 0, result.output
    (trace,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    names = {event.name for plane in planes for line in plane.lines for event in line.events}
    assert {"pack", "transfer", "dispatch", "wait", "fetch"} <= names


def test_without_a_folder_nothing_is_recorded():
    check_profile(None)
    with profiled(None):
        pass


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="no folder can be written there; check the path"):
        check_profile(file / "trace")
