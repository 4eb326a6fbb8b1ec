"""Figures from end to end: the numbers, the pictures, the report."""

import json
from pathlib import Path

import pytest

from experiments.config import ExperimentConfig
from experiments.kinds import Summary
from experiments.paper import memory, pages
from experiments.paper.__main__ import main
from experiments.paper.figures import FIGURES, plans_of
from experiments.paper.panels import PANELS
from experiments.paper.plans import run_plan
from experiments.paper.published import panel
from experiments.paper.report import counted, markdown, write_report
from experiments.paper.rows import CALIBRATED, PASS, Result
from experiments.paper.systems import FT, VLLM, config_for
from experiments.serving import run_point
from experiments.summary import summarize


def run(configs: list[ExperimentConfig]) -> list[Summary]:
    return [summarize(run_point(config)) for config in configs]


@pytest.fixture(scope="module")
def quick() -> list[Result]:
    """The figures that take no run, and Fig. 2 over a minute, which is too short for its numbers."""
    plans = [memory.table1(False), pages.fig19a(False), memory.fig2(False, duration_s=60, start_s=30)]
    return [run_plan(plan, run) for plan in plans]


def test_table_1_has_the_slots_of_the_three_models(quick: list[Result]):
    assert quick[0].data["opt-13b"]["pages"] == 984
    assert quick[0].data["opt-66b"]["pages"] == 604
    assert all(row.within for row in quick[0].rows)


def test_figure_19a_is_met_within_a_tenth_and_its_fitted_rows_say_so(quick: list[Result]):
    assert all(row.within for row in quick[1].rows)
    verdicts = {row.quantity.split(",")[0]: row.verdict for row in quick[1].rows}
    assert verdicts == {"Recompute": PASS, "Swap in": CALIBRATED, "Swap out": CALIBRATED}


def test_the_shares_of_figure_2_add_up_and_only_orca_max_wastes_most_inside(quick: list[Result]):
    shares = quick[2].data
    for name, parts in shares.items():
        assert sum(parts) == pytest.approx(100), name
    assert max(shares, key=lambda name: shares[name][2]) == "Orca (Max)"
    assert max(shares, key=lambda name: shares[name][0]) == VLLM


def test_the_report_is_written_whole_and_twice_the_same(quick: list[Result], tmp_path: Path):
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        write_report(quick, tmp_path / name, full=False)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [str(file) for file in files] == [
        "figures/fig19a.png",
        "figures/fig2.png",
        "report.html",
        "report.json",
        "report.md",
    ]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    facts = json.loads((tmp_path / "a" / "report.json").read_text())
    assert len(facts["rows"]) == sum(len(result.rows) for result in quick)
    assert {"figure", "quantity", "paper", "ours", "tolerance", "verdict", "reason"} <= set(facts["rows"][0])
    assert facts["figures"][2]["runs"] == list(quick[2].digests)


def test_every_miss_stands_in_the_report_with_its_reason(quick: list[Result]):
    missed = [row for result in quick for row in result.rows if row.verdict == "miss"]
    assert missed, "a minute is too short for Fig. 2"
    text = markdown(quick, {}, full=False)
    misses = text[text.index("## Misses") : text.index("## Table 1")]
    assert misses.count("| miss |") == len(missed)
    assert all(row.quantity in misses for row in missed)
    assert f"{len(missed)} miss" in counted(quick)


def test_every_panel_has_the_papers_systems_and_a_known_knee_to_start_from():
    for p in PANELS:
        paper = panel(p.figure, p.letter)
        assert set(p.systems) == set(paper.inside), p.name
        for system in p.systems:
            assert paper.knee(system) > 0


def test_the_configs_of_fastertransformer_are_static_batches_at_its_own_cost():
    first = next(p for p in PANELS if p.name == "12c")
    config = config_for(first.setting, FT, 0.1)
    assert (config.policy.name, config.policy.max_num_seqs) == ("static", 24)
    assert (config.executor.cost_profile, config.workload.duration_s) == ("paper-2023-ft", 3600)
    assert config_for(first.setting, VLLM, 0.1).executor.cost_profile == "paper-2023"


def test_figures_are_named_by_number_or_panel_and_others_are_refused():
    assert len(plans_of(list(FIGURES), full=False)) == len(FIGURES)
    assert len(plans_of(["12a", "12d", "2"], full=False)) == 2
    with pytest.raises(ValueError, match="--figures 12x"):
        plans_of(["12x"], full=False)


def test_the_command_line_says_in_one_line_what_is_wrong(tmp_path: Path):
    with pytest.raises(SystemExit, match="error: --figures nine"):
        main(["--figures", "nine", "--output", str(tmp_path)])


def test_the_command_writes_a_report_and_says_how_fast_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    main(["--figures", "table1,19a", "--output", str(tmp_path)], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "0 miss" in printed
    assert "simulated requests per second" in printed
    assert json.loads((tmp_path / "timing.json").read_text())["requests_per_second"] > 0
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_figure_2_is_met_within_a_point_and_a_half_at_its_full_length():
    result = run_plan(memory.fig2(False), run)
    assert len(result.rows) == 16
    assert [row.quantity for row in result.rows if not row.within] == []


@pytest.mark.slow
def test_the_page_sizes_of_figure_19b_make_a_u():
    result = run_plan(pages.fig19b(False), run)
    shapes = [row for row in result.rows if row.kind == "order"]
    assert len(shapes) == 4
    assert all(row.verdict == PASS for row in shapes), shapes


def test_the_committed_report_has_known_figures_and_verdicts_that_follow_from_its_numbers():
    facts = json.loads((Path(__file__).parents[3] / "docs" / "paper" / "report.json").read_text())
    assert {result["figure"] for result in facts["figures"]} <= set(FIGURES)
    assert len(facts["rows"]) >= 40
    for row in facts["rows"]:
        change = row.get("ratio", row.get("difference"))
        off = None if change is None else abs(change - 1) if "ratio" in row else abs(change)
        near = row["paper"] == row["ours"] if off is None else off <= row["tolerance"] + 1e-9
        assert row["within_tolerance"] == near, row
        assert row["verdict"] == (CALIBRATED if row["fitted"] else PASS if near else "miss"), row
