"""An engine over the simulated executor: time from the cost model, answers from the seed, logs that can be replayed."""

from pathlib import Path

import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.plan import SequenceDelta
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel, LinearCostModel
from jpaged.sim.profiles import load_profile
from jpaged.sim.work import LOG_COLUMNS
from jpaged.workloads.column_files import read_integers
from models.families import PRESETS
from tests.sim.logs import LoggedExecutor, write_log

OPT_13B = PRESETS["opt-13b"]
FLAT = LinearCostModel(name="flat", launch_ns=1000.0, token_ns=10.0, host_step_ns=7.0, sequence_ns=100.0)


class Run:
    """An engine on a virtual clock, stepped to its end."""

    def __init__(
        self, cost_model: CostModel = FLAT, *, num_pages: int = 40, num_host_pages: int = 40, **options
    ) -> None:
        self.clock = VirtualClock()
        self.executor = LoggedExecutor(cost_model, self.clock, page_size=4, **options)
        self.engine = Engine(
            SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=120),
            CacheConfig(num_pages=num_pages, page_size=4, num_host_pages=num_host_pages, enable_prefix_caching=False),
            self.executor,
            vocab_size=50272,
            clock=self.clock,
        )

    def add(self, name: str, prompt_len: int, output_len: int, n: int = 1) -> None:
        params = SamplingParams(max_tokens=output_len, ignore_eos=True, n=n)
        prompt = tuple(range(10, 10 + prompt_len))
        request = Request(request_id=name, prompt_token_ids=prompt, params=params, arrival=self.clock.now())
        self.engine.add(request)

    def add_beam(self, name: str, prompt_len: int, output_len: int) -> None:
        beam = BeamSearchParams(beam_width=3, max_tokens=output_len, ignore_eos=True)
        prompt = tuple(range(10, 10 + prompt_len))
        request = Request(request_id=name, prompt_token_ids=prompt, params=beam_params(beam, 0), beam=beam)
        self.engine.add(request)

    def finish(self) -> list[SequenceDelta]:
        deltas: list[SequenceDelta] = []
        while self.engine.has_unfinished:
            deltas += self.engine.step()
        return deltas


def busy(run: Run) -> Run:
    """A run with forks, copies and swaps."""
    for i in range(6):
        run.add(f"r{i}", 5 + 3 * i, 30, n=1 + i % 3)
    run.finish()
    return run


def test_the_clock_shows_what_the_cost_model_says_and_metrics_are_in_its_time():
    run = Run()
    run.add("a", 10, 3)
    run.engine.step()
    assert run.clock.now_ns == 7 + 1000 + 10 * 10
    metrics = run.engine.metrics("a")
    assert metrics is not None
    run.engine.step()
    assert run.clock.now_ns == 1107 + 7 + 1000 + 100 + 10
    run.finish()
    assert run.clock.now_ns == 1107 + 2 * 1117
    assert run.executor.host_ns == 3 * 7
    assert run.executor.device_ns == run.clock.now_ns - 3 * 7
    assert metrics.first_token == pytest.approx(1107e-9)
    assert metrics.finished == pytest.approx(run.clock.now())


def test_the_log_adds_up_and_counts_the_tokens():
    run = busy(Run())
    log = run.executor.columns()
    assert tuple(log) == LOG_COLUMNS
    ends = [sum(times) for times in zip(log["start_ns"], log["host_ns"], log["device_ns"], strict=True)]
    assert log["start_ns"] == [0, *ends[:-1]]
    assert ends[-1] == run.clock.now_ns
    assert sum(log["samples"]) == run.engine.stats.num_tokens_sampled
    tokens = sum(log["prefill_tokens"]) + sum(log["decode_rows"])
    assert tokens == run.engine.stats.num_tokens_computed
    assert sum(log["page_copies"]) > 0
    assert sum(log["pages_swapped_out"]) > 0
    assert sum(log["pages_swapped_in"]) > 0
    assert set(log["page_size"]) == {4}


def test_two_runs_give_the_same_log():
    assert busy(Run()).executor.columns() == busy(Run()).executor.columns()


def test_decode_steps_may_be_paid_for_without_plans():
    stepped, ahead = Run(), Run()
    for run in (stepped, ahead):
        run.add("a", 10, 9)
        run.engine.step()
    for _ in range(5):
        stepped.engine.step()
    assert ahead.executor.decode([11], 5, None)[-1] == stepped.clock.now_ns == ahead.clock.now_ns
    assert ahead.executor.columns() == stepped.executor.columns()


def test_padded_rows_make_a_batch_as_slow_as_its_longest():
    times: list[int] = []
    for padded in (False, True):
        run = Run(padded=padded)
        run.add("long", 30, 1)
        run.add("short", 6, 1)
        run.finish()
        times.append(run.clock.now_ns)
    assert times == [1007 + 36 * 10, 1007 + 60 * 10]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl", ".jsonl.gz"])
def test_a_logged_run_replayed_takes_the_same_time_step_for_step(tmp_path: Path, suffix: str):
    path = tmp_path / f"steps{suffix}"
    first = busy(Run(load_profile("paper-2023", OPT_13B, "A100-40GB")))
    write_log(path, first.executor.columns())
    again = busy(Run(load_profile(f"table:{path}", OPT_13B, "A100-40GB")))
    assert again.executor.columns() == first.executor.columns() == read_integers(path)
    data = path.read_bytes()
    write_log(path, again.executor.columns())
    assert path.read_bytes() == data


def test_a_replay_of_another_run_or_past_the_end_is_an_error(tmp_path: Path):
    path = tmp_path / "steps.csv"
    logged = Run()
    logged.add("a", 10, 3)
    logged.finish()
    write_log(path, logged.executor.columns())
    other = Run(load_profile(f"table:{path}", OPT_13B, "A100-40GB"))
    other.add("a", 11, 3)
    with pytest.raises(ValueError, match=r"step 0: prefill_tokens=11, but table:.* has 10 there; replay the run"):
        other.finish()
    longer = Run(load_profile(f"table:{path}", OPT_13B, "A100-40GB"))
    longer.add("a", 10, 4)
    with pytest.raises(ValueError, match=r"step 3: profile table:.* has 3 steps; log a longer run"):
        longer.finish()


def best_beams(run: Run) -> list[tuple[int, ...]]:
    deltas = run.finish()
    return [d.hypothesis.token_ids for d in deltas if d.request_id == "beam" and d.hypothesis is not None]


def test_beams_depend_on_the_seed_but_not_on_company_or_memory():
    alone, crowded, other_seed = Run(), Run(num_pages=30), Run(seed=1)
    for run in (alone, crowded, other_seed):
        run.add_beam("beam", 9, 16)
    for i in range(5):
        crowded.add(f"r{i}", 9, 30)
    found = best_beams(alone)
    assert len(set(found)) == 3
    assert best_beams(crowded) == found
    preemptions = crowded.engine.stats_dict()["num_preemptions_recompute"]
    assert preemptions
    assert best_beams(other_seed) != found
