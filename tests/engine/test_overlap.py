"""Steps that are planned while the device runs: the same answers, on a real device, whatever was asked for."""

import pytest

from jpaged import LLM, SamplingParams
from tests.engine.tiny import GREEDY, generate, random_prompts, tiny_llm

PROMPTS = random_prompts(8, 3, 24)
ASKED = [
    GREEDY,
    SamplingParams(temperature=0.9, top_k=20, seed=7, max_tokens=10, logprobs=3, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.3, seed=3, max_tokens=10, min_tokens=3),
    SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=6, prompt_logprobs=2, logprobs=1, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=5, max_tokens=30, stop_token_ids=list(range(4, 40))),
    SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=8, max_tokens=17),
]


class Watched:
    """Counts the steps of an engine that were submitted before the last one's result was there."""

    def __init__(self, llm: LLM) -> None:
        self.ahead = self.pending = 0
        runner = llm.runner
        submit, collect = runner.submit, runner.collect

        def watched_submit(plan):
            self.ahead += self.pending > 0
            self.pending += 1
            return submit(plan)

        def watched_collect(step):
            self.pending -= 1
            return collect(step)

        runner.submit, runner.collect = watched_submit, watched_collect


def everything(llm: LLM) -> list[object]:
    """All that an engine says of its answers but when they came."""
    outputs = llm.generate(PROMPTS, ASKED, use_tqdm=False)
    llm.engine.scheduler.check()
    return [(o.prompt_token_ids, o.prompt_logprobs, o.outputs) for o in outputs]


def test_whatever_is_asked_for_the_answers_are_the_same():
    after, ahead = tiny_llm(num_pages=128, page_size=4, async_scheduling=False), tiny_llm(num_pages=128, page_size=4)
    watched, unwatched = Watched(ahead), Watched(after)
    assert everything(ahead) == everything(after)
    assert watched.ahead > 10
    assert unwatched.ahead == 0


def test_few_pages_change_no_token():
    after = tiny_llm(num_pages=16, page_size=4, watermark=0.0, async_scheduling=False)
    ahead = tiny_llm(num_pages=16, page_size=4, watermark=0.0)
    watched = Watched(ahead)
    assert generate(ahead, PROMPTS, ASKED) == generate(after, PROMPTS, ASKED)
    assert ahead.stats()["num_preemptions_recompute"] > 0
    assert watched.ahead > 0


def test_a_stream_that_is_closed_while_a_step_runs_harms_nobody():
    llm = tiny_llm(num_pages=128, page_size=4)
    want = generate(llm, PROMPTS[:2], GREEDY)
    stream = llm.stream([PROMPTS[3], PROMPTS[4]], GREEDY)
    for _ in range(5):
        next(stream)
    stream.close()
    assert generate(llm, PROMPTS[:2], GREEDY) == want


def test_every_stage_of_a_step_is_timed():
    llm = tiny_llm(num_pages=128, page_size=4)
    llm.warm_up()
    llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
    before = dict(llm.runner.stages.seconds)
    generate(llm, PROMPTS[:4], SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    assert set(llm.runner.stages.seconds) == {"pack", "transfer", "dispatch", "wait", "fetch"}
    assert all(llm.runner.stages.seconds[name] > before[name] for name in before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warmup": "maybe"}, "warmup='maybe': choose one of lazy, full"),
        ({"async_scheduling": 1}, "async_scheduling=1: must be True or False"),
    ],
)
def test_an_unknown_choice_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        tiny_llm(**options)


def test_a_full_warm_up_leaves_nothing_to_compile():
    llm = tiny_llm(num_pages=128, page_size=4, warmup="full", kv_memory="auto")
    programs = llm.stats()["compiled_programs"]
    everything(llm)
    assert llm.stats()["compiled_programs"] == programs
    assert "rows 2 (<50%), 4 (<25%), 8 (<38%); tokens 16 (<94%)" in llm.runner.describe_programs()
