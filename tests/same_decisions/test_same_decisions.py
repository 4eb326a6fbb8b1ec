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


@pytest.fixture(scope="module")
def readme_answers() -> dict[str, list[list[int]]]:
    return answers()


@pytest.mark.slow
def test_the_readme_answers_as_recorded(readme_answers: dict[str, list[list[int]]]) -> None:
    found = {name: ids for name, ids in readme_answers.items() if name not in SAMPLED}
    assert found == RECORDED["readme"]


@pytest.mark.slow
@pytest.mark.skipif(golden.machine() not in RECORDED["sampled"], reason="never recorded on a machine like this")
def test_the_readme_samples_as_recorded_on_a_machine_of_this_kind(readme_answers: dict[str, list[list[int]]]) -> None:
    assert {name: readme_answers[name] for name in SAMPLED} == RECORDED["sampled"][golden.machine()]
