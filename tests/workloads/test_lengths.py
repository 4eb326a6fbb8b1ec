"""Lengths drawn from distributions: their means, their mean of 1 / length, and that a seed fixes them."""

import hashlib
from collections.abc import Callable
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jpaged.workloads import LENGTHS, fits
from jpaged.workloads.alpaca_bins import OUTPUT_COUNTS, PROMPT_COUNTS, alpaca_fig11
from jpaged.workloads.length_table import LengthTable
from jpaged.workloads.streams import stream

Tables = Callable[[], tuple[LengthTable, LengthTable]]


def moments(tables: Tables) -> tuple[float, float, float]:
    """Exact means of prompt, output and 1 / output of pairs below 2048 tokens."""
    prompt, output = tables()
    p, o = (np.arange(table.low, table.high + 1) for table in (prompt, output))
    joint = np.outer(prompt.probabilities(), output.probabilities())
    joint[np.add.outer(p, o) >= 2048] = 0
    joint /= joint.sum()
    return float(joint.sum(1) @ p), float(joint.sum(0) @ o), float(joint.sum(0) @ (1 / o))


@pytest.mark.parametrize(
    ("tables", "prompt", "output", "inverse"),
    [
        (fits.sharegpt, 161.31, 337.99, 0.0146),
        (fits.sharegpt_weibull, 161.31, 337.99, 0.0119),
        (fits.alpaca, 19.31, 58.45, 0.0673),
    ],
)
def test_fits_have_the_papers_means(tables: Tables, prompt: float, output: float, inverse: float):
    found = moments(tables)
    assert found[0] == pytest.approx(prompt, abs=0.002)
    assert found[1] == pytest.approx(output, abs=0.002)
    assert found[2] == pytest.approx(inverse, abs=0.0001)


def test_alpacas_short_outputs_weigh_what_they_do_in_the_data():
    assert alpaca_fig11()[1].mean_inverse() == pytest.approx(0.0685, rel=0.01)
    assert fits.alpaca()[1].mean_inverse() == pytest.approx(0.0685, rel=0.02)
    # What one gamma distribution of the right mean would give.
    wrong = LengthTable.of_weights(1, fits.weights(fits.gamma(0.893, 64.6), 1, 1470))
    assert wrong.mean() == pytest.approx(58.45, abs=0.5)
    assert wrong.mean_inverse() > 0.078


def test_binned_alpaca_has_the_figures_rows_in_each_bin():
    for table, counts, width in zip(
        alpaca_fig11(), (PROMPT_COUNTS, OUTPUT_COUNTS), (502 / 128, 1469 / 128), strict=True
    ):
        lengths = np.arange(table.low, table.high + 1)
        found, _ = np.histogram(lengths, bins=128, range=(table.low, table.high), weights=table.probabilities())
        expected = [*counts, *[0] * (127 - len(counts)), 1]
        assert len(lengths) == pytest.approx(128 * width + 1)
        assert np.allclose(found * 52002, expected, atol=1e-3)
    assert moments(alpaca_fig11)[:2] == pytest.approx((19.31, 58.45), rel=0.002)


@pytest.mark.parametrize("name", LENGTHS)
def test_more_requests_change_none_of_the_first_and_another_seed_changes_them(name: str):
    few, many = (list(islice(LENGTHS[name](3), count)) for count in (50, 3000))
    assert many[:50] == few
    assert list(islice(LENGTHS[name](4), 50)) != few
    assert all(prompt >= 1 and output >= 1 and prompt + output < 2048 for prompt, output in many)


def test_draws_are_the_same_on_every_machine():
    # Of the tables and of the first draws; a mathematical library that rounds otherwise would change the tables.
    known = {
        "sharegpt": ("0f414c06a222d7e8", "e5363c2d1df7b64c"),
        "alpaca": ("abc7992aebc02303", "14761563fff465af"),
    }
    for name, tables in (("sharegpt", fits.sharegpt()), ("alpaca", fits.alpaca())):
        of_tables = hashlib.sha256(repr([table.cumulative for table in tables]).encode()).hexdigest()[:16]
        of_draws = hashlib.sha256(repr(list(islice(LENGTHS[name](0), 5000))).encode()).hexdigest()[:16]
        assert (of_tables, of_draws) == known[name]


def test_chatbot_prompts_are_mostly_cut_and_outputs_bounded():
    pairs = np.array(list(islice(LENGTHS["chatbot"](0), 5000)))
    assert pairs.max(0).tolist() == [1024, 1016]
    assert 0.55 < (pairs[:, 0] == 1024).mean() < 0.65
    assert (pairs[:, 0].min(), pairs[:, 1].min()) >= (1, 1)


def test_translations_are_as_long_as_their_sentences_say():
    pairs = np.array(list(islice(LENGTHS["wmt16"](0), 5000)))
    assert pairs.mean(0) == pytest.approx([34, 45], rel=0.03)
    assert np.corrcoef(pairs.T)[0, 1] > 0.85


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3), st.integers(1, 9))
def test_a_table_draws_only_lengths_that_have_a_weight(weights: list[float], low: int):
    table = LengthTable.of_weights(low, weights)
    assert table.cumulative[-1] == 1 << 32
    drawn = table.sample(stream(0, "prompt"), 200)
    assert all(weights[length - low] > 0 for length in drawn)
    assert table.low <= min(drawn) and max(drawn) <= table.high


def test_a_word_on_an_edge_of_the_table_is_the_next_length():
    class Words(np.random.PCG64):
        def random_raw(self, size=None, output=True):
            return np.array([0, 1 << 31, (1 << 31) - 1, (1 << 32) - 1], np.uint64) << np.uint64(32)

    assert LengthTable(1, (0, 1 << 31, 1 << 32)).sample(Words(), 4) == [2, 3, 2, 3]


@settings(max_examples=30)
@given(st.floats(0.3, 20), st.floats(0.5, 400))
def test_distribution_functions_rise_from_0_to_1(shape: float, scale: float):
    for cdf in (
        fits.gamma(shape, scale),
        fits.weibull(shape, scale),
        fits.log_logistic(shape, scale),
        fits.lognormal(shape, 1.0),
    ):
        values = [cdf(x) for x in (-1.0, 0.0, *np.geomspace(1e-3, 1e7, 60))]
        assert values[:2] == [0.0, 0.0]
        assert all(left <= right + 1e-14 for left, right in pairwise(values))
        assert values[-1] <= 1 + 1e-14
    assert fits.gamma(1.0, scale)(scale) == pytest.approx(1 - np.exp(-1))
    assert fits.gamma(3.0, scale)(9 * scale) == pytest.approx(1 - np.exp(-9) * (1 + 9 + 40.5))
