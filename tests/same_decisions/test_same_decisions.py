"""The fixed runs decide, and answer, as they did when they were recorded."""

import pytest

from jpaged.core.observe.plan_digest import ENCODING_VERSION

from . import golden
from .readme import answers
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
    found, recorded = answers(), RECORDED["readme"]
    seeded = [name for name in found if name.endswith("of seed 7")]
    here = {name: recorded.get(f"{name} on {golden.machine()}") for name in seeded}
    for name, ids in found.items():
        if name not in here:
            assert ids == recorded[name], name
        elif here[name] is not None:
            assert ids == here[name], name
    assert set(found) == {name.partition(" on ")[0] for name in recorded}
