"""Beam search finds what Hugging Face finds: every hypothesis, in its order, with its score.

The goldens (see tests/golden/make_beam_search.py) have no decision closer than 2e-4, so equality is exact.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from jpaged import LLM, BeamSearchParams, SamplingParams
from jpaged.core.requests.response import RequestOutput
from tests.engine.tiny import tiny_llm

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOLDENS = json.loads((FIXTURES / "beam_search.json").read_text())["prompts"]
TINY = ("llama", "opt-post")


@functools.cache
def engine(model: str) -> LLM:
    if model in TINY:
        path = str(FIXTURES / "tiny" / model)
        return tiny_llm(path, num_pages=90, page_size=4, max_num_seqs=8, max_model_len=40)
    return LLM(model, max_model_len=64, max_num_seqs=8, page_size=8, kv_memory="64MiB")


def search(llm: LLM, prompts: list[list[int]], golden: dict[str, Any]) -> list[RequestOutput]:
    """A search under a golden's settings; its end ids take the place of the model's own."""
    config = llm.config
    model = dataclasses.replace(config.model, eos_token_ids=tuple(golden["eos"]))
    llm.config = dataclasses.replace(config, model=model)
    try:
        names = ("beam_width", "max_tokens", "length_penalty", "early_stopping")
        outputs = llm.beam_search(prompts, BeamSearchParams(**{n: golden[n] for n in names}), use_tqdm=False)
    finally:
        llm.config = config
    llm.engine.scheduler.check()
    assert llm.stats()["pages_free"] == llm.stats()["pages_total"]
    return outputs


def compare(output: RequestOutput, golden: dict[str, Any]) -> None:
    assert [hypothesis.token_ids for hypothesis in output.outputs] == golden["sequences"]
    for hypothesis, score in zip(output.outputs, golden["scores"], strict=True):
        assert hypothesis.cumulative_logprob is not None
        length = len(hypothesis.token_ids)
        assert hypothesis.cumulative_logprob / length ** golden["length_penalty"] == pytest.approx(score, abs=1e-4)
        stopped = hypothesis.token_ids[-1] in golden["eos"]
        assert hypothesis.finish_reason == ("stop" if stopped else "length")
        assert hypothesis.logprobs is None


def test_the_goldens_cover_every_setting_and_have_no_ties():
    assert all(prompt["margin"] > 1e-4 for prompt in GOLDENS)
    for model in TINY:
        searches = [golden for prompt in GOLDENS if prompt["model"] == model for golden in prompt["searches"]]
        settings = {(s["beam_width"], s["length_penalty"], str(s["early_stopping"]), len(s["eos"])) for s in searches}
        assert len(settings) == len(searches) == 54
        early = [s for s in searches if min(map(len, s["sequences"])) < s["max_tokens"]]
        assert len(early) > 40, "hypotheses finish in the middle of the search"


@pytest.mark.slow
@pytest.mark.parametrize("model", TINY)
def test_hypotheses_and_scores_equal_hugging_faces_for_every_setting(model: str):
    llm = engine(model)
    before = llm.stats()["num_page_copies"]
    for prompt in GOLDENS:
        for golden in prompt["searches"] if prompt["model"] == model else ():
            compare(search(llm, [prompt["prompt_ids"]], golden)[0], golden)
    assert llm.stats()["num_page_copies"] > before


@pytest.mark.slow
def test_hypotheses_and_scores_of_the_default_model_equal_hugging_faces():
    llm = engine("smollm2-135m")
    prompts = [prompt for prompt in GOLDENS if prompt["model"] == "smollm2-135m"]
    assert len(prompts) == 3
    for prompt in prompts:
        for golden in prompt["searches"]:
            compare(search(llm, [prompt["prompt_ids"]], golden)[0], golden)
    for i in range(len(prompts[0]["searches"])):
        golden = prompts[0]["searches"][i]
        together = search(llm, [prompt["prompt_ids"] for prompt in prompts], golden)
        for prompt, output in zip(prompts, together, strict=True):
            compare(output, prompt["searches"][i])


def test_g16_searches_of_several_prompts_at_once_do_not_mix():
    llm = engine("llama")
    goldens = [(p, s) for p in GOLDENS if p["model"] == "llama" for s in p["searches"] if s["beam_width"] == 4]
    for prompt, golden in goldens[:6]:
        others = [p["prompt_ids"] for p, _ in goldens[6:9]]
        outputs = search(llm, [*others, prompt["prompt_ids"], prompt["prompt_ids"]], golden)
        compare(outputs[-2], golden)
        compare(outputs[-1], golden)
        for output in outputs:
            found = [tuple(hypothesis.token_ids) for hypothesis in output.outputs]
            assert len(set(found)) == len(found), "a hypothesis came twice"
            assert [tuple(h.token_ids) for h in search(llm, [output.prompt_token_ids], golden)[0].outputs] == found


def test_one_beam_is_greedy():
    llm = engine("llama")
    prompt = GOLDENS[0]["prompt_ids"]
    params = BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True)
    (beam,) = llm.beam_search([prompt], params, use_tqdm=False)[0].outputs
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    (sampled,) = llm.generate([prompt], greedy, use_tqdm=False)[0].outputs
    assert beam.token_ids == sampled.token_ids and beam.finish_reason == "length"
    assert beam.cumulative_logprob == pytest.approx(sampled.cumulative_logprob, abs=1e-5)


def test_beams_that_the_engine_cannot_hold_are_refused_by_name():
    llm = engine("llama")
    with pytest.raises(
        ValueError, match="beam_width=9: at most max_num_seqs=8 sequences run at once; lower beam_width"
    ):
        llm.beam_search([[5, 6]], BeamSearchParams(beam_width=9, max_tokens=2))
    with pytest.raises(ValueError, match="give a BeamSearchParams"):
        llm.beam_search([[5, 6]], SamplingParams())  # pyright: ignore[reportArgumentType]
    assert not llm.engine.has_unfinished
