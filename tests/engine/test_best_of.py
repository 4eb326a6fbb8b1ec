"""best_of: more sequences run than are returned, the likeliest are; and cache salts keep prompts apart."""

import pytest

from jpaged import LLM, SamplingParams
from tests.engine.tiny import random_prompts, tiny_llm

PROMPT = random_prompts(1, 13, 13, seed=5)[0]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny_llm(num_pages=64, page_size=4)


def run(llm: LLM, **params):
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, **params)
    return llm.generate([PROMPT], params, use_tqdm=False)[0].outputs


def test_the_likeliest_of_all_sequences_are_returned_best_first(llm):
    everything = run(llm, n=5, logprobs=0)
    ranked = sorted(everything, key=lambda output: -output.cumulative_logprob)
    chosen = run(llm, n=2, best_of=5)
    assert [output.token_ids for output in chosen] == [output.token_ids for output in ranked[:2]]
    assert [output.index for output in chosen] == [0, 1]
    assert [output.cumulative_logprob for output in chosen] == pytest.approx(
        [output.cumulative_logprob for output in ranked[:2]], abs=1e-5
    )
    assert all(output.logprobs is None for output in chosen)


def test_best_of_equal_to_n_returns_them_all_in_their_own_order(llm):
    assert [o.token_ids for o in run(llm, n=3, best_of=3)] == [o.token_ids for o in run(llm, n=3)]


def test_best_of_below_n_or_greedy_or_streamed_is_refused(llm):
    with pytest.raises(ValueError, match=r"best_of=2.*n=3"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(ValueError, match=r"best_of=3.*temperature"):
        SamplingParams(best_of=3, temperature=0.0)
    with pytest.raises(ValueError, match=r"best_of=9.*max_num_seqs=8"):
        run(llm, best_of=9)
    with pytest.raises(ValueError, match="best_of above n"):
        llm.stream([PROMPT], SamplingParams(best_of=3))


def test_prompts_with_another_cache_salt_share_no_pages(llm):
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=1)

    def cached(**salt) -> int:
        return llm.generate({"prompt_token_ids": PROMPT, **salt}, params, use_tqdm=False)[0].num_cached_tokens

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b")] == [
        0,
        12,
        0,
        12,
        0,
    ]
    with pytest.raises(ValueError, match="cache_salt"):
        cached(cache_salt=3)
