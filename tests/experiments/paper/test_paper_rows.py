"""Verdicts: what is a pass, what a miss, and that nothing fitted is ever called a pass."""

import pytest

from experiments.paper.rows import CALIBRATED, MISS, PASS, Row, order_of


def row(**fields: object) -> Row:
    given = {"figure": "Fig. 0", "quantity": "q", "paper": 2.0, "ours": 2.1, "tolerance": 0.1, **fields}
    return Row(**given)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("ours", "verdict"), [(2.0, PASS), (2.2, PASS), (2.21, MISS), (1.8, PASS), (1.79, MISS)])
def test_a_ratio_passes_within_its_tolerance_on_both_sides(ours: float, verdict: str):
    assert row(ours=ours).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(3.5, PASS), (3.51, MISS), (0.5, PASS), (0.49, MISS)])
def test_a_difference_is_held_in_the_units_of_the_quantity(ours: float, verdict: str):
    assert row(ours=ours, tolerance=1.5, kind="difference").verdict == verdict


def test_a_difference_from_nothing_is_a_number():
    found = row(paper=0.0, ours=0.4, tolerance=1.5, kind="difference")
    assert (found.change, found.verdict) == (0.4, PASS)


def test_what_a_constant_was_fitted_to_is_neither_pass_nor_miss_but_shows_whether_it_is_near():
    near, far = row(fitted="the curve"), row(ours=4.0, fitted="the curve")
    assert (near.verdict, far.verdict) == (CALIBRATED, CALIBRATED)
    assert (near.within, far.within) == (True, False)


def test_an_order_passes_if_it_is_the_papers_to_the_letter():
    paper = order_of({"b": 2.0, "a": 1.0})
    assert row(paper=paper, ours="a < b", kind="order").verdict == PASS
    assert row(paper=paper, ours="b < a", kind="order").verdict == MISS


def test_an_order_without_one_of_the_values_is_not_the_papers():
    assert order_of({"a": 1.0, "b": None}) == "a < b?"


def test_a_number_that_is_missing_is_a_miss():
    assert row(ours=None).verdict == MISS


def test_a_kind_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="ratio, difference, order"):
        row(kind="factor")


def test_a_row_of_the_report_has_its_ratio_or_difference_tolerance_and_verdict():
    facts = row(ours=2.1).as_dict()
    assert facts["ratio"] == pytest.approx(1.05)
    assert (facts["tolerance"], facts["verdict"], facts["within_tolerance"]) == (0.1, PASS, True)
    assert "difference" in row(kind="difference").as_dict()
