"""From a spec to a workload: counts, cuts, rates, and specs that make no sense."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jpaged.workloads import LENGTHS, TraceFile, Workload, WorkloadSpec, build_workload, describe, save_csv


@pytest.fixture
def traces(tmp_path: Path) -> dict[str, TraceFile]:
    """A file "ten" of ten requests a second apart, prompts 10, 20, ... 100, outputs 1 to 10; "bare" has no arrivals."""
    ten = Workload(
        arrival_ns=tuple(i * 10**9 for i in range(10)),
        prompt_tokens=tuple(range(10, 110, 10)),
        output_tokens=tuple(range(1, 11)),
    )
    save_csv(ten, tmp_path / "ten.csv")
    pairs = zip(ten.prompt_tokens, ten.output_tokens, strict=True)
    (tmp_path / "bare.csv").write_text("prompt_tokens,output_tokens\n" + "".join(f"{p},{o}\n" for p, o in pairs))
    (tmp_path / "chat.csv").write_text("session,turn,prompt_tokens,output_tokens\n0,0,5,5\n1,0,6,5\n0,1,20,5\n")
    return {
        name: TraceFile(path=tmp_path / f"{name}.csv", source=f"made {name}", licence="free")
        for name in ("ten", "bare", "chat")
    }


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(LENGTHS)),
    st.sampled_from(["poisson", "gamma", "uniform", "paper"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, 300, 2048]),
    st.sampled_from([0, 80]),
)
def test_equal_specs_give_equal_workloads_within_their_limits(
    lengths: str, arrivals: str, seed: int, limit: int | None, shared: int
):
    spec = WorkloadSpec(
        lengths=lengths, arrivals=arrivals, rate=5.0, duration_s=4.0, seed=seed, max_model_len=limit,
        max_output_tokens=100, shared_prefix_tokens=shared,
    )  # fmt: skip
    workload = build_workload(spec)
    assert workload == build_workload(spec)
    assert all(at < 4e9 for at in workload.arrival_ns)
    assert max(workload.output_tokens, default=0) <= 100
    for prompt, output in zip(workload.prompt_tokens, workload.output_tokens, strict=True):
        assert prompt > shared and (limit is None or prompt + output <= limit)


def test_the_default_is_the_papers_sharegpt_free_of_licences():
    workload = build_workload(WorkloadSpec(rate=2.0, num_requests=4000))
    stats = describe(workload)
    assert (stats.prompt.mean, stats.output.mean) == pytest.approx((161.31, 337.99), rel=0.08)
    assert stats.rate == pytest.approx(2.0, rel=0.05)
    assert workload.name == "sharegpt-poisson"
    assert workload.source == "lengths sharegpt, sampled by jpaged"


def test_lengths_do_not_depend_on_arrivals_nor_on_how_many_follow():
    one = build_workload(WorkloadSpec(rate=2.0, num_requests=100, seed=4))
    other = build_workload(WorkloadSpec(arrivals="gamma", burstiness=0.5, rate=9.0, num_requests=300, seed=4))
    assert other.first(100).prompt_tokens == one.prompt_tokens
    assert other.first(100).output_tokens == one.output_tokens


def test_too_long_requests_are_passed_over_and_counted_or_refused(traces: dict[str, TraceFile]):
    spec = WorkloadSpec(lengths="ten", arrivals="all_at_once", max_model_len=77)
    workload = build_workload(spec, traces)
    assert workload.prompt_tokens == (10, 20, 30, 40, 50, 60, 70)
    assert workload.num_dropped == 3
    assert "3 requests of more than 77 tokens passed over" in workload.notes
    assert workload.source == "made ten (free)"
    with pytest.raises(ValueError, match=r"max_model_len=77: .* has 80 prompt and 8 output tokens; raise it"):
        build_workload(replace(spec, too_long="refuse"), traces)
    assert build_workload(replace(spec, too_long="refuse", max_model_len=110), traces).num_dropped == 0
    with pytest.raises(ValueError, match=r"max_model_len=3: 20000 requests of lengths='alpaca' in a row are longer"):
        build_workload(WorkloadSpec(lengths="alpaca", rate=1.0, num_requests=5, max_model_len=3))
    # The rate of drawn arrivals stays as asked.
    cut = build_workload(WorkloadSpec(rate=5.0, num_requests=200, max_model_len=300))
    assert len(cut) == 200 and cut.num_dropped > 50
    assert cut.arrival_ns == build_workload(WorkloadSpec(rate=5.0, num_requests=200)).arrival_ns


def test_recorded_arrivals_stay_with_their_requests(traces: dict[str, TraceFile]):
    spec = WorkloadSpec(lengths="ten", arrivals="recorded")
    assert build_workload(spec, traces).arrival_ns == tuple(i * 10**9 for i in range(10))
    assert build_workload(replace(spec, time_scale=0.5), traces).arrival_ns[:3] == (0, 5 * 10**8, 10**9)
    faster = build_workload(replace(spec, rate=4.0), traces)
    assert describe(faster).rate == pytest.approx(4.0)
    assert build_workload(replace(spec, duration_s=2.5), traces).prompt_tokens == (10, 20, 30)
    assert build_workload(replace(spec, num_requests=2), traces).prompt_tokens == (10, 20)
    short = build_workload(replace(spec, max_model_len=22), traces)
    assert (short.arrival_ns, short.num_dropped) == ((0, 10**9), 8)
    with pytest.raises(ValueError, match="arrivals='recorded': bare has no arrivals; choose others"):
        build_workload(replace(spec, lengths="bare"), traces)
    with pytest.raises(ValueError, match="are sampled and have none"):
        build_workload(WorkloadSpec(arrivals="recorded", num_requests=3))


def test_rows_come_in_order_once_or_sampled_as_often_as_asked(traces: dict[str, TraceFile]):
    spec = WorkloadSpec(lengths="ten", rate=1.0)
    everything = build_workload(spec, traces)
    assert everything.prompt_tokens == tuple(range(10, 110, 10))
    assert everything.arrival_ns != tuple(i * 10**9 for i in range(10))
    with pytest.raises(ValueError, match="11 requests are wanted, ten has 10 that fit; ask for fewer or set rows"):
        build_workload(replace(spec, num_requests=11), traces)
    sampled = build_workload(replace(spec, rows="sampled", num_requests=500), traces)
    assert set(sampled.prompt_tokens) == set(everything.prompt_tokens)
    assert all(
        10 * output == prompt for prompt, output in zip(sampled.prompt_tokens, sampled.output_tokens, strict=True)
    )
    assert np.mean(sampled.prompt_tokens) == pytest.approx(55, rel=0.1)
    with pytest.raises(ValueError, match="rows are sampled without end"):
        build_workload(replace(spec, rows="sampled"), traces)


def test_a_path_serves_as_well_as_a_name(traces: dict[str, TraceFile]):
    path = str(traces["ten"].path)
    by_path = build_workload(WorkloadSpec(lengths=path, arrivals="recorded"))
    assert by_path.digest() == build_workload(WorkloadSpec(lengths="ten", arrivals="recorded"), traces).digest()
    assert by_path.source == "file ten.csv (not said)"
    with pytest.raises(ValueError, match=r"lengths='tne': is none of alpaca, .*, ten, .*; choose one or give the path"):
        build_workload(WorkloadSpec(lengths="tne", rate=1.0), traces)


def test_a_shared_prefix_lengthens_every_prompt(traces: dict[str, TraceFile]):
    spec = WorkloadSpec(lengths="wmt16", rate=5.0, num_requests=50)
    plain, longer = build_workload(spec), build_workload(replace(spec, shared_prefix_tokens=341))
    assert longer.prompt_tokens == tuple(341 + tokens for tokens in plain.prompt_tokens)
    assert longer.token_ids(3, 32000)[:341] == longer.token_ids(7, 32000)[:341]
    chat = build_workload(WorkloadSpec(lengths="chat", arrivals="all_at_once", shared_prefix_tokens=16), traces)
    assert chat.token_ids(2, 999)[:26] == chat.token_ids(0, 999) + chat.answer_ids(0, 999)


def test_sessions_are_not_shuffled(traces: dict[str, TraceFile]):
    for change in ({"rows": "sampled", "num_requests": 3}, {"arrivals": "paper", "duration_s": 1.0}):
        with pytest.raises(ValueError, match="the turns of a session have an order"):
            build_workload(WorkloadSpec(lengths="chat", rate=1.0, **change), traces)


def test_made_lengths_are_what_was_asked():
    constant = build_workload(
        WorkloadSpec(lengths="constant", prompt_tokens=7, output_tokens=3, arrivals="all_at_once", num_requests=5)
    )
    assert (set(constant.prompt_tokens), set(constant.output_tokens), constant.arrival_ns) == ({7}, {3}, (0,) * 5)
    made = build_workload(
        WorkloadSpec(lengths="uniform", prompt_tokens=(2, 4), output_tokens=(5, 5), rate=9.0, num_requests=300)
    )
    assert (set(made.prompt_tokens), set(made.output_tokens)) == ({2, 3, 4}, {5})


def test_gaps_are_rescaled_only_on_request():
    spec = WorkloadSpec(arrivals="gamma", burstiness=0.5, rate=4.0, num_requests=100, rescale_gaps=True)
    assert build_workload(spec).arrival_ns[-1] == 25 * 10**9
    assert build_workload(replace(spec, rescale_gaps=False)).arrival_ns[-1] != 25 * 10**9
    assert "gaps rescaled" in build_workload(spec).notes[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "rate=None: poisson arrivals need a rate"),
        ({"rate": -1.0}, "rate=-1.0: must be a finite number"),
        ({"rate": 1.0, "arrivals": "bursty"}, "arrivals='bursty': choose one of poisson, gamma"),
        ({"rate": 1.0, "num_requests": 0}, "num_requests=0: must be at least 1"),
        ({"rate": 1.0, "num_requests": 1, "duration_s": 1.0}, "duration_s=1.0: num_requests=1 says already how many"),
        ({"rate": 1.0, "duration_s": float("nan")}, "duration_s=nan: must be a finite number above 0"),
        ({"rate": 1.0, "seed": -1}, "seed=-1: must be between"),
        ({"rate": 1.0, "seed": 1.5}, "seed=1.5: must be an integer"),
        ({"rate": 1.0, "burstiness": 2.0}, "burstiness=2.0: is of gamma arrivals"),
        ({"rate": 1.0, "time_scale": 2.0}, "time_scale=2.0: is of recorded arrivals"),
        ({"rate": 1.0, "arrivals": "all_at_once"}, "rate=1.0: all_at_once has no rate"),
        ({"duration_s": 1.0, "arrivals": "all_at_once"}, "duration_s=1.0: all_at_once takes no time"),
        ({"rate": 1.0, "arrivals": "paper", "num_requests": 4}, "duration_s=None, rows='in_order': the paper's recipe"),
        ({"rate": 1.0, "rescale_gaps": True, "duration_s": 4.0}, "rescale_gaps=True: is of poisson or gamma"),
        ({"arrivals": "recorded", "rows": "sampled"}, "rows='sampled': recorded arrivals belong to rows in order"),
        ({"rate": 1.0, "too_long": "cut"}, "too_long='cut': choose one of drop, refuse"),
        ({"rate": 1.0, "prompt_tokens": 4}, "prompt_tokens=4: is of constant and uniform lengths"),
        ({"rate": 1.0, "lengths": "constant", "prompt_tokens": 4}, "output_tokens=None: must be an integer"),
        (
            {"rate": 1.0, "lengths": "uniform", "prompt_tokens": 4, "output_tokens": 4},
            "prompt_tokens=4: must be (lowest,",
        ),
        ({"rate": 1.0, "lengths": "uniform", "prompt_tokens": [4, 2]}, "the highest of prompt_tokens=2: must be"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=r".") as caught:
        WorkloadSpec(**fields)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_drawn_lengths_need_a_number():
    with pytest.raises(ValueError, match="num_requests=None: say how many"):
        build_workload(WorkloadSpec(rate=1.0))


def test_workloads_load_no_jax():
    code = "import sys, jpaged.workloads; print({'jax', 'flax', 'jaxlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
