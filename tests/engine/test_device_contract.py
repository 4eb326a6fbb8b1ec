"""The device side keeps its contracts: pool in place, few programs, no hidden transfers, no retrace."""

import warnings

import chex
import jax
import numpy as np
import pytest

from jpaged import SamplingParams
from jpaged.runtime import model_runner
from jpaged.runtime.buckets import Buckets
from tests.engine.tiny import GREEDY, generate, random_prompts, tiny_llm

PROMPTS = [prompt[: len(prompt) // 4 * 4 + 1] for prompt in random_prompts(8, 4, 40)]  # each ends in a part-filled page
MIX = [
    GREEDY,
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=6, logprobs=3),
    SamplingParams(n=3, temperature=1.0, seed=2, max_tokens=5, min_tokens=2, presence_penalty=0.5),
    SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=2, logit_bias={7: 5.0}),
] * 2


@pytest.fixture
def warm():
    """An engine whose programs are all compiled."""
    llm = tiny_llm(num_pages=40, page_size=4)
    llm.warm_up()
    return llm


def test_after_warm_up_nothing_is_traced_or_compiled(warm, monkeypatch):
    programs = len(warm.runner.programs)
    runner = warm.runner
    for owner, name in ((runner, "_forward"), (runner, "_sample"), (runner, "_set_lane"), (runner.mover, "_copy")):
        monkeypatch.setattr(owner, name, None)  # any further lowering would fail
    with jax.log_compiles(), warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(warm, PROMPTS, MIX)
    assert len(warm.runner.programs) == programs == warm.stats()["compiled_programs"]


def test_each_shape_of_the_step_is_traced_once(monkeypatch):
    shapes = Buckets(8, 64, 16).all()
    traced = chex.assert_max_traces(model_runner.forward, n=len(shapes))
    monkeypatch.setattr(model_runner, "forward", traced)
    llm = tiny_llm(num_pages=40, page_size=4)
    for _ in range(2):
        generate(llm, PROMPTS, MIX)


def test_the_number_of_programs_is_bounded_by_the_configuration(warm):
    shapes = warm.runner.buckets.all()
    samplers = {shape.num_samples for shape in shapes}
    assert len(warm.runner.programs) == len(shapes) + len(samplers) + 2
    assert len(shapes) <= 12


def test_the_only_transfers_are_the_explicit_ones(warm):
    with jax.transfer_guard("disallow"):
        generate(warm, PROMPTS, MIX)
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="transfer"):
        np.asarray([1.0]) + jax.numpy.ones(1)  # the guard does guard


def test_the_pool_stays_where_it_is(warm):
    pointers = [array.unsafe_buffer_pointer() for array in (warm.runner.kv_pages.k, warm.runner.kv_pages.v)]
    old = warm.runner.kv_pages.k
    generate(warm, PROMPTS, MIX)
    assert warm.stats()["num_page_copies"] > 0
    assert old.is_deleted()
    assert [array.unsafe_buffer_pointer() for array in (warm.runner.kv_pages.k, warm.runner.kv_pages.v)] == pointers


def test_temporary_memory_does_not_depend_on_the_size_of_the_pool():
    sizes = []
    for num_pages in (40, 4000):
        llm = tiny_llm(num_pages=num_pages, page_size=4)
        llm.warm_up()
        pool = llm.runner.kv_pages.nbytes
        sizes.append(llm.runner.programs.read(lambda program: program.memory_analysis().temp_size_in_bytes))
        memory = llm.runner.programs.read(lambda program: program.memory_analysis())
        for name in memory:
            if "sample" not in name and name != "set_lane":
                assert memory[name].alias_size_in_bytes >= pool, f"{name} does not update the pool in place"
    assert sizes[0] == sizes[1]


def test_the_work_of_a_step_does_not_depend_on_the_size_of_the_pool():
    costs = []
    for num_pages in (40, 4000):
        llm = tiny_llm(num_pages=num_pages, page_size=4)
        llm.warm_up()
        costs.append(llm.runner.programs.read(lambda program: program.cost_analysis()["flops"]))
    assert costs[0] == costs[1]


def test_garbage_in_unfilled_slots_and_in_the_null_page_reaches_no_output():
    clean = tiny_llm(num_pages=40, page_size=4)
    want = generate(clean, PROMPTS)
    poisoned = tiny_llm(num_pages=40, page_size=4)
    pool = poisoned.runner.kv_pages
    poisoned.runner.kv_pages = pool._replace(k=pool.k.at[:].set(np.nan), v=pool.v.at[:].set(np.inf))
    assert generate(poisoned, PROMPTS) == want
