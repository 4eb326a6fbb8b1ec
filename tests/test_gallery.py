"""The gallery replays the paper's figures: its tables are the paper's, and the docs show what the program prints."""

from pathlib import Path

import pytest

from experiments import gallery
from experiments.kinds import WalkthroughConfig
from experiments.replay import replay
from experiments.sweep import run_points

DOCS = Path(__file__).parents[1] / "docs"


def step(lines: list[str], number: int) -> str:
    """The part of a figure's output that tells of one step."""
    text = "\n".join(lines)
    start = text.index(f"Step {number}. ")
    return text[start : text.find("\nStep ", start)]


def test_figure_8_copies_block_1_to_block_3_before_the_first_sample_writes_it():
    lines = gallery.fig8()
    shared, copied = step(lines, 0), step(lines, 1)
    assert "A1: blocks  7  1" in shared
    assert "A2: blocks  7  1" in shared
    assert "ref counts: block 1: 2, block 7: 2" in shared
    assert "copy block 1 -> block 3: ref count 2 -> 1" in copied
    assert "block 3: years ago our fathers" in copied
    assert "block 1: years ago our mothers" in copied
    assert "ref counts: block 1: 1, block 3: 1, block 7: 2" in copied


def test_figure_9_frees_four_blocks_when_candidates_1_and_2_bear_all_four_beams():
    lines = gallery.fig9()
    before, after = step(lines, 12), step(lines, 13)
    for row in ("0: blocks  0  1  3  5", "1: blocks  0  1  3  6", "2: blocks  0  1  3  7", "3: blocks  0  2  4  8"):
        assert row in before
    for row in ("0  1  3  6  9", "0  1  3  6 10", "0  1  3  7 11", "0  1  3  7 12"):
        assert f"blocks  {row}" in after
    assert "freed: block 2, block 4, block 5, block 8" in after
    assert "block 0: 4, block 1: 4, block 3: 4, block 6: 2, block 7: 2" in after


def test_the_docs_show_what_the_runs_leave():
    texts = [
        gallery.run(WalkthroughConfig(figure=figure)).files["walkthrough.txt"].decode() for figure in ("fig8", "fig9")
    ]
    assert "\n".join(texts).rstrip("\n") in (DOCS / "gallery.md").read_text(encoding="utf-8")


def test_a_walkthrough_is_a_run_that_can_be_replayed(tmp_path: Path):
    config = WalkthroughConfig(figure="fig9")
    run_points([config], tmp_path, progress=False)
    assert (tmp_path / config.digest() / "walkthrough.txt").exists()
    assert replay(tmp_path / config.digest()) == []


def test_an_unknown_figure_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ValueError, match="figure='fig10': choose one of fig8, fig9, page_map"):
        WalkthroughConfig(figure="fig10")
