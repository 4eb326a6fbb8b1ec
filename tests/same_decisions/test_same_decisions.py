"""The fixed runs decide, and answer, as they did when they were recorded."""

import pytest

from jpaged.core.observe.plan_digest import ENCODING_VERSION

from . import golden
from .readme import SAMPLED, answers
from .runs import POLICIES, RUNS

RECORDED = golden.read()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_decides_as_recorded(name: str) -> None:
    assert RUNS[name].outcome().digests == RECORDED["runs"][name]


def test_every_recorded_run_is_run_under_the_encoding_that_it_was_recorded_with() -> None:
    assert list(RECORDED["runs"]) == list(RUNS)
    assert RECORDED["encoding_version"] == golden.ENCODING_VERSION == ENCODING_VERSION


@pytest.mark.parametrize("group", ["policy", "at scale"])
def test_the_policies_decide_differently(group: str) -> None:
    assert len({tuple(RECORDED["runs"][f"{group}/{name}"]) for name in POLICIES}) == len(POLICIES)


@pytest.mark.slow
def test_the_readme_answers_as_recorded() -> None:
    found = answers()
    sampled = {name: found.pop(name) for name in SAMPLED}
    assert found == RECORDED["readme"]
    if golden.machine() not in RECORDED["sampled"]:
        pytest.skip("what is drawn was not recorded on a machine like this; all else is equal")
    assert sampled == RECORDED["sampled"][golden.machine()]
