"""`python -m jpaged.gpu_check` on a machine without a GPU: a rehearsal of every section, and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALL = {"device", "correctness", "correctness_mosaic", "autotune", "kernels", "engine", "swap", "devices", "page_sizes"}


def check(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jpaged.gpu_check", *args],
        capture_output=True,
        text=True,
        check=False,
        # Nobody looks at the speed of a rehearsal, and most of it is compiling.
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} | environment,
    )


@pytest.mark.slow
def test_every_section_comes_to_its_end_and_its_findings_are_written(tmp_path: Path):
    done = check("--platform", "cpu", "--tiny", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    found = {name: entry["result"] for name, entry in document["sections"].items()}
    assert {name: entry["status"] for name, entry in document["sections"].items()} == dict.fromkeys(ALL, "done")
    assert document["tiny"] is True
    assert found["device"]["copy_gb_per_second"] > 0 < found["device"]["matmul_tflops"]
    assert found["correctness"]["num_right"] == len(found["correctness"]["checks"]) == 8
    assert found["correctness_mosaic"]["num_right"] == 1
    assert {entry["operation"] for entry in found["autotune"]["best"]} == {"paged_attention", "ragged_paged_attention"}
    assert not [row for row in found["kernels"]["rows"] if "error" in row]
    assert found["engine"]["batches"][0]["bound_ms"] > 0 < found["engine"]["batches"][0]["step_ms"]
    assert found["engine"]["attention_implementation"] == "xla"
    assert found["swap"]["swapped"] and found["swap"]["same_bytes"] and found["swap"]["all_finished"]
    assert [row["page_size"] for row in found["page_sizes"]["page_sizes"]] == [16, 4]
    assert found["devices"]["sizes"] == [{"tensor_parallel_size": 1, "same_tokens": 1.0}]
    assert "All checks right." in done.stdout
    refused = check("--write-tuned", str(path))
    assert refused.returncode == 2
    assert "is a rehearsal" in refused.stderr


@pytest.mark.slow
def test_the_section_devices_uses_as_many_as_there_are(tmp_path: Path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    arguments = ["--platform", "cpu", "--tiny", "--sections", "devices"]
    done = check(*arguments, OUT=str(tmp_path), XLA_FLAGS=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())["sections"]["devices"]["result"]
    assert [row["tensor_parallel_size"] for row in found["sizes"]] == [1, 2]
    assert found["num_wrong"] == 0
    assert "over 2:" in done.stdout


def test_without_a_gpu_it_says_so_and_runs_nothing(tmp_path: Path):
    done = check("--output", str(tmp_path / "x.json"), JAX_PLATFORMS="cpu")
    assert done.returncode == 2
    assert "there is no GPU that JAX can use" in done.stderr
    assert "--platform cpu --tiny" in done.stderr
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--platform", "cpu"], "go together"),
        (["--tiny"], "go together"),
        (["--platform", "cpu", "--tiny", "--sections", "device,speed"], "sections='speed': choose one of device, "),
        (["--platform", "cpu", "--tiny", "--budget", "0"], "budget=0.0"),
        (["--platform", "cpu", "--tiny", "--output", "/proc/none/x.json"], "output=/proc/none/x.json"),
        (["--write-tuned", "/no/such.json"], "/no/such.json"),
    ],
)
def test_a_mistake_is_one_line(flags, said):
    done = check(*flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
