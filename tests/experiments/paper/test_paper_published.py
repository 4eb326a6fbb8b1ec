"""The paper's digitised numbers agree with each other: shares add up, lines go right, knees are those of the text."""

import pytest

from experiments.paper.published import crossing, panel, published

PANELS = [(figure, p["id"]) for figure in ("12", "14", "16", "17") for p in published()[f"fig{figure}"]["panels"]]


def test_the_source_of_the_numbers_is_named():
    assert "2309.06180" in published()["source"]


@pytest.mark.parametrize(("figure", "letter"), PANELS)
def test_the_points_of_a_curve_come_in_order_of_rate_and_those_above_the_frame_come_last(figure: str, letter: str):
    found = panel(figure, letter)
    for name, line in found.inside.items():
        rates = [rate for rate, _ in line + found.above[name]]
        assert rates == sorted(rates)
        assert all(0 < latency <= 1 for _, latency in line)
        assert all(latency > 1 for _, latency in found.above[name])


def test_there_are_fifteen_panels_with_five_four_or_two_systems():
    counts = {(figure, letter): len(panel(figure, letter).inside) for figure, letter in PANELS}
    assert sorted(counts.values()) == [2] * 2 + [4] * 7 + [5] * 6


def test_the_shares_of_each_bar_of_figure_2_add_up_to_the_pool():
    for name, shares in published()["fig2"]["vector"].items():
        assert sum(shares) == pytest.approx(100, abs=0.05), name


def test_figure_2s_vector_values_are_its_printed_ones():
    names = ("token", "reservation", "internal", "external+others")
    for system, printed in published()["fig2"]["printed"].items():
        for name, value in zip(names, published()["fig2"]["vector"][system], strict=True):
            if printed.get(name) is not None:
                assert value == pytest.approx(printed[name], abs=0.06), (system, name)


def test_swap_in_and_swap_out_of_figure_19a_add_up_to_their_sum():
    series = published()["fig19a"]["series"]
    for into, out, both in zip(series["Swap in"], series["Swap out"], series["Swap in + out"], strict=True):
        assert into[1] + out[1] == pytest.approx(both[1], abs=0.01)


def test_the_throughput_of_figure_1_is_that_of_steps_which_grow_with_the_batch():
    points = [point for point in published()["fig1_right"]["bottom"]["series"]["Throughput"] if point[0]]
    steps = [1000 * batch / rate for batch, rate in points]
    assert steps == sorted(steps)
    assert 25 < steps[0] < steps[-1] < 45


def test_the_knees_of_figure_12a_are_where_the_drawn_lines_cross_half_a_second():
    found = panel("12", "a")
    assert found.knee("vLLM") == pytest.approx(1.929, abs=0.001)
    assert found.knee("FasterTransformer") == pytest.approx(0.231, abs=0.001)
    assert found.knee("vLLM") / found.knee("Orca (Oracle)") == pytest.approx(1.75, abs=0.01)


def test_a_line_that_never_reaches_the_level_is_refused():
    with pytest.raises(ValueError, match="does not cross"):
        crossing([(1.0, 0.1), (2.0, 0.2)], 0.5)
