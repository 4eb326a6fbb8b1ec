"""From a spec to its workload.

Equal specs and equal files give workloads of equal digests; what was left out or cut is counted and noted.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from jpaged.workloads import arrivals, lengths
from jpaged.workloads.files import TraceRows, read_trace
from jpaged.workloads.fits import MAX_TOTAL
from jpaged.workloads.spec import MADE, TraceFile, WorkloadSpec
from jpaged.workloads.streams import below, stream
from jpaged.workloads.workload import SECOND, Workload

# With this many samples in a row that are all too long, the next ones will be too.
HOPELESS = 20_000


@dataclass(slots=True)
class _Cuts:
    """What is too long for a spec, and how many requests were."""

    spec: WorkloadSpec
    dropped: int = 0

    @property
    def limit(self) -> int | None:
        """The most tokens of a request."""
        of_paper = MAX_TOTAL - 1 if self.spec.arrivals == "paper" else None
        limits = [limit for limit in (of_paper, self.spec.max_model_len) if limit is not None]
        return min(limits, default=None)

    def fit[K](self, sized: Iterable[tuple[K, int, int]]) -> Iterator[K]:
        """The keys of those (key, prompt, output) that are short enough; the others are counted. Raises ValueError."""
        run = 0
        for key, prompt, output in sized:
            if self.limit is None or prompt + output <= self.limit:
                run = 0
                yield key
                continue
            if self.spec.too_long == "refuse":
                raise ValueError(
                    f"max_model_len={self.limit}: a request of lengths={self.spec.lengths!r} has {prompt} prompt and "
                    f"{output} output tokens; raise it, shorten the requests or set too_long to drop"
                )
            self.dropped += 1
            run += 1
            if run == HOPELESS:
                raise ValueError(
                    f"max_model_len={self.limit}: {HOPELESS} requests of lengths={self.spec.lengths!r} in a row are "
                    "longer; raise it"
                )


def build_workload(spec: WorkloadSpec, traces: Mapping[str, TraceFile] | None = None) -> Workload:
    """The workload that `spec` describes; `traces` are the files that `spec.lengths` may name.

    Raises ValueError naming the field and what to do.
    """
    traces = traces or {}
    if spec.lengths in MADE or spec.lengths in lengths.LENGTHS:
        built, cuts = _drawn(spec)
        source = f"lengths {spec.lengths}, sampled by jpaged"
    else:
        file = traces.get(spec.lengths) or _file(spec, traces)
        trace = read_trace(file.path, prefix_unit=file.prefix_unit)
        built, cuts = _of_file(spec, trace)
        source = f"{file.source} ({file.licence})"
    capped = spec.max_output_tokens and sum(tokens == spec.max_output_tokens for tokens in built.output_tokens)
    notes = [_arrival_note(spec)]
    if cuts.limit is not None:
        notes.append(f"{cuts.dropped} requests of more than {cuts.limit} tokens passed over")
    if spec.max_output_tokens:
        notes.append(f"outputs cut to {spec.max_output_tokens} tokens, which {capped} have")
    name = f"{Path(spec.lengths).name}-{spec.arrivals}"
    return replace(built, name=name, source=source, num_dropped=cuts.dropped, notes=tuple(notes))


def _file(spec: WorkloadSpec, traces: Mapping[str, TraceFile]) -> TraceFile:
    if "/" in spec.lengths or spec.lengths.endswith((".csv", ".jsonl", ".gz")):
        return TraceFile(path=Path(spec.lengths), source=f"file {Path(spec.lengths).name}", licence="not said")
    names = sorted({*lengths.LENGTHS, *MADE, *traces})
    raise ValueError(f"lengths={spec.lengths!r}: is none of {', '.join(names)}; choose one or give the path of a file")


def _drawn(spec: WorkloadSpec) -> tuple[Workload, _Cuts]:
    """Requests of a distribution."""
    if spec.arrivals == "recorded":
        raise ValueError(f"arrivals='recorded': lengths={spec.lengths!r} are sampled and have none; choose others")
    times = _times(spec, spec.num_requests)
    if times is None:
        raise ValueError("num_requests=None: say how many, as lengths are sampled without end; or give duration_s")
    cuts = _Cuts(spec)
    pairs = ((p + spec.shared_prefix_tokens, min(o, spec.max_output_tokens or o)) for p, o in _pairs(spec))
    fitting = cuts.fit((pair, *pair) for pair in pairs)
    chosen = [next(fitting) for _ in times]
    return Workload(
        arrival_ns=times,
        prompt_tokens=tuple(prompt for prompt, _ in chosen),
        output_tokens=tuple(output for _, output in chosen),
        shared_prefix_tokens=spec.shared_prefix_tokens,
    ), cuts


def _pairs(spec: WorkloadSpec) -> lengths.Pairs:
    prompt, output = spec.prompt_tokens, spec.output_tokens
    if isinstance(prompt, int) and isinstance(output, int):
        return lengths.constant(prompt, output)
    if isinstance(prompt, tuple) and isinstance(output, tuple):
        return lengths.uniform(prompt, output, spec.seed)
    return lengths.LENGTHS[spec.lengths](spec.seed)


def _of_file(spec: WorkloadSpec, trace: TraceRows) -> tuple[Workload, _Cuts]:
    """Requests of a file, with its arrivals or others."""
    cuts = _Cuts(spec)
    requests = _prepared(spec, trace.workload)
    if spec.arrivals == "recorded":
        return _recorded(spec, trace, requests, cuts), cuts
    times = _times(spec, spec.num_requests)
    count = None if times is None else len(times)
    if requests.session is not None and (spec.arrivals == "paper" or spec.rows == "sampled"):
        raise ValueError(
            f"lengths={spec.lengths!r}: the turns of a session have an order; take other arrivals, in_order"
        )
    if spec.arrivals == "paper":
        assert count is not None and cuts.limit is not None
        pairs = list(zip(requests.prompt_tokens, requests.output_tokens, strict=True))
        cuts.dropped = len(pairs) - len(list(cuts.fit((0, *pair) for pair in pairs)))
        order = _paper_rows(pairs, count, max_total=cuts.limit, seed=spec.seed)
    else:
        order = _order(spec, requests, count, cuts)
    times = _times(spec, len(order)) if times is None else times
    assert times is not None
    # The file's times go first: rows in another order need not be in order of time.
    return replace(replace(requests, arrival_ns=(0,) * len(requests)).rows(order), arrival_ns=times), cuts


def _paper_rows(pairs: Sequence[tuple[int, int]], count: int, *, max_total: int, seed: int) -> list[int]:
    """Which rows of `pairs` come for `count` requests, in order of arrival, by the recipe of the paper's scripts.

    Pairs of more than `max_total` tokens are left out; of the others come as many of the first ones as there are
    arrivals, from the top again if they do not suffice; these are shuffled. So a short run has other mean lengths than
    a long one. No global random state is touched. Raises ValueError.
    """
    kept = [row for row, pair in enumerate(pairs) if sum(pair) <= max_total]
    if not kept and count:
        raise ValueError(f"pairs: none has at most {max_total} tokens in all; give shorter ones")
    rows = [kept[i % len(kept)] for i in range(count)]
    # The stream of random.seed(seed); random.shuffle(rows).
    random.Random(seed).shuffle(rows)
    return rows


def _prepared(spec: WorkloadSpec, workload: Workload) -> Workload:
    """The requests of a file with the spec's prefix and cut outputs."""
    shared = spec.shared_prefix_tokens
    if shared and (workload.prefix_ids is not None or workload.shared_prefix_tokens):
        raise ValueError(f"shared_prefix_tokens={shared}: {spec.lengths} says already what is shared; leave it out")
    most = spec.max_output_tokens
    return replace(
        workload,
        prompt_tokens=tuple(prompt + shared for prompt in workload.prompt_tokens),
        output_tokens=tuple(output if most is None else min(output, most) for output in workload.output_tokens),
        shared_prefix_tokens=workload.shared_prefix_tokens + shared,
    )


def _sized(workload: Workload, rows: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    return ((row, workload.prompt_tokens[row], workload.output_tokens[row]) for row in rows)


def _order(spec: WorkloadSpec, requests: Workload, count: int | None, cuts: _Cuts) -> list[int]:
    """Which rows come, in order; `count` of them, or all."""
    if spec.rows == "sampled":
        if count is None:
            raise ValueError("num_requests=None: say how many, as rows are sampled without end; or give duration_s")
        bits = stream(spec.seed, "rows")
        keys = cuts.fit(_sized(requests, (below(bits, len(requests)) for _ in iter(int, 1))))
        return [next(keys) for _ in range(count)]
    keys, order = cuts.fit(_sized(requests, range(len(requests)))), list[int]()
    while len(order) != count and (key := next(keys, None)) is not None:
        order.append(key)
    if count is not None and len(order) < count:
        raise ValueError(
            f"num_requests={spec.num_requests}, duration_s={spec.duration_s}: {count} requests are wanted, "
            f"{spec.lengths} has {len(order)} that fit; ask for fewer or set rows to sampled"
        )
    return order


def _recorded(spec: WorkloadSpec, trace: TraceRows, requests: Workload, cuts: _Cuts) -> Workload:
    if not trace.has_arrivals:
        raise ValueError(f"arrivals='recorded': {spec.lengths} has no arrivals; choose others")
    kept = requests.rows(_order(spec, requests, spec.num_requests, cuts))
    factor = spec.time_scale
    if spec.rate is not None:
        span = kept.arrival_ns[-1] - kept.arrival_ns[0] if len(kept) else 0
        if not span:
            raise ValueError(f"rate={spec.rate}: all arrivals of {spec.lengths} are at once; choose other arrivals")
        factor = float(Fraction((len(kept) - 1) * SECOND, span) / Fraction(spec.rate))
    kept = kept.time_scaled(factor)
    if spec.duration_s is None:
        return kept
    stop = Fraction(spec.duration_s) * SECOND
    return kept.first(sum(at < stop for at in kept.arrival_ns))


def _times(spec: WorkloadSpec, count: int | None) -> tuple[int, ...] | None:
    """The arrivals of a spec; None if neither it nor `count` says how many."""
    if count is None and spec.duration_s is None:
        return None
    if spec.arrivals == "all_at_once":
        return (0,) * (count or 0)
    rate = spec.rate
    assert rate is not None
    if spec.duration_s is not None and spec.arrivals == "paper":
        return arrivals.paper_quanta(rate, spec.duration_s, seed=spec.seed)
    count = None if spec.duration_s is not None else count
    if spec.arrivals == "uniform":
        return arrivals.uniform(rate, num_requests=count, duration_s=spec.duration_s)
    if spec.arrivals == "poisson":
        times = arrivals.poisson(rate, seed=spec.seed, num_requests=count, duration_s=spec.duration_s)
    else:
        times = arrivals.gamma(rate, spec.burstiness, seed=spec.seed, num_requests=count, duration_s=spec.duration_s)
    return arrivals.rescaled(times, rate) if spec.rescale_gaps else times


def _arrival_note(spec: WorkloadSpec) -> str:
    said = [f"arrivals {spec.arrivals}"]
    if spec.rate is not None:
        said.append(f"{spec.rate:g} a second")
    if spec.arrivals == "gamma":
        said.append(f"burstiness {spec.burstiness:g}")
    if spec.time_scale != 1.0:
        said.append(f"times {spec.time_scale:g}")
    if spec.rescale_gaps:
        said.append("gaps rescaled so that the last is at number / rate")
    return ", ".join([*said, f"seed {spec.seed}"])
