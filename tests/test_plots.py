"""Page maps: what is drawn, that it repeats, and what is said where it cannot be drawn."""

import sys
from pathlib import Path

import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.executor import SyncExecutor
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.observing.page_map import CACHED, COMMON, PALETTE, check_target, page_map


class Answers(SyncExecutor):
    """The same id for every sample."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        return StepResult((1,) * len(plan.samples))


@pytest.fixture(scope="module")
def records() -> list[StepRecord]:
    """Two requests of two samples with a common prefix, on a pool too small: every kind of event."""
    engine = Engine(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=32),
        CacheConfig(num_pages=14, page_size=4, watermark=0.0, num_host_pages=14),
        Answers(),
        vocab_size=100,
        record_steps=True,
    )
    for i in range(4):
        prompt = (1, 2, 3, 4, *range(10 * i, 10 * i + 6))
        params = SamplingParams(n=1 + i % 2, max_tokens=14)
        engine.add(Request(request_id=str(i), prompt_token_ids=prompt, params=params))
    while engine.has_unfinished:
        engine.step()
    assert engine.recorder is not None
    return engine.recorder.records


def test_a_map_is_written_and_the_same_records_give_the_same_bytes(records: list[StepRecord], tmp_path: Path):
    pytest.importorskip("matplotlib")
    for name in ("a.png", "b.png"):
        page_map(records, tmp_path / name, title="a title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size < 200_000


def test_the_colours_of_a_map_are_those_of_who_holds_each_page(records: list[StepRecord]):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    from jpaged.observing import page_map as plots

    axes = Figure().subplots()
    plots._plot_pages(axes, records, plots._colours(records), points_per_page=10)
    image = axes.images[0].get_array()
    assert image is not None
    seen: set[str] = set()
    for x, record in enumerate(records):
        holders: dict[int, list[str]] = {}
        for table in record.tables:
            for page in table.pages:
                holders.setdefault(page, []).append(table.request_id)
        for page in range(1, image.shape[0] + 1):
            owners = holders.get(page, [])
            kind = "free"
            if len(set(owners)) > 1:
                kind = COMMON
            elif len(owners) > 1:
                kind = PALETTE[int(owners[0]) % len(PALETTE)]
            elif page in record.cached:
                kind = CACHED
            seen.add(kind)
            if kind != "free":
                assert tuple(image[page - 1, x]) == pytest.approx(to_rgb(kind))
            elif not owners:
                assert tuple(image[page - 1, x]) == (1, 1, 1)
    assert {COMMON, CACHED, PALETTE[1]} <= seen


def test_the_legend_names_only_what_is_in_the_picture(records: list[StepRecord]):
    pytest.importorskip("matplotlib")
    from jpaged.observing import page_map as plots

    labels = {handle.get_label() for handle in plots._legend(records, plots._colours(records))}
    assert {"request 0", "request 3", "shared by requests", "cached, idle", "copy-on-write", "evicted"} <= labels
    first = plots._legend(records[:1], plots._colours(records[:1]))
    assert not {"evicted", "copy-on-write", "preemption"} & {handle.get_label() for handle in first}


def test_without_matplotlib_the_error_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"^plotting needs matplotlib: pip install 'jpaged\[plots\]'$"):
        check_target(tmp_path / "map.png")


def test_nothing_recorded_is_nothing_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="no step was recorded"):
        page_map([], tmp_path / "map.png")
