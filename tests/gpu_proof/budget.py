"""What a decode step costs on a GPU before anything has run: launches, bytes, memory.

Lives here: `measure` (compiled, by model and rows), the recorded budget, and what it predicts.
Promises: counts come out of programs compiled to machine code; the depth of a model is a multiple of its layers, which
the steps compiled at full depth confirm.
Must not know: how the table looks (budget_page.py), what a GPU does with it.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import jax
from ahead_of_time import COMMAND_BUFFER, Program, compile_for
from cases import bytes_of
from decode_step import decode_step, sampler_step

from jpaged.sim.hardware import HARDWARE
from models.families import PRESETS

MODELS = ("llama-3-8b", "opt-13b")
BATCHES = (1, 32, 256)
TARGETS = ("H100", "H200")
CASES = [(preset, batch) for preset in MODELS for batch in BATCHES]

CONTEXT = 256
"""Tokens of each row: what OPT-13B has room for beside its weights on 80 GB at 256 rows."""

LEAST_ROWS = 2
"""Rows of the smallest decode step that the engine compiles."""

DEPTHS = 2, 4
LAUNCH_SECONDS = 2e-6
"""Of one kernel in a command buffer, besides its bytes. Assumed; nobody has measured it."""
REACHED = 0.8
"""Share of the data sheet's bandwidth that a step reaches. The simulator's figure for A100; not measured on these."""

ALL_THUNKS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
"""What XLA captures by itself, and loops."""

RECORDED = Path(__file__).parent / "budget.json"


@dataclass(frozen=True)
class Budget:
    """A decode step of a model at full depth. Launches by kind, in a layer (any but the first) and in the whole step;
    calls of the host for it; bytes of temporary memory and of its largest copy; bytes that its kernels but Pallas'
    read and write besides the weights, by XLA's count."""

    layer: dict[str, int]
    step: dict[str, int]
    host_calls: int
    temp: int
    largest_copy: int
    besides_weights: int

    @property
    def launches(self) -> int:
        """Of the whole step."""
        return sum(self.step.values())


@cache
def compiled(preset: str, batch: int, depth: int, target: str) -> Program:
    """The step of the first `depth` layers."""
    step = decode_step(preset, layers=depth, rows=max(batch, LEAST_ROWS))
    return compile_for(target, step.function, *step.args, donate=(1, 2), registers=False)


def measure(preset: str, batch: int, target: str = "H100") -> Budget:
    """What the compiler made of the step, grown from two depths to the model's own."""
    few, more = (compiled(preset, batch, depth, target) for depth in DEPTHS)
    layers = PRESETS[preset].num_layers
    added = DEPTHS[1] - DEPTHS[0]
    layer = {kind: count // added for kind, count in (launches(more) - launches(few)).items()}
    step = {kind: count + layer.get(kind, 0) * (layers - DEPTHS[0]) for kind, count in launches(few).items()}
    besides = [_besides_weights(preset, batch, depth, target) for depth in DEPTHS]
    return Budget(
        layer=dict(sorted(layer.items())),
        step=dict(sorted(step.items())),
        host_calls=len(more.host_calls),
        temp=more.temp,
        largest_copy=largest_copy(more),
        besides_weights=besides[0] + (besides[1] - besides[0]) // added * (layers - DEPTHS[0]),
    )


def launches(program: Program) -> Counter[str]:
    """Launches of a program by what they are."""
    return Counter(_kind(kind, name) for kind, name in program.thunks)


def _kind(kind: str, name: str) -> str:
    if kind == "kCopy":
        return "copies"
    if name in ("write_kv", "paged_attention"):
        return "pallas kernels"
    if name.startswith("gemm") or kind in ("kGemm", "kCublasLtMatmul"):
        return "matrix products"
    return "fusions" if kind in ("kCustomKernel", "kKernel") else kind


def largest_copy(program: Program) -> int:
    """Bytes of the largest copy. A slice that is contiguous becomes one too, so slices of their own count."""
    return max(program.largest("copy", "copy-start"), program.largest_call("wrapped_slice_computation"))


def is_one_command_buffer(program: Program) -> bool:
    """Whether the host starts the whole program as one CUDA graph."""
    return program.host_calls == [COMMAND_BUFFER]


def _besides_weights(preset: str, batch: int, depth: int, target: str) -> int:
    program = compiled(preset, batch, depth, target)
    params = decode_step(preset, layers=depth).args[0]
    # XLA takes a lookup for a read of the whole table, and may fuse the same lookup into two launches.
    lookups = {name: program.fusions_reading(f"params__{name}____embedding__") for name in ("embed", "positions")}
    lookups["embed"] -= PRESETS[preset].tie_word_embeddings  # read as the head, whole
    tables = sum(count * bytes_of(params[name]) for name, count in lookups.items() if count)
    return round(program.bytes_accessed) - tables - weights_read(preset, depth)


@cache
def weights_read(preset: str, layers: int | None = None) -> int:
    """Bytes of the weights that any decode step reads: all but the tables of which it looks up rows."""
    params = decode_step(preset, layers=layers).args[0]
    looked_up = {"positions"} if PRESETS[preset].tie_word_embeddings else {"positions", "embed"}
    return bytes_of({name: tree for name, tree in params.items() if name not in looked_up})


def least_bytes(preset: str, batch: int, context: int = CONTEXT) -> dict[str, int]:
    """Bytes that the step cannot do without, in bfloat16: weights read, KV of all rows read, logits written."""
    config = PRESETS[preset]
    return {
        "weights": weights_read(preset),
        "kv": batch * context * config.kv_bytes_per_token(2),
        "logits": 4 * batch * config.vocab_size,
    }


def predicted_seconds(preset: str, batch: int, target: str, budget: Budget) -> float:
    """Bytes at the share of the bandwidth that is reached, and a fixed time for each launch; where the products take
    longer than reading their weights does, that instead of it."""
    hardware, least = HARDWARE[target], least_bytes(preset, batch)
    bandwidth = REACHED * hardware.memory_rate
    # A product of one row takes two operations an element of a weight of two bytes.
    products = least["weights"] * batch / (hardware.compute_efficiency * hardware.peak_flops("bfloat16"))
    weights = max(least["weights"] / bandwidth, products)
    return weights + (least["kv"] + least["logits"]) / bandwidth + budget.launches * LAUNCH_SECONDS


def simulated_overhead(preset: str, batch: int, target: str) -> float:
    """Seconds that the simulator's profile of the device charges for the same besides bytes, sampling included."""
    hardware = HARDWARE[target]
    return 1e-9 * (PRESETS[preset].num_layers * hardware.layer_ns + batch * hardware.sequence_ns)


def sampler_calls(capture: str) -> list[str]:
    """What the host starts for a sampler of 32 rows, in order, by kind. `capture`: which thunks may become part of a
    command buffer, as XLA names them; "" is XLA's own choice."""
    function, args = sampler_step(MODELS[0])
    options = {"xla_gpu_enable_command_buffer": capture} if capture else {}
    return compile_for("H100", function, *args, donate=(0,), registers=False, options=options).host_calls


def key(preset: str, batch: int) -> str:
    """The name of a case in the recorded budget."""
    return f"{preset}, batch {batch}"


@dataclass(frozen=True)
class Record:
    """The budget as it was last recorded: the steps by `key`, and `sampler_calls` for both sets of captured thunks."""

    jax: str
    steps: dict[str, Budget]
    sampler: list[str]
    sampler_with_loops: list[str]


def recorded() -> Record:
    """What is in the file."""
    found = json.loads(RECORDED.read_text())
    return Record(**found | {"steps": {case: Budget(**budget) for case, budget in found["steps"].items()}})


def record() -> None:
    """Measure everything anew, and keep it."""
    steps = {key(*case): measure(*case) for case in CASES}
    found = Record(jax.__version__, steps, sampler_calls(""), sampler_calls(ALL_THUNKS))
    RECORDED.write_text(json.dumps(asdict(found), indent=1) + "\n")
