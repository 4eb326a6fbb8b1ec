"""The shipped files: what their README says of them, their licences, and the paper's traces made of them."""
# The paper's recipe is told in NumPy's global stream.
# ruff: noqa: NPY002

import random
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.traces import DATA, TRACES
from jpaged.workloads import PrefixReuse, WorkloadSpec, build_workload, describe, load_workload
from jpaged.workloads.files import read_trace

README = (DATA / "README.md").read_text()


@pytest.mark.parametrize("name", TRACES)
def test_a_shipped_file_is_like_its_readme_says(name: str):
    trace = TRACES[name]
    rows = read_trace(trace.path, prefix_unit=trace.prefix_unit)
    stats = describe(rows.workload)
    found = re.search(rf"^\| {name} \| `(\S+)` \|(.*)\|$", README, re.MULTILINE)
    assert found and found[1] == trace.path.name
    count, prompt, output, arrivals, blocks = (cell.strip() for cell in found[2].split("|"))
    assert count == f"{stats.num_requests:,}"
    for said, lengths in ((prompt, stats.prompt), (output, stats.output)):
        values = lengths.mean, lengths.std, lengths.quantile(50), lengths.quantile(99)
        assert said == "{:.1f} / {:.1f} / {:.0f} / {:.0f}".format(*values)
    assert bool(arrivals) == rows.has_arrivals
    if arrivals:
        assert arrivals == f"{stats.span_s:.0f} s, {stats.rate:.2f}, {stats.gap_cv:.2f}"
    reuse = stats.prefix_reuse
    said = "" if reuse is None else f"{reuse.num_hits:,} of {reuse.num_blocks:,} ({100 * reuse.share:.1f} %)"
    assert blocks == said


def test_every_shipped_file_of_requests_has_a_source_and_a_licence():
    files = {*DATA.rglob("*.gz"), *(DATA / "traces").iterdir()}
    assert files <= {trace.path for trace in TRACES.values()}
    for trace in TRACES.values():
        assert trace.source and trace.licence
    assert "states no licence" in README and TRACES["sharegpt_pairs"].licence == "no licence stated"


def test_prefix_reuse_counts_longest_known_prefixes():
    conversation = load_workload(TRACES["mooncake_conversation_blocks"].path, prefix_unit=512)
    assert describe(conversation).prefix_reuse == PrefixReuse(512, 27305, 5791)
    # A cache of the ids that token_ids makes of it finds the same, but for each prompt's last, unfilled block.
    known, hits = set[int](), 0
    for row in range(120):
        ids = conversation.token_ids(row, 50272)
        parent, missed = 0, False
        for start in range(0, len(ids), 512):
            parent = hash((parent, ids[start : start + 512]))
            missed = missed or parent not in known
            hits += not missed
            known.add(parent)
    reuse = describe(conversation.first(120)).prefix_reuse
    assert reuse is not None and reuse.num_hits == hits > 100


@pytest.mark.parametrize(
    ("duration", "count", "prompt", "output"), [(3600, 7280, 159.4856, 336.0251), (600, 1160, 140.1, 333.3198)]
)
def test_the_papers_trace_comes_out_to_the_request(duration: int, count: int, prompt: float, output: float):
    spec = WorkloadSpec(lengths="sharegpt_pairs", arrivals="paper", rate=2.0, duration_s=duration)
    workload = build_workload(spec, TRACES)
    assert len(workload) == count
    assert np.mean(workload.prompt_tokens) == pytest.approx(prompt, abs=1e-4)
    assert np.mean(workload.output_tokens) == pytest.approx(output, abs=1e-4)
    assert workload.num_dropped == 84226 - 79725
    # As the recipe is told: global streams, rows in file order below 2048 tokens, shuffled.
    raw = np.genfromtxt(TRACES["sharegpt_pairs"].path, delimiter=",", skip_header=1, dtype=int)
    pairs = [tuple(pair) for pair in raw.tolist()]
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        random.seed(0)
        np.random.seed(0)
        arrivals = [q * 10_000_000 for q in range(duration * 100) for _ in range(np.random.poisson(2.0 * 0.01))]
        rows = [pair for pair in pairs if sum(pair) < 2048][: len(arrivals)]
        random.shuffle(rows)
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
    assert list(workload.arrival_ns) == arrivals
    assert list(zip(workload.prompt_tokens, workload.output_tokens, strict=True)) == rows


def test_a_short_file_is_repeated_from_the_top(tmp_path: Path):
    path = tmp_path / "pairs.csv"
    spec = WorkloadSpec(lengths=str(path), arrivals="paper", rate=2.0, duration_s=10.0)
    path.write_text("prompt_tokens,output_tokens\n1,1\n2000,48\n3,3\n")
    trace = build_workload(spec)
    counts = [sum(tokens == wanted for tokens in trace.prompt_tokens) for wanted in (1, 2000, 3)]
    assert counts[1] == 0 and counts[0] - counts[2] in (0, 1) and sum(counts) == len(trace) > 5
    path.write_text("prompt_tokens,output_tokens\n2000,48\n")
    with pytest.raises(ValueError, match="none has at most 2047 tokens"):
        build_workload(spec)


def test_all_pairs_below_2048_tokens_have_the_means_of_fig_11():
    pairs = load_workload(TRACES["sharegpt_pairs"].path)
    kept = build_workload(WorkloadSpec(lengths="sharegpt_pairs", arrivals="all_at_once", max_model_len=2047), TRACES)
    assert (len(pairs), len(kept)) == (84226, 79725)
    stats = describe(kept)
    assert (stats.prompt.mean, stats.output.mean) == pytest.approx((161.18, 338.00), abs=0.01)
    assert stats.output.mean_inverse == pytest.approx(0.01339, abs=0.00001)
