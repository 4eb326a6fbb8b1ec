"""The default model answers as Hugging Face's does, whatever the pages, the company, the chunks and the pool.

The goldens are greedy ids in float32 (see tests/golden). Where ours may differ at all is a tie: see `compare`.
"""

import functools
import json
from pathlib import Path

import pytest

from jpaged import LLM, SamplingParams
from jpaged.runtime import mesh

pytestmark = pytest.mark.slow

GOLDENS = json.loads((Path(__file__).parents[1] / "fixtures" / "smollm2_greedy.json").read_text())["prompts"]
PROMPTS = [golden["prompt_ids"] for golden in GOLDENS]
TIE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def weights_are_read_once():
    """Engines of one dtype share their weights: reading them takes longer than many a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh, "load_params", functools.cache(mesh.load_params))
        yield


def engine(**options) -> LLM:
    return LLM("smollm2-135m", **{"max_model_len": 128, "max_num_seqs": 16, "kv_memory": "128MiB", **options})


def greedy(llm: LLM, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.scheduler.check()
    assert llm.stats()["pages_free"] == llm.stats()["pages_total"]
    return [output.outputs[0].token_ids for output in outputs]


def compare(ours: list[list[int]], max_tokens: int) -> None:
    """Assert equality with the goldens; no step of them is so close a tie that another id could be right."""
    assert min(margin for golden in GOLDENS for margin in golden["margins"]) > TIE
    assert ours == [golden["output_ids"][:max_tokens] for golden in GOLDENS[: len(ours)]]


def test_greedy_ids_equal_hugging_face_for_ten_prompts_of_64_tokens():
    assert len(PROMPTS) >= 8
    assert all(len(prompt) == 64 for prompt in PROMPTS)
    compare(greedy(engine(), PROMPTS, 64), 64)


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 32, 64, 128])
def test_greedy_ids_are_the_same_for_every_page_size(page_size):
    compare(greedy(engine(page_size=page_size, max_num_seqs=4), PROMPTS[:4], 16), 16)


def test_greedy_ids_are_the_same_alone_and_in_a_batch_of_16():
    llm = engine()
    batch = greedy(llm, (PROMPTS + PROMPTS)[:16], 16)
    compare(batch[:10], 16)
    assert batch[10:] == batch[:6]
    assert llm.stats()["num_running_peak"] == 16
    llm.reset_prefix_cache()
    compare([greedy(llm, [prompt], 16)[0] for prompt in PROMPTS[:4]], 16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_are_bit_for_bit_the_same_among_any_number(dtype):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2)
    options = {"dtype": dtype, "enable_prefix_caching": False}
    llm = engine(**options)
    # Else a step of 2 or 4 rows would run in a larger shape that is compiled already.
    for shape in llm.runner.buckets.all():
        if shape.decode:
            llm.runner._forward_program(shape)

    def answers(llm: LLM, count: int) -> list[object]:
        outputs = llm.generate(PROMPTS[:count], params, use_tqdm=False)
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]

    among_ten = answers(llm, 10)
    for count in (1, 3):
        assert answers(llm, count) == among_ten[:count], f"{count} at once"


@pytest.mark.parametrize("chunk", [8, 64, None])
def test_greedy_ids_are_the_same_for_every_chunk(chunk):
    llm = engine(max_num_seqs=8, long_prefill_token_threshold=chunk)
    compare(greedy(llm, PROMPTS[:4], 16), 16)


def test_greedy_ids_are_the_same_when_requests_are_preempted():
    llm = engine(num_pages=26, kv_memory=None, page_size=8, watermark=0.0)
    compare(greedy(llm, PROMPTS, 24), 24)
    assert llm.stats()["num_preemptions_recompute"] >= 3
