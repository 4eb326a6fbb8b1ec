"""The wheel: what is in it, and that an environment which has nothing else of this project can use it."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.engine.tiny_text import write_text_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    # With the build backend at hand, nothing need be fetched.
    isolation = [] if importlib.util.find_spec("hatchling") is None else ["--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`jpaged` in a fresh environment: this project from the wheel, its dependencies from the one that runs the tests.

    A .pth file lends the dependencies; .pth files in what it names are not followed, so that the working tree, which is
    installed there as an editable project, is out of reach.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "jpaged"


def run(program: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The program's answer, away from the working tree."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([str(program), *args], cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_wheel_holds_the_three_packages_and_the_licence_alone(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"jpaged", "models", "pallas_kernels", "jpaged-0.1.0.dist-info"}
    assert "jpaged-0.1.0.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".gguf", ".safetensors"))]
    sources = {path.relative_to(ROOT).as_posix() for room in ("jpaged", "models", "pallas_kernels")
               for path in (ROOT / room).rglob("*.py")}  # fmt: skip
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_metadata_names_the_licence_the_python_and_the_program(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        metadata = file.read("jpaged-0.1.0.dist-info/METADATA").decode()
        scripts = file.read("jpaged-0.1.0.dist-info/entry_points.txt").decode()
    for line in ("Name: jpaged", "License-Expression: Apache-2.0", "License-File: LICENSE", "Requires-Python: >=3.12"):
        assert line in metadata.splitlines()
    assert "jpaged = jpaged.cli.main:main" in scripts


def test_the_wheel_imports_without_the_working_tree(program: Path, tmp_path: Path):
    code = "import jpaged, models, pallas_kernels; print(jpaged.__file__, models.__file__, pallas_kernels.__file__)"
    result = run(program.with_name("python"), tmp_path, "-c", code)
    assert result.returncode == 0, result.stderr
    assert all(Path(name).is_relative_to(program.parents[1]) for name in result.stdout.split())


def test_the_installed_program_generates_and_lists_models(program: Path, tmp_path: Path):
    model = str(write_text_model(tmp_path / "model"))
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--max-model-len", "32", "--max-tokens", "4"]
    result = run(program, tmp_path, "generate", "hello and", "--model", model, *small, "--ignore-eos", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert len(document["outputs"][0]["outputs"][0]["token_ids"]) == 4
    assert document["stats"]["pages_free"] == document["stats"]["pages_total"]
    listing = run(program, tmp_path, "models", "--json")
    assert listing.returncode == 0, listing.stderr
    assert "smollm2-135m" in [entry["name"] for entry in json.loads(listing.stdout)["models"]]
    refused = run(program, tmp_path, "generate", "hello", "--model", "/no/such")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
