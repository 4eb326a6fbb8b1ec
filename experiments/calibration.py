"""How far the cost models are from published latencies: `python -m experiments.calibration` prints the table.

Every point that a profile holds for is counted, except those that are faster than the device's peak.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.table import text_table
from experiments.traces import DATA
from jpaged.sim.cost_model import CostModel
from jpaged.sim.hardware import hardware_named
from jpaged.sim.paper import PAPER_PROFILES, paper_cost_model, paper_holds_for
from jpaged.sim.profiles import load_profile
from jpaged.sim.work import StepWork
from jpaged.workloads.column_files import read_rows
from models.config import ModelConfig
from models.families import PRESETS

PAGE_SIZE = 16
_COLUMNS = ("source", "engine", "model", "gpu", "tp", "phase", "batch", "tokens_per_seq", "ms")


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """One published time: of a step, or of a prefill, which gives a token, and the `decode_steps` for the others."""

    source: str
    engine: str
    model: str
    hardware: str
    tensor_parallel_size: int
    phase: str
    batch: int
    tokens: int
    decode_steps: int
    ns: float


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Relative errors of one profile on the points of one source, engine and phase; `bias` is their signed mean."""

    profile: str
    source: str
    engine: str
    phase: str
    num_points: int
    mean_error: float
    worst_error: float
    bias: float


def _gpt(layers: int, width: int, heads: int, vocab: int = 51200) -> ModelConfig:
    """A GPT of the usual shape: what OPT is, in all that costs time."""
    return replace(
        PRESETS["opt-13b"], vocab_size=vocab, hidden_size=width, num_layers=layers, num_heads=heads,
        num_kv_heads=heads, head_dim=width // heads, intermediate_size=4 * width,
    )  # fmt: skip


_LLAMA2_70B = replace(PRESETS["llama-3-70b"], vocab_size=32000)
MODELS: dict[str, ModelConfig] = {
    "facebook/opt-13b": PRESETS["opt-13b"],
    "facebook/opt-66b": PRESETS["opt-66b"],
    "GPT-6.7B": _gpt(32, 4096, 32),
    "GPT-13B": _gpt(40, 5120, 40),
    "GPT-20B": _gpt(44, 6144, 64),
    "GPT-89B": _gpt(48, 12288, 96),
    "GPT-175B": _gpt(96, 12288, 96),
    "bloom-176b": _gpt(70, 14336, 112, 250880),
    "llama2-70b": _LLAMA2_70B,
    "Llama-2-70B": _LLAMA2_70B,
    "Llama-2-7B": PRESETS["llama-7b"],
    "Llama-3.1-8B": PRESETS["llama-3-8b"],
}


def read_points(path: Path = DATA / "calibration_points.csv") -> list[CalibrationPoint]:
    """The points of a CSV. Raises ValueError if it is not there, lacks a column or names an unknown model."""
    return [_point(where, dict(row)) for _, where, row in read_rows(path, _check_names)]


def _check_names(names: list[str], where: str) -> None:
    missing = [column for column in _COLUMNS if column not in names]
    if missing:
        raise ValueError(f"{where}: no column {', '.join(missing)}; it needs {', '.join(_COLUMNS)}")


def _point(where: str, row: dict[str, str]) -> CalibrationPoint:
    if row["model"] not in MODELS:
        raise ValueError(f"{where}: model {row['model']!r} is not known; add its shape to MODELS")
    # "prefill+8 decode" is eight output tokens, of which the prefill gives the first.
    prefill, _, outputs = row["phase"].partition("+")
    return CalibrationPoint(
        source=row["source"],
        engine=row["engine"],
        model=row["model"],
        hardware="-".join(row["gpu"].replace(" ", "-").split("-")[:2]),
        tensor_parallel_size=int(row["tp"]),
        phase="end to end" if outputs else prefill,
        batch=int(row["batch"]),
        tokens=int(row["tokens_per_seq"]),
        decode_steps=int(outputs.split()[0]) - 1 if outputs else 0,
        ns=float(row["ms"]) * 1e6,
    )


def is_possible(point: CalibrationPoint) -> bool:
    """Whether the devices could do the point's products in its time at their peak; a point that says so is an error."""
    if point.phase != "prefill":
        return True
    peak = hardware_named(point.hardware).peak_flops("float16") * point.tensor_parallel_size
    return point.ns >= 2e9 * MODELS[point.model].num_step_params * point.batch * point.tokens / peak


def predicted_ns(cost_model: CostModel, point: CalibrationPoint) -> int:
    """What the cost model says that the point's steps take, the host's time included."""
    batch, tokens = point.batch, point.tokens
    if point.phase == "decode":
        return _time(cost_model, StepWork(PAGE_SIZE, batch, batch * tokens, samples=batch))
    pairs = tokens * (tokens + 1) // 2
    work = StepWork(PAGE_SIZE, 0, 0, batch, batch * tokens, batch * pairs, 0, batch)
    total = _time(cost_model, work)
    for step in range(1, point.decode_steps + 1):
        total += _time(cost_model, StepWork(PAGE_SIZE, batch, batch * (tokens + step), samples=batch))
    return total


def _time(cost_model: CostModel, work: StepWork) -> int:
    return cost_model.step_ns(work) + cost_model.host_ns(work)


def errors_by_source(points: Sequence[CalibrationPoint], profile: str = "ideal") -> list[ErrorRow]:
    """The errors of `profile` on the points that it holds for, a row for each source, engine and phase.

    Points that no device could reach (`is_possible`) are left out.
    """
    groups: dict[tuple[str, str, str], list[float]] = {}
    for point in points:
        cost_model = _cost_model(profile, point)
        if cost_model is not None and is_possible(point):
            error = predicted_ns(cost_model, point) / point.ns - 1.0
            groups.setdefault((point.source, point.engine, point.phase), []).append(error)
    return [
        ErrorRow(
            profile,
            *key,
            num_points=len(errors),
            mean_error=sum(map(abs, errors)) / len(errors),
            worst_error=max(map(abs, errors)),
            bias=sum(errors) / len(errors),
        )
        for key, errors in sorted(groups.items())
    ]


def _cost_model(profile: str, point: CalibrationPoint) -> CostModel | None:
    """The profile for this point; None where a fit of the paper's does not hold for it."""
    model, size = MODELS[point.model], point.tensor_parallel_size
    if profile not in PAPER_PROFILES:
        return load_profile(profile, model, point.hardware, size)
    same_engine = point.engine.startswith(PAPER_PROFILES[profile].engine)
    if same_engine and paper_holds_for(profile, model, point.hardware, size):
        return paper_cost_model(profile, model, point.hardware, size)
    return None


def table(rows: Iterable[ErrorRow]) -> str:
    """The rows as text."""
    cells = [["profile", "points", "mean", "worst", "bias", "phase", "source, engine"]]
    cells += [
        [row.profile, str(row.num_points), f"{row.mean_error:.1%}", f"{row.worst_error:.1%}", f"{row.bias:+.1%}",
         row.phase, f"{row.source}, {row.engine}"]
        for row in rows
    ]  # fmt: skip
    return text_table(cells, left=(0, 5, 6))


def main() -> None:
    """Print the table of the repository's points."""
    points = read_points()
    impossible = sum(not is_possible(point) for point in points)
    print(f"{len(points)} points; {impossible} left out: faster than the devices' peak")
    print(table(row for profile in ("ideal", *PAPER_PROFILES) for row in errors_by_source(points, profile)))


if __name__ == "__main__":
    main()
