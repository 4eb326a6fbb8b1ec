"""What an LLM tells about its steps and requests, and priorities, from a script's side."""

import pytest

from jpaged import SamplingParams
from tests.engine.tiny import random_prompts, tiny_llm

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_records_are_kept_on_request_and_metrics_always():
    llm = tiny_llm(num_pages=40, page_size=4, record_steps=True)
    outputs = llm.generate(random_prompts(3, 5, 9), PARAMS, use_tqdm=False)
    assert len(llm.step_records) == llm.stats()["num_steps"]
    assert max(record.pages_used for record in llm.step_records) == llm.stats()["pages_used_peak"]
    for output in outputs:
        metrics = output.metrics
        assert metrics is not None
        assert len(metrics.itl) == 5
        assert metrics.ttft is not None
        assert metrics.queue_time is not None
        assert metrics.finished is not None
        assert 0 <= metrics.queue_time < metrics.ttft <= metrics.finished - metrics.arrival
        assert sum(metrics.itl) + metrics.ttft == pytest.approx(metrics.finished - metrics.arrival)


def test_records_that_were_not_asked_for_are_refused_with_the_remedy():
    llm = tiny_llm(num_pages=40, page_size=4)
    with pytest.raises(ValueError, match="make the LLM with record_steps=True"):
        _ = llm.step_records
    with pytest.raises(ValueError, match="record_steps=1: must be True or False"):
        tiny_llm(record_steps=1)


def test_the_lowest_priority_is_served_first_and_a_wrong_one_is_refused():
    llm = tiny_llm(num_pages=40, page_size=4, max_num_seqs=1, scheduling_policy="priority", record_steps=True)
    prompts = random_prompts(4, 5, 9)
    llm.generate(prompts, PARAMS, priority=[3, -1, 2, 0], use_tqdm=False)
    served = dict.fromkeys(table.request_id for record in llm.step_records for table in record.tables)
    assert list(served) == ["1", "3", "2", "0"]
    for wrong, message in (
        ([1, 2], "priority has 2 entries for 4 prompts: give one each"),
        ([1, 2, 3, True], "priority has True: priorities are integers"),
        ([1, 2, 3, 0.5], r"priority has 0\.5: priorities are integers"),
        (7, "give a list with one integer a prompt"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.generate(prompts, PARAMS, priority=wrong, use_tqdm=False)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=message):
            llm.stream(prompts, PARAMS, priority=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="use an LLM with scheduling_policy='priority'"):
        tiny_llm(num_pages=40).generate(prompts, PARAMS, priority=[1, 2, 3, 4], use_tqdm=False)
