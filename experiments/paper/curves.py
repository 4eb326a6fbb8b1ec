"""Figs. 12, 14, 16 and 17: normalized latency against request rate.

Every curve has the rate at 0.5 s per token, and runs at the paper's own rates to be plotted beside it.
"""

from dataclasses import replace

from experiments.paper.knees import Curve, curve
from experiments.paper.panels import Panel
from experiments.paper.plans import Plan, runs_of, together
from experiments.paper.published import KNEE_S, PublishedPanel, crossing, panel
from experiments.paper.rows import Result, Row, order_of
from experiments.paper.systems import ALPACA, FT, SHAREGPT, VLLM, WMT16, config_for


def curve_figure(figure: str, panels: list[Panel], full: bool) -> Plan[Result]:
    """The plan of a figure, or of some of its panels."""
    curves = iter((yield from together([_curve_plan(p, system, full) for p in panels for system in p.systems])))
    found = {p.letter: {system: next(curves) for system in p.systems} for p in panels}
    titles = {
        "12": "One sequence a request",
        "14": "Parallel sampling and beam search",
        "16": "A prompt prefix that all requests share",
        "17": "A chatbot",
    }
    return Result(
        figure=figure,
        title=f"Fig. {figure}. {titles[figure]}: normalized latency against request rate",
        conditions=tuple(_conditions(p, full) for p in panels),
        rows=tuple(row for p in panels for row in _rows(p, panel(p.figure, p.letter), found[p.letter])),
        data={
            letter: {name: {"points": c.points, "knee": c.knee} for name, c in curves.items()}
            for letter, curves in found.items()
        },
        digests=tuple(digest for curves in found.values() for c in curves.values() for digest in c.digests),
    )


def _curve_plan(p: Panel, system: str, full: bool) -> Plan[Curve]:
    setting = replace(p.setting, duration_s=p.full_s if full else p.quick_s)
    paper = panel(p.figure, p.letter)
    inside = list(dict.fromkeys(rate for rate, _ in paper.inside[system]))
    rates = inside if full or len(inside) <= p.quick_rates else [inside[0], *inside[1 - p.quick_rates :]]
    found = yield from curve(lambda rate: config_for(setting, system, rate), rates, paper.knee(system))
    if system not in dict(p.beyond):
        return found
    # Run last, so that the search does not start from so wide a bracket.
    rate = dict(p.beyond)[system]
    (run,) = (yield from runs_of({rate: config_for(setting, system, rate)})).values()
    points = sorted({*found.points, (rate, run.number("mean_normalized_latency_s"))})
    return found._replace(points=points, digests=(run.digest, *found.digests))


def _rows(p: Panel, paper: PublishedPanel, found: dict[str, Curve]) -> list[Row]:
    knees = {name: c.knee for name, c in found.items()}
    published = {name: paper.knee(name) for name in p.systems}
    figure = f"Fig. {p.figure}{f' ({p.letter})' if p.letter else ''}"
    setting = f"{p.setting.model}, {_workload(p)}"
    rows = [
        Row(
            figure=figure,
            quantity=f"rate at 0.5 s/token, {name}; {setting}",
            paper=round(published[name], 4),
            ours=knees[name],
            tolerance=p.tolerance,
            unit="req/s",
            fitted=p.fitted_to(name),
            reason=p.note,
            digest=found[name].digests[-1],
        )
        for name in p.systems
    ]
    rows += [
        Row(
            figure=figure,
            quantity=f"rate of vLLM over {name}'s; {setting}",
            paper=round(published[VLLM] / published[name], 4),
            ours=knees[VLLM] / knees[name],
            tolerance=0.10 if p.figure == "16" else p.tolerance,
            unit="x",
            fitted=p.fitted_to(name) and f"both sides: {p.fitted_to(name)}",
            reason=p.note,
        )
        for name in p.systems
        if name != VLLM
    ]
    rows += _lines_beyond(p, paper, found, figure, setting)
    order = Row(
        figure=figure,
        quantity=f"order of the systems at 0.5 s/token; {setting}",
        paper=order_of(dict(published)),
        ours=order_of(dict(knees)),
        kind="order",
        reason="a consequence of the memory policies",
    )
    return [*rows, order]


def _lines_beyond(p: Panel, paper: PublishedPanel, found: dict[str, Curve], figure: str, setting: str) -> list[Row]:
    """For curves that leave the frame: ours read as the paper's is, off a straight line over the same gap."""
    rows: list[Row] = []
    for name, rate in p.beyond:
        start, exit_ = paper.inside[name][-1], paper.above[name][0]
        slope = (exit_[1] - start[1]) / (exit_[0] - start[0])
        ours = dict(found[name].points)
        digest = found[name].digests[0]
        facts = {"figure": figure, "tolerance": p.tolerance, "fitted": p.fitted_to(name), "digest": digest}
        rows += [
            Row(
                quantity=f"rate at 0.5 s/token, straight from {start[0]:g} to {rate:g} req/s, {name}; {setting}",
                paper=round(paper.knee(name), 4),
                ours=crossing([(start[0], ours[start[0]]), (rate, ours[rate])], KNEE_S),
                unit="req/s",
                reason="the paper shows no point between, so its line, and not its system, crosses there",
                **facts,
            ),
            Row(
                quantity=f"latency at {rate:g} req/s (the paper's: its line, prolonged), {name}; {setting}",
                paper=round(start[1] + slope * (rate - start[0]), 4),
                ours=ours[rate],
                unit="s/token",
                reason="that the paper's next rate was this one is inferred",
                **facts,
            ),
        ]
    return rows


def _workload(p: Panel) -> str:
    names = {SHAREGPT: "ShareGPT", ALPACA: "Alpaca", WMT16: f"WMT16 with {p.setting.prefix} common tokens"}
    name = names.get(p.setting.lengths, p.setting.lengths)
    if p.setting.n == 1:
        return name
    return f"{name}, {'beam width' if p.setting.method == 'beam' else 'samples'} {p.setting.n}"


def _conditions(p: Panel, full: bool) -> str:
    seconds = p.full_s if full else p.quick_s
    text = f"({p.letter}) {p.setting.model}, {_workload(p)}: {seconds:g} s of arrivals (paper {p.full_s:g} s)"
    if FT in p.systems:
        hour = p.setting.ft_duration_s
        text += f"; FasterTransformer batches of {p.setting.ft_batch}" + (f" over {hour:g} s" if hour else "")
    return f"{text}; profile {p.setting.profile}"
