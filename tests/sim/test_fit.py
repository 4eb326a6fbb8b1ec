"""A fit finds the coefficients that made a log, and refuses logs that cannot have any."""

import random
from pathlib import Path

import pytest

from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.fit import fit_steps
from jpaged.sim.profiles import load_profile
from jpaged.sim.work import LOG_COLUMNS, StepWork
from jpaged.workloads.column_files import read_integers, write_csv
from models.families import PRESETS

TRUTH = LinearCostModel(
    name="truth",
    launch_ns=3e6,
    sequence_ns=2e4,
    context_ns=150.0,
    prefill_row_ns=1e5,
    token_ns=9e3,
    free_rows=float("inf"),
    pair_ns=3.0,
    chunk_context_ns=200.0,
    copy_token_ns=500.0,
    host_step_ns=4e5,
    host_sequence_ns=7e3,
    host_prefill_row_ns=2e4,
    host_prefill_token_ns=50.0,
)


def random_work(draw: random.Random) -> StepWork:
    rows, prompts = draw.randint(1, 32), draw.choice((0, 0, 1, 2))
    lens, starts = [draw.randint(2, 300) for _ in range(prompts)], [draw.choice((0, 128)) for _ in range(prompts)]
    pairs = sum(n * s + n * (n + 1) // 2 for n, s in zip(lens, starts, strict=True))
    context, copies = rows * draw.randint(10, 800), draw.choice((0, 0, 3))
    return StepWork(16, rows, context, prompts, sum(lens), pairs, sum(starts), rows + prompts, copies)


def log_of(num_steps: int, noise: float = 0.0, seed: int = 0) -> dict[str, list[int]]:
    draw, rows, start = random.Random(seed), list[tuple[int, ...]](), 0
    for step in range(num_steps):
        work = random_work(draw)
        device_ns = round(TRUTH.step_ns(work) * (1 + noise * draw.uniform(-1, 1)))
        host_ns = TRUTH.host_ns(work)
        rows.append((step, start, device_ns, host_ns, *work))
        start += device_ns + host_ns
    return {name: list(column) for name, column in zip(LOG_COLUMNS, zip(*rows, strict=True), strict=True)}


def test_the_coefficients_that_made_the_log_come_back():
    fit = fit_steps(log_of(400))
    for name, value in fit.coefficients.items():
        assert value == pytest.approx(getattr(TRUTH, name), rel=1e-3, abs=1e-6), name
    assert fit.worst_error < 1e-4
    assert fit.unknown == ("pages_swapped_out", "pages_swapped_in")


def test_noise_costs_no_more_than_noise_and_the_error_is_that_of_steps_never_seen():
    fit = fit_steps(log_of(400, noise=0.1))
    assert 0.02 < fit.mean_error < 0.06
    assert fit.worst_error < 0.12
    model, draw = fit.cost_model("measured:x"), random.Random(7)
    for work in (random_work(draw) for _ in range(200)):
        assert model.step_ns(work) == pytest.approx(TRUTH.step_ns(work), rel=0.05)
    assert all(value >= 0 for value in fit.coefficients.values())
    assert fit == fit_steps(log_of(400, noise=0.1))


def test_a_measured_profile_refuses_what_its_log_never_showed(tmp_path: Path):
    path = tmp_path / "steps.csv.gz"
    write_csv(path, log_of(200))
    model = load_profile(f"measured:{path}", PRESETS["opt-13b"], "A100-40GB")
    work = StepWork(16, 8, 4000, samples=8)
    assert model.step_ns(work) == pytest.approx(TRUTH.step_ns(work), rel=1e-3)
    assert model.host_ns(work) == pytest.approx(TRUTH.host_ns(work), rel=1e-3)
    with pytest.raises(ValueError, match=r"pages_swapped_in=2: profile measured:.* was fitted to steps that had none"):
        model.step_ns(work._replace(pages_swapped_in=2))
    with pytest.raises(ValueError, match=r"page_size=32: profile measured:.* holds for pages of 16"):
        model.step_ns(work._replace(page_size=32))


def test_a_log_that_cannot_be_fitted_says_why():
    log = log_of(60)
    with pytest.raises(ValueError, match="no column host_ns, prefill_pairs; it needs device_ns"):
        fit_steps({name: column for name, column in log.items() if name not in ("host_ns", "prefill_pairs")})
    with pytest.raises(ValueError, match="30 steps are too few for 8 coefficients; log at least 40"):
        fit_steps(log_of(30))
    with pytest.raises(ValueError, match="0 steps are too few"):
        fit_steps({name: [] for name in log})
    with pytest.raises(ValueError, match=r"page_size=\[16, 32\]; fit runs of different page sizes apart"):
        fit_steps(log | {"page_size": [16] * 59 + [32]})
    with pytest.raises(ValueError, match="device_ns=0 in row 5"):
        fit_steps(log | {"device_ns": [*log["device_ns"][:5], 0, *log["device_ns"][6:]]})


def test_a_host_that_takes_no_time_is_fitted_as_such():
    log = log_of(60)
    fit = fit_steps(log | {"host_ns": [0] * 60})
    assert fit.cost_model("x").host_ns(StepWork(16, 9, 90)) == 0


@pytest.mark.parametrize(("name", "text"), [
    ("steps.csv", "step,device_ns\n0,12\n1,abc\n"),
    ("steps.csv", "step,device_ns\n0\n"),
    ("steps.csv", "step,device_ns\n0,1,2\n"),
    ("steps.jsonl", '{"step": 0}\n{"other": 1}\n'),
    ("steps.jsonl", '{"step": 0.5}\n'),
    ("steps.jsonl", "not json\n"),
    ("steps.csv.gz", "not gzip"),
])  # fmt: skip
def test_a_malformed_file_is_named(tmp_path: Path, name: str, text: str):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=r"steps\..*(line \d: |check the path)"):
        read_integers(path)


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"gone\.csv: No such file"):
        read_integers(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match="cost profile 'table:' is not known"):
        load_profile("table:", PRESETS["opt-13b"], "CPU")
    (tmp_path / "half.csv").write_text("step,device_ns\n0,1\n")
    with pytest.raises(ValueError, match=r"half\.csv: no column host_ns"):
        load_profile(f"table:{tmp_path / 'half.csv'}", PRESETS["opt-13b"], "CPU")
