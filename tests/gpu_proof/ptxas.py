"""Registers of compiled kernels.

Lives here: what NVIDIA's assembler says about a kernel, from Mosaic GPU's own report or from `ptxas` on PATH.
Promises: a spill in a Mosaic kernel is an error; without `ptxas` the registers of other kernels stay unknown.
Must not know: what is compiled.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The newest PTX that ptxas of CUDA 12.9 reads; what XLA emits says a newer version and uses nothing of it.
_PTX_VERSION = ".version 8.8"


class RegisterSpill(Exception):
    """A kernel keeps registers in memory."""


def found() -> bool:
    """Whether `ptxas` is on PATH."""
    return shutil.which("ptxas") is not None


def registers_of_folder(folder: Path) -> dict[str, int]:
    """Registers a thread of every kernel whose PTX XLA dumped into `folder`."""
    registers = {}
    for path in sorted(folder.glob("*.ptx")):
        text = path.read_text()
        kernels, arch = re.findall(r"\.entry (\w+)", text), re.search(r"^\.target (\w+)", text, re.M)
        if kernels and arch:
            path.write_text(re.sub(r"^\.version 9\S*", _PTX_VERSION, text, flags=re.M))
            command = ["ptxas", "-v", f"-arch={arch[1]}", str(path), "-o", os.devnull]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
            registers[kernels[0]] = int(re.findall(r"Used (\d+) registers", said.stderr + said.stdout)[0])
    return registers


@contextmanager
def mosaic_report() -> Iterator[list[str]]:
    """While the block runs, Mosaic GPU's compiler says what its kernels use; afterwards the list has what it said."""
    said: list[str] = []
    sys.stdout.flush()
    keep = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"
        try:
            yield said
        finally:
            del os.environ["MOSAIC_GPU_DUMP_PTXAS"]
            os.dup2(keep, 1)
            os.close(keep)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def registers_of_mosaic(report: str) -> dict[str, int]:
    """Registers a thread of the Mosaic kernels in a report; raises RegisterSpill for one that spills."""
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", report)]
    if any(spills):
        raise RegisterSpill(report)
    used = [int(n) for n in re.findall(r"Used (\d+) registers", report)]
    return {"mosaic_gpu": max(used)} if used else {}
