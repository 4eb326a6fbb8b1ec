"""The sections of a run, each in a process of its own.

A section that fails, hangs, or takes the GPU down with it ends by itself; what it had found by then is kept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec


@dataclass
class SectionRun:
    """What a section works with: its time, its sizes, what was found before it, and where its findings go.

    `tiny`: a rehearsal on the CPU, in shapes that take no time, with GPU kernels interpreted. `before`: the results of
    the sections already run. `found`: the section's result so far; `flush` after each addition keeps it.
    """

    tiny: bool
    seconds: float
    before: dict[str, Any]
    target: Path
    found: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the section should end."""
        return self.started + self.seconds - time.monotonic()

    def has_time(self, what: str, needed: float = 0.0) -> bool:
        """Whether there are `needed` seconds left; if not, `what` is noted as left out."""
        if self.left > needed:
            return True
        self.found.setdefault("left_out", []).append(what)
        self.flush()
        return False

    def in_time[T](self, items: Iterable[T], what: Callable[[T], str], needed: float) -> Iterator[T]:
        """The items for which `has_time`; what was found for each is kept before the next."""
        for item in items:
            if self.has_time(what(item), needed):
                yield item
                self.flush()

    def keep(self, **facts: Any) -> None:
        """Add to what was found, and keep it."""
        self.found |= facts
        self.flush()

    def flush(self) -> None:
        """Keep what was found so far, come what may."""
        write_whole(self.target, self.found)


PROGRAM = (sys.executable, "-m", "jpaged.gpu_check")


def write_whole(path: Path, document: Any) -> None:
    """The document in a file that is never half written. What is not a number is null: JSON has no NaN."""
    text = msgspec.json.format(msgspec.json.encode(document, enc_hook=float), indent=1)  # NumPy numbers too
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
        file.write(text + b"\n")
    os.replace(file.name, path)


def run_sections(
    path: Path,
    document: dict[str, Any],
    sections: Mapping[str, float],
    *,
    budget: float,
    program: Sequence[str] = PROGRAM,
    grace: float = 15.0,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run each section (its name, its seconds) as `program --section FACTS`; yields its name and what it gave.

    A section gets its own seconds or what is left of `budget`, whichever is less, and is killed `grace` seconds and a
    quarter of its own after that. The document of the run is written to `path` as it grows.
    """
    end = time.monotonic() + budget
    for name, seconds in sections.items():
        left = end - time.monotonic()
        entry: dict[str, Any] = {"status": "left out", "seconds": 0.0, "result": {}}
        document["sections"][name] = entry
        if left > min(5.0, seconds):
            entry["status"] = "running"
            write_whole(path, document)
            part = path.with_name(f"{path.stem}.{name}.part")
            facts = {"name": name, "tiny": document["tiny"], "report": str(path), "part": str(part)}
            entry |= _run_one(program, facts, part, min(seconds, left), grace)
        write_whole(path, document)
        yield name, entry


def _run_one(program: Sequence[str], facts: dict[str, Any], part: Path, seconds: float, grace: float) -> dict[str, Any]:
    command = [*program, "--section", json.dumps(facts | {"seconds": seconds})]
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = "failed" if process.wait(timeout=seconds * 1.25 + grace) else "done"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")[-4000:]
    entry = {"status": status, "seconds": time.monotonic() - start, "result": _read_part(part)}
    return entry if status == "done" else entry | {"output": said}


def _read_part(part: Path) -> dict[str, Any]:
    try:
        result = json.loads(part.read_text())
    except (OSError, ValueError):
        return {}
    part.unlink()
    return result
