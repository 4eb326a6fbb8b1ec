"""Sharing, beams, swap and pins on the device change no token: greedy, sampled and beam requests, alone and together.

Engines of one page size share a runner, hence its compiled programs: the pool that the host core sees may be smaller
than the arrays are.
"""

import dataclasses
import functools
import re
from typing import Any

import numpy as np
import pytest

from jpaged import LLM, BeamSearchParams, SamplingParams
from jpaged.core.engine import Engine
from jpaged.core.plan import MoveKind, moves_of
from tests.engine.tiny import random_prompts, tiny_llm, token_ids

COMMON = random_prompts(1, 17, 17, seed=9)[0]
PROMPTS = [[*COMMON[:k], *tail] for k, tail in zip((8, 0, 17, 12, 3), random_prompts(5, 4, 9, seed=3), strict=True)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=12, presence_penalty=0.3, logprobs=2),
    SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=11, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=10, repetition_penalty=1.2, min_tokens=4),
    SamplingParams(n=2, temperature=0.8, seed=7, max_tokens=9, ignore_eos=True),
]
SEARCHED = [[*COMMON[:9], 33], [*COMMON[:14], 50, 7]]
SEARCH = BeamSearchParams(beam_width=4, max_tokens=10)
POOLS = {1: (400, 64), 4: (100, 20), 16: (32, 9), 64: (12, 5)}  # page size: ample, barely enough
MODES = ("recompute", "swap", "auto")


@functools.cache
def base(page_size: int) -> LLM:
    ample = POOLS[page_size][0]
    return tiny_llm(page_size=page_size, num_pages=ample, num_host_pages=ample, watermark=0.0, max_num_seqs=10)


def engine(page_size: int = 4, *, tight: bool = False, **options: Any) -> LLM:
    """The LLM of that page size, with a new host core; `options` are fields of its configs."""
    llm = base(page_size)
    options.setdefault("num_pages", POOLS[page_size][tight])
    cache, scheduler = llm.config.cache, llm.config.scheduler
    names = {field.name for field in dataclasses.fields(cache)}
    cache = dataclasses.replace(cache, **{k: v for k, v in options.items() if k in names})
    scheduler = dataclasses.replace(scheduler, **{k: v for k, v in options.items() if k not in names})
    llm.loop.engine = llm.engine = Engine(scheduler, cache, llm.runner, vocab_size=llm.config.model.vocab_size)
    return llm


def answer(llm: LLM) -> list[list[list[int]]]:
    """The ids of all requests, sampled and searched, run as one batch; afterwards the engine holds nothing."""
    stream = llm.stream(PROMPTS, PARAMS)
    searched = llm.beam_search(SEARCHED, SEARCH, use_tqdm=False)
    try:
        while True:
            next(stream)
    except StopIteration as end:
        sampled = end.value
    check_idle(llm)
    return token_ids([*sampled, *searched])


def check_idle(llm: LLM) -> None:
    llm.engine.scheduler.check()
    stats = llm.stats()
    assert stats["pages_free"] == stats["pages_total"] and stats["host_pages_free"] == stats["host_pages_total"]


@pytest.fixture(scope="module")
def alone() -> list[list[list[int]]]:
    """What each request answers by itself, with room for everything and no prefix cache."""
    llm = engine(enable_prefix_caching=False)
    answers = [token_ids(llm.generate([p], [q], use_tqdm=False))[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]
    answers += [token_ids(llm.beam_search([p], SEARCH, use_tqdm=False))[0] for p in SEARCHED]
    stats = llm.stats()
    assert stats["num_preemptions_recompute"] == stats["num_preemptions_swap"] == stats["prefix_hit_tokens"] == 0
    assert stats["num_page_copies"] > 0
    return answers


def test_company_changes_no_token(alone):
    llm = engine()
    assert answer(llm) == alone
    assert answer(llm) == alone, "and once more, out of the prefix cache"
    stats = llm.stats()
    assert stats["num_running_peak"] == 10 and stats["num_page_copies"] > 20 and stats["prefix_hit_tokens"] > 40
    assert stats["num_preemptions_recompute"] == stats["num_preemptions_swap"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_that_is_too_small_changes_no_token(alone, mode, caching):
    llm = engine(tight=True, preemption_mode=mode, enable_prefix_caching=caching)
    assert answer(llm) == alone
    stats = llm.stats()
    recomputed, swapped = stats["num_preemptions_recompute"], stats["num_preemptions_swap"]
    assert (recomputed > 0) == (mode != "swap" and recomputed + swapped > 0) and (swapped > 0) == (mode != "recompute")
    assert recomputed + swapped >= 3
    assert stats["num_pages_swapped_in"] == stats["num_pages_swapped_out"] and (swapped > 0) == (
        stats["num_pages_swapped_out"] > 0
    )
    assert stats["num_page_copies"] > 10
    assert (stats["num_evictions"] > 0) == (stats["prefix_hit_tokens"] > 0) == caching


def test_a_host_pool_without_room_changes_no_token(alone):
    llm = engine(tight=True, preemption_mode="swap", num_host_pages=12)
    assert answer(llm) == alone
    stats = llm.stats()
    assert stats["num_preemptions_swap"] > 0 and stats["num_preemptions_recompute"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_the_page_size_changes_no_token(alone, page_size):
    assert answer(engine(page_size)) == alone
    for mode in MODES:
        llm = engine(page_size, tight=True, preemption_mode=mode)
        assert answer(llm) == alone
        stats = llm.stats()
        preempted = stats["num_preemptions_recompute"] + stats["num_preemptions_swap"]
        assert preempted > 0 or page_size == 64, "a sequence never needs a second page of 64"
        assert (stats["num_page_copies"] > 0) == (page_size > 1), "a page of one token is never written twice"
        assert stats["num_evictions"] > 0 or page_size == 64


@pytest.mark.parametrize("chunk", [1, 3, 5, 16])
def test_the_size_of_chunks_changes_no_token(alone, chunk):
    assert answer(engine(long_prefill_token_threshold=chunk)) == alone
    llm = engine(tight=True, preemption_mode="swap", long_prefill_token_threshold=chunk)
    assert answer(llm) == alone
    assert llm.stats()["num_preemptions_swap"] > 0 and llm.stats()["num_page_copies"] > 0


@pytest.mark.parametrize("victim", ["last", "tests.core.wild_policies:first"])
@pytest.mark.parametrize("admission", ["longest_prefix", "tests.core.wild_policies:newest"])
def test_policies_change_no_token(alone, admission, victim):
    llm = engine(tight=True, admission_policy=admission, victim_policy=victim, scheduling_policy="priority")
    assert answer(llm) == alone
    stats = llm.stats()
    assert stats["num_preemptions_recompute"] + stats["num_preemptions_swap"] > 0 and stats["num_evictions"] > 0


def test_samples_that_cannot_be_in_the_pool_together_take_turns_and_are_the_same(alone):
    llm = engine(num_pages=16)
    assert token_ids(llm.generate([PROMPTS[2]], [PARAMS[2]], use_tqdm=False))[0] == alone[2]
    assert llm.stats()["num_running_peak"] == 3
    llm = engine(num_pages=9, max_model_len=36)
    assert token_ids(llm.generate([PROMPTS[2]], [PARAMS[2]], use_tqdm=False))[0] == alone[2]
    assert llm.stats()["num_running_peak"] == 1 and llm.stats()["prefix_hit_tokens_resumed"] > 0
    check_idle(llm)


def test_c7_pages_that_were_swapped_out_come_back_byte_for_byte(monkeypatch):
    llm = engine(tight=True, preemption_mode="swap")
    runner, move = llm.runner, llm.runner._move_pages
    kept: dict[int, list[np.ndarray]] = {}
    compared = 0

    def contents(page: int) -> list[np.ndarray]:
        return [np.asarray(a[:, page]) for a in runner.kv_pages if a is not None]

    def watch(plan: Any) -> None:
        nonlocal compared
        kept.update((out.target, contents(out.source)) for out in moves_of(plan.moves, MoveKind.SWAP_OUT))
        move(plan)
        copied = {copy.target for copy in moves_of(plan.moves, MoveKind.COPY)}
        for back in moves_of(plan.moves, MoveKind.SWAP_IN):
            if back.target not in copied:
                compared += 1
                np.testing.assert_array_equal(contents(back.target), kept[back.source])

    monkeypatch.setattr(runner, "_move_pages", watch)
    answer(llm)
    assert compared > 20


def test_pinned_pages_survive_pressure_and_are_hit_until_they_are_unpinned(alone):
    llm = engine(num_pages=26)
    assert llm.pin_prefix("common", COMMON) == 16
    held = list(llm.engine.scheduler.cache.prefixes.pinned["common"])
    stream = llm.stream(PROMPTS, PARAMS)
    searched = token_ids(llm.beam_search(SEARCHED, SEARCH, use_tqdm=False))
    list(stream)
    stats = llm.stats()
    assert searched == alone[5:] and stats["num_evictions"] > 0
    assert stats["num_preemptions_recompute"] + stats["num_preemptions_swap"] > 0
    assert stats["pages_total"] - stats["pages_free"] == len(held) == 4
    output = llm.generate([PROMPTS[2]], PARAMS[2], use_tqdm=False)[0]
    assert output.num_cached_tokens == 16 and token_ids([output])[0] == alone[2]
    llm.unpin_prefix("common")
    check_idle(llm)
    for seed in range(4):
        llm.generate(random_prompts(4, 20, 30, seed=seed), use_tqdm=False)
    assert llm.generate([PROMPTS[2]], PARAMS[2], use_tqdm=False)[0].num_cached_tokens == 0
    check_idle(llm)


def test_a_pin_that_cannot_be_is_refused_and_holds_nothing():
    llm = engine(num_pages=26)
    llm.pin_prefix("a", COMMON)
    for prompt, name, said in [
        (COMMON, "a", "prefix 'a' is pinned already: unpin it first, or choose another name"),
        ([COMMON, COMMON], "b", "prompt has 2 entries: a pinned prefix is one prompt"),
        ([97], "b", "the model's ids are 0 to 96"),
        ([], "b", "prompts is empty"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            llm.pin_prefix(name, prompt)
    with pytest.raises(ValueError, match="prefix 'b' is not pinned; pinned are: a"):
        llm.unpin_prefix("b")
    running = llm.stream([[5] * 40], SamplingParams(n=2, max_tokens=22, ignore_eos=True, seed=1))
    with pytest.raises(ValueError, match=r"prefix 'b' would leave 20 pages.*may need 22"):
        llm.pin_prefix("b", [7] * 9)
    assert list(llm.engine.scheduler.cache.prefixes.pinned) == ["a"]
    assert sum(len(delta.token_ids) for delta in running) == 44
    with pytest.raises(ValueError, match=r"needs 34 pages, the pool has 26, 4 of them pinned"):
        llm.beam_search([[5] * 40], BeamSearchParams(beam_width=4, max_tokens=22), use_tqdm=False)
    llm.unpin_prefix("a")
    with pytest.raises(ValueError, match="enable_prefix_caching=True"):
        engine(enable_prefix_caching=False).pin_prefix("a", COMMON)


@pytest.mark.parametrize("when", list(MoveKind)[:3])
def test_a_step_that_fails_while_pages_move_ends_every_request_and_the_next_call_is_right(alone, monkeypatch, when):
    llm = engine(tight=True, preemption_mode="swap")
    llm.pin_prefix("a", COMMON[:4])
    move = llm.runner._move_pages

    def fail(plan: Any) -> None:
        move(plan)
        if moves_of(plan.moves, when):
            raise RuntimeError("the device is on fire")

    monkeypatch.setattr(llm.runner, "_move_pages", fail)
    stream = llm.stream(PROMPTS, PARAMS)
    with pytest.raises(RuntimeError, match="on fire"):
        llm.beam_search(SEARCHED, SEARCH, use_tqdm=False)
    monkeypatch.setattr(llm.runner, "_move_pages", move)
    ends = {(d.prompt_index, d.index): d.finish_reason for d in stream if d.finish_reason}
    assert len(ends) == sum(params.n for params in PARAMS) and "abort" in ends.values()
    assert not llm.engine.has_unfinished and not llm.engine.scheduler.cache.prefixes.pinned
    assert llm.stats()["pages_cached"] == 0
    check_idle(llm)
    assert answer(llm) == alone
