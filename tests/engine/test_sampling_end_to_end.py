"""What each sampling parameter does to the tokens of a whole engine, by its definition (fault groups G and H)."""

import json
from pathlib import Path

import numpy as np
import pytest

from jpaged import LLM, CompletionOutput, SamplingParams
from tests.engine.tiny import TINY_LLAMA, random_prompts, tiny_llm
from tests.engine.tiny_text import write_text_model

VOCAB = 97
EOS = (2, 5)
PROMPT = random_prompts(1, 10, 10)[0]
OTHERS = random_prompts(3, 4, 20, seed=1)


@pytest.fixture(scope="module")
def shared_llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The shared engine, of a model with two end-of-sequence ids."""
    folder = write_text_model(tmp_path_factory.mktemp("sampling"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": list(EOS)}))
    return tiny_llm(str(folder), num_pages=160, page_size=4)


def complete(llm: LLM, prompt: list[int] | str = PROMPT, **params) -> CompletionOutput:
    """The only completion of one request."""
    [output] = llm.generate(prompt, SamplingParams(**params), use_tqdm=False)
    [completion] = output.outputs
    return completion


def ids(llm: LLM, prompt: list[int] | str = PROMPT, **params) -> list[int]:
    return complete(llm, prompt, **params).token_ids


# --- where a sequence ends --------------------------------------------------------------------------------------------


def test_g12_eos_comes_right_after_min_tokens_when_nothing_else_can(llm: LLM):
    ended = complete(llm, logit_bias={2: 100.0}, min_tokens=4, max_tokens=32)
    assert len(ended.token_ids) == 5
    assert ended.token_ids[4] == 2
    assert not set(ended.token_ids[:4]) & set(EOS)
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)


def test_g12_no_eos_of_several_comes_before_min_tokens(llm: LLM):
    for favoured in EOS:
        ended = complete(llm, logit_bias={2: 90.0, 5: 90.0, favoured: 100.0}, min_tokens=4, max_tokens=32)
        assert not set(ended.token_ids[:4]) & set(EOS)
        assert ended.token_ids[4:] == [favoured]


def test_g12_ignore_eos_goes_on_to_max_tokens(llm: LLM):
    ended = complete(llm, logit_bias={2: 100.0}, ignore_eos=True, max_tokens=32)
    assert ended.token_ids == [2] * 32
    assert ended.finish_reason == "length"


def test_g12_min_tokens_may_be_max_tokens(llm: LLM):
    ended = complete(llm, logit_bias={2: 100.0}, min_tokens=6, max_tokens=6)
    assert len(ended.token_ids) == 6
    assert not set(ended.token_ids) & set(EOS)
    assert ended.finish_reason == "length"


def test_g12_min_tokens_holds_back_stop_ids_too_and_a_stop_id_that_is_eos_stops_despite_ignore_eos(llm: LLM):
    ended = complete(llm, logit_bias={7: 100.0}, stop_token_ids=[7], min_tokens=3, max_tokens=32)
    assert ended.token_ids[3:] == [7]
    assert 7 not in ended.token_ids[:3]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", 7)
    both = complete(llm, logit_bias={2: 100.0}, stop_token_ids=[2], ignore_eos=True, max_tokens=32)
    assert (both.token_ids, both.finish_reason, both.stop_reason) == ([2], "stop", 2)


def test_a_stop_id_is_in_the_ids_and_in_the_text_only_on_request(llm: LLM):
    params = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    whole = complete(llm, "hello", **params)
    at = next(i for i, token in enumerate(whole.token_ids) if i > 3 and token not in whole.token_ids[:i])
    stop = whole.token_ids[at]
    tokenizer = llm.get_tokenizer()
    ended = complete(llm, "hello", stop_token_ids=[stop], **params)
    assert ended.token_ids == whole.token_ids[: at + 1]
    assert ended.text == tokenizer.decode(whole.token_ids[:at])
    shown = complete(llm, "hello", stop_token_ids=[stop], include_stop_str_in_output=True, **params)
    assert shown.text == tokenizer.decode(whole.token_ids[: at + 1])


# --- stop strings -----------------------------------------------------------------------------------------------------

# Letters alone, so that every substring of the text is plain.
LETTERS = {"logit_bias": dict.fromkeys(range(3, 29), 60.0), "ignore_eos": True, "seed": 4, "max_tokens": 24}


def test_h1_a_stop_string_over_several_tokens_ends_the_text_before_it(llm: LLM):
    whole = complete(llm, "hello", **LETTERS)
    assert whole.text.isalpha()
    assert len(whole.text) == 24
    for start, length in ((0, 4), (6, 1), (5, 7), (20, 4)):
        stop = whole.text[start : start + length]
        first = whole.text.find(stop)
        ended = complete(llm, "hello", stop=stop, **LETTERS)
        assert (ended.text, ended.finish_reason, ended.stop_reason) == (whole.text[:first], "stop", stop)
        assert ended.token_ids == whole.token_ids[: first + length]
        shown = complete(llm, "hello", stop=[stop], include_stop_str_in_output=True, **LETTERS)
        assert shown.text == whole.text[: first + length]


def test_h1_the_first_of_several_stop_strings_wins(llm: LLM):
    whole = complete(llm, "hello", **LETTERS)
    early, late = whole.text[7:10], whole.text[12:17]
    for stops in ([early, late], [late, early]):
        ended = complete(llm, "hello", stop=stops, **LETTERS)
        assert (ended.text, ended.stop_reason) == (whole.text[: whole.text.find(early)], early)


def test_h1_what_was_held_back_for_a_stop_string_comes_out_when_it_does_not(llm: LLM):
    whole = complete(llm, "hello", **LETTERS)
    ended = complete(llm, "hello", stop=whole.text[-5:] + "!", **LETTERS)
    assert (ended.text, ended.token_ids, ended.finish_reason) == (whole.text, whole.token_ids, "length")


def test_h1_a_stop_string_counts_only_after_min_tokens(llm: LLM):
    whole = complete(llm, "hello", **LETTERS)
    ended = complete(llm, "hello", stop=whole.text[2:4], min_tokens=12, **LETTERS)
    assert len(ended.token_ids) > 12


def test_a_stop_string_ends_one_of_n_and_leaves_the_others(llm: LLM):
    [output] = llm.generate("hello", SamplingParams(n=3, **LETTERS), use_tqdm=False)
    texts = [completion.text for completion in output.outputs]
    stop = next(text for text in (texts[1][i : i + 3] for i in range(20)) if text not in texts[0] + " " + texts[2])
    [ended] = llm.generate("hello", SamplingParams(n=3, stop=stop, **LETTERS), use_tqdm=False)
    assert [completion.text for completion in ended.outputs] == [texts[0], texts[1][: texts[1].find(stop)], texts[2]]
    assert [completion.finish_reason for completion in ended.outputs] == ["length", "stop", "length"]


# --- how a token is chosen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 9e-6, 1e-4, 1e-3])
def test_g1_a_tiny_temperature_is_greedy(llm: LLM, temperature: float):
    want = ids(llm, temperature=0.0, max_tokens=20, ignore_eos=True)
    assert ids(llm, temperature=temperature, max_tokens=20, ignore_eos=True) == want


def test_g4_a_top_k_beyond_the_vocabulary_is_off(llm: LLM):
    params = {"temperature": 1.5, "seed": 9, "max_tokens": 20, "ignore_eos": True}
    want = ids(llm, **params)
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    for top_k in (-1, 0, VOCAB, VOCAB + 1, 10**7):
        mixed = [greedy, SamplingParams(top_k=top_k, **params), greedy]
        outputs = llm.generate([OTHERS[0], PROMPT, OTHERS[1]], mixed, use_tqdm=False)
        assert outputs[1].outputs[0].token_ids == want


def test_g6_at_least_one_token_is_always_left(llm: LLM):
    want = ids(llm, temperature=0.0, max_tokens=20, ignore_eos=True)
    for cut in ({"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"top_k": 5, "top_p": 1e-9, "min_p": 1.0}):
        assert ids(llm, temperature=2.0, seed=1, max_tokens=20, ignore_eos=True, **cut) == want


def test_top_k_draws_from_the_most_likely_k_alone(llm: LLM):
    drawn = complete(llm, temperature=2.0, top_k=3, seed=2, max_tokens=40, logprobs=0, ignore_eos=True)
    ranks = [entry[token].rank for token, entry in zip(drawn.token_ids, drawn.logprobs or [], strict=True)]
    assert set(ranks) == {1, 2, 3}


def test_g7_no_id_lies_outside_the_vocabulary(llm: LLM):
    params = SamplingParams(n=8, temperature=2.0, max_tokens=40, ignore_eos=True)
    drawn = [token for c in llm.generate(PROMPT, params, use_tqdm=False)[0].outputs for token in c.token_ids]
    assert len(drawn) == 320
    assert set(drawn) <= set(range(VOCAB))


def test_g8_samples_differ_and_one_seeded_params_object_gives_equal_prompts_equal_answers(llm: LLM):
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=16, ignore_eos=True)
    outputs = llm.generate([PROMPT] * 4, params, use_tqdm=False)
    answers = [[completion.token_ids for completion in output.outputs] for output in outputs]
    assert len({tuple(sequence) for sequence in answers[0]}) == 3
    assert answers == [answers[0]] * 4
    [alone] = llm.generate(PROMPT, SamplingParams(temperature=1.5, seed=7, max_tokens=16, ignore_eos=True))
    assert alone.outputs[0].token_ids == answers[0][0]


def test_g10_seeds_that_are_equal_in_32_bits_differ(llm: LLM):
    params = {"temperature": 2.0, "max_tokens": 16, "ignore_eos": True}
    answers = [tuple(ids(llm, seed=seed, **params)) for seed in (0, 2**32, 2**63 - 1, 1, 2**31)]
    assert len(set(answers)) == 5
    assert tuple(ids(llm, seed=2**32, **params)) == answers[1]


def test_g10_a_seed_of_minus_one_is_no_seed(llm: LLM):
    params = {"temperature": 2.0, "max_tokens": 16, "ignore_eos": True}
    assert ids(llm, seed=-1, **params) != ids(llm, seed=-1, **params)
    assert ids(llm, **params) != ids(llm, **params)


def test_g13_an_id_that_the_model_lacks_reaches_no_neighbour(llm: LLM):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    want = [output.outputs[0].token_ids for output in llm.generate(OTHERS, params, use_tqdm=False)]
    stream = llm.stream(OTHERS, params)
    got: list[list[int]] = [[], [], []]
    for i, delta in enumerate(stream):
        got[delta.prompt_index] += delta.token_ids
        if i in (2, 5):
            for bad in ({"logit_bias": {VOCAB: 100.0}}, {"logit_bias": {10**6: 1.0}}, {"stop_token_ids": [VOCAB]}):
                with pytest.raises(ValueError, match="the model's ids are 0 to 96"):
                    llm.generate(PROMPT, SamplingParams(**bad))
    assert got == want


def test_the_last_id_of_the_vocabulary_can_be_biased_and_reaches_no_neighbour(llm: LLM):
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    biased = SamplingParams(temperature=0.0, max_tokens=6, logit_bias={VOCAB - 1: 100.0, 0: -100.0})
    alone = ids(llm, OTHERS[0], temperature=0.0, max_tokens=6, ignore_eos=True)
    first, second = llm.generate([PROMPT, OTHERS[0]], [biased, greedy], use_tqdm=False)
    assert first.outputs[0].token_ids == [VOCAB - 1] * 6
    assert second.outputs[0].token_ids == alone


# --- penalties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalties", [(1.5, 0.0), (0.0, 1.0), (0.7, 0.8), (-2.0, -0.5)])
def test_presence_and_frequency_penalties_lower_what_came_before(llm: LLM, penalties: tuple[float, float]):
    presence, frequency = penalties
    params = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 20}
    plain = complete(llm, **params)
    drawn = complete(llm, presence_penalty=presence, frequency_penalty=frequency, **params)
    assert drawn.token_ids != plain.token_ids
    for i, (token, entry) in enumerate(zip(drawn.token_ids, drawn.logprobs or [], strict=True)):
        before = drawn.token_ids[:i]
        adjusted = {
            candidate: logprob.logprob - presence * (candidate in before) - frequency * before.count(candidate)
            for candidate, logprob in entry.items()
        }
        assert token == max(adjusted, key=lambda candidate: adjusted[candidate])


@pytest.mark.parametrize("penalty", [1.3, 3.0, 0.6])
def test_a_repetition_penalty_looks_at_the_prompt_as_well(llm: LLM, penalty: float):
    with np.load(Path(TINY_LLAMA) / "logits.npz") as golden:
        prompts, logits = golden["ids"].tolist(), golden["logits"].astype(np.float64)
    changed = 0
    for prompt, rows in zip(prompts, logits, strict=True):
        for length in (5, 11, 17, 23, 31, 40):
            row = rows[length - 1].copy()
            seen = sorted(set(prompt[:length]))
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
            got = ids(llm, prompt[:length], temperature=0.0, max_tokens=1, repetition_penalty=penalty)
            assert got == [int(row.argmax())]
            changed += int(row.argmax() != rows[length - 1].argmax())
    assert changed > 0


def test_penalties_of_one_request_do_not_reach_the_next_one_in_its_row(llm: LLM):
    params = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    want = ids(llm, **params)
    for rule in ({"presence_penalty": 2.0}, {"logit_bias": {7: 100.0}}, {"min_tokens": 12, "logit_bias": {2: 100.0}}):
        ids(llm, **params, **rule)
        assert ids(llm, **params) == want
