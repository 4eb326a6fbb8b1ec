"""Compilation for a GPU that is not there.

Lives here: the targets, `compile_for`, and what a compiled program tells about itself.
Promises: XLA, Triton and Mosaic GPU all run to machine code; a register spill fails the compilation.
Must not know: what is compiled.
"""

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import ptxas
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import _jax

TARGETS = {
    "A100-40": "NVIDIA_A100-SXM4-40GB",
    "A100-80": "NVIDIA_A100-SXM4-80GB",
    "H100": "NVIDIA_H100_80GB_HBM3",
    "H200": "NVIDIA_H200_141GB_HBM3e",
}

# Autotuning runs kernels, which takes a GPU.
_OPTIONS = {"xla_gpu_autotune_level": "0", "xla_gpu_fail_ptx_compilation_on_register_spilling": True}

COMPUTING = {"kCustomKernel", "kCustomCall", "kKernel", "kGemm", "kCublasLtMatmul"}
"""Kinds of thunks that compute: no loop, no condition, no copy, no fill."""

COMMAND_BUFFER = "kCommandBuffer"
"""The kind of thunk that is one CUDA graph, launched by the host in one call."""


@dataclass(frozen=True)
class Program:
    """What a compiled program says of itself.

    Bytes of temporary memory and of arguments updated in place; kinds and names of its thunks, in order; kinds of what
    the host itself starts, in order, which is less where thunks became command buffers; its optimised HLO; registers a
    thread by kernel, where they are known; bytes read and written by XLA's own count, which takes a call of a Pallas
    kernel for nothing and a row out of a table for the whole table.
    """

    temp: int
    aliased: int
    thunks: list[tuple[str, str]]
    host_calls: list[str]
    hlo: str
    registers: dict[str, int]
    bytes_accessed: float

    @property
    def kinds(self) -> Counter[str]:
        """How many thunks of each kind there are."""
        return Counter(kind for kind, _ in self.thunks)

    def largest(self, *operations: str) -> int:
        """Bytes of the largest result of any instruction of the given kinds."""
        pattern = rf"= (\w+)\[([\d,]*)\]\S* (?:{'|'.join(operations)})\("
        sizes = [_bytes(dtype, dims) for dtype, dims in re.findall(pattern, self.hlo)]
        return max(sizes, default=0)

    def largest_call(self, computation: str) -> int:
        """Bytes of the largest result of a fusion whose computation has a name that begins so."""
        pattern = rf"= (\w+)\[([\d,]*)\]\S* fusion\(.*calls=%{computation}"
        return max((_bytes(dtype, dims) for dtype, dims in re.findall(pattern, self.hlo)), default=0)

    def fusions_reading(self, argument: str) -> int:
        """How many fusions read the argument of the program whose name begins so."""
        entry = self.hlo[self.hlo.index("\nENTRY ") :]
        return len(re.findall(rf" fusion\([^)]*%{argument}", entry))


def _bytes(dtype: str, dims: str) -> int:
    bits = int((re.findall(r"\d+", dtype.split("e")[0]) or ["8"])[0])
    return math.prod(int(n) for n in dims.split(",") if n) * bits // 8


def architecture(target: str) -> tuple[int, int]:
    """The compute capability of a target."""
    return (8, 0) if target.startswith("A100") else (9, 0)


@cache
def _mesh(target: str) -> jax.sharding.Mesh:
    # Asked for its devices, JAX looks for plugins; JAX_PLATFORMS=cpu keeps the plugin from looking for a driver.
    jax.devices()
    text = (Path(__file__).parent / "targets" / f"{TARGETS[target]}.txtpb").read_text()
    topology = topologies.get_topology_desc(platform="cuda", topology_name="", topology="1x1x1", target_config=text)
    return jax.sharding.Mesh(np.array(topology.devices), ("gpu",))


def compile_for(
    target: str,
    function: Callable[..., Any],
    *args: Any,
    donate: Any = (),
    registers: bool = True,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Program:
    """`function` compiled for a target; `args` are trees of shapes and dtypes, never arrays.

    `registers` asks `ptxas` for them, kernel by kernel, which takes as long as the compilation. `options` are XLA's,
    besides those that compiling without a device needs.
    """
    mesh = _mesh(target)
    one_device = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=one_device), args)
    with jax.set_mesh(mesh), _mosaic_architecture(target), tempfile.TemporaryDirectory() as folder:
        lowered = jax.jit(function, donate_argnums=donate).lower(*args)
        wanted = _OPTIONS | dict(options) | {"xla_dump_to": folder}
        if registers and ptxas.found():
            wanted["xla_dump_emitter_re"] = "ptx"
        with ptxas.mosaic_report() as report:
            compiled = lowered.compile(compiler_options=wanted)
        used = ptxas.registers_of_folder(Path(folder)) | ptxas.registers_of_mosaic(report[0])
        thunks, host_calls = _thunks(Path(folder)), _host_calls(Path(folder))
    memory = compiled.memory_analysis()
    return Program(
        temp=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        thunks=thunks,
        host_calls=host_calls,
        hlo=compiled.as_text(),
        registers=used,
        bytes_accessed=_bytes_accessed(compiled),
    )


def _thunks(folder: Path) -> list[tuple[str, str]]:
    (path,) = folder.glob("*.thunk_sequence.txt")
    thunks = re.findall(r"^\s*\d+: (k\w+) +\[.*?\] ?(\S*)", path.read_text(), re.M)
    assert thunks, "the dump of thunks has another form; ahead_of_time._thunks must learn it"
    return thunks


def _host_calls(folder: Path) -> list[str]:
    """Kinds of the outermost thunks once XLA has put others into command buffers: what is not indented."""
    # A program of few thunks stays as it is, and is written once.
    written = [*folder.glob("*.thunk_sequence_after_thunk_passes.txt"), *folder.glob("*.thunk_sequence.txt")]
    kinds = re.findall(r"^\d+: (k\w+) ", written[0].read_text(), re.M)
    assert kinds, "the dump of thunks has another form; ahead_of_time._host_calls must learn it"
    return kinds


def _bytes_accessed(compiled: Any) -> float:
    # An executable for a device that is not there has no cost analysis of its own, so another client reads its HLO.
    (module,) = compiled.runtime_executable().hlo_modules()
    return _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)["bytes accessed"]


@contextmanager
def _mosaic_architecture(target: str) -> Iterator[None]:
    # Mosaic GPU asks the device of the process, and takes an abstract one for a Hopper. JAX has no other way to say it.
    from jax.experimental.mosaic.gpu import utils

    before, utils._infer_arch = utils._infer_arch, lambda: architecture(target)
    try:
        yield
    finally:
        utils._infer_arch = before
