"""docs/gpu-budget.md says what is recorded; that needs no plugin, so every run of the suite looks."""

from budget import recorded
from budget_page import PAGE, render


def test_the_page_says_what_is_recorded() -> None:
    assert PAGE.read_text() == render(recorded()), "write it anew: see the head of docs/gpu-budget.md"
