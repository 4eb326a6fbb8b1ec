"""The example in docs/policies.md runs, by import path, and its policies decide."""

import re
import sys
from pathlib import Path

import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.executor import SyncExecutor
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


@pytest.fixture
def my_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page's example as the module that it tells to write."""
    [source] = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def " in code]
    (tmp_path / "my_policies.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_policies", None)


class Answers(SyncExecutor):
    """The same id for every sample; it notes who was admitted, in order."""

    def __init__(self) -> None:
        self.admitted: list[str] = []

    def execute(self, plan: SchedulerOutput) -> StepResult:
        self.admitted += [admitted.request_id for admitted in plan.admitted]
        return StepResult((1,) * len(plan.samples))


def engine(**policies: str) -> Engine:
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=32, **policies)
    cache = CacheConfig(num_pages=16, page_size=2, watermark=0.0)
    return Engine(scheduler, cache, Answers(), vocab_size=100, record_steps=True)


def add(made: Engine, name: str, prompt_len: int, max_tokens: int) -> None:
    made.add(
        Request(
            request_id=name,
            prompt_token_ids=tuple(10 * len(name) + ord(name[0]) % 7 + i for i in range(prompt_len)),
            params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        )
    )


@pytest.mark.usefixtures("my_policies")
def test_the_example_of_the_page_runs_and_each_policy_decides():
    made = engine(
        admission_policy="my_policies:least_work",
        victim_policy="my_policies:most_pages",
        eviction_policy="my_policies:at_random",
    )
    for name, prompt_len in (("long", 14), ("short", 2), ("middle", 10), ("early", 6)):
        add(made, name, prompt_len, 12)
    while made.has_unfinished:
        made.step()
        made.scheduler.check()
    assert isinstance(made.executor, Answers)
    assert list(dict.fromkeys(made.executor.admitted)) == ["short", "early", "middle", "long"], (
        "the shortest prompt is admitted first"
    )
    assert made.recorder is not None
    assert made.stats_dict()["num_evictions"]
    victims = [name for record in made.recorder.records for name in record.preempted_recompute]
    assert victims, "the pool is too small for all"


def test_a_path_that_cannot_be_imported_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="check the path and PYTHONPATH"):
        engine(victim_policy="no_such_module:name")
