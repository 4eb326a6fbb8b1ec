"""The paper's headline, how many times more requests vLLM serves, under a cost profile that was fitted to none of it.

No constant behind these numbers is from the paper; each ratio has its paper's claim beside it.
"""

from dataclasses import replace

from experiments.paper.knees import Curve, curve
from experiments.paper.panels import Panel, panels_of
from experiments.paper.plans import Plan, together
from experiments.paper.published import PublishedPanel, panel
from experiments.paper.rows import Result, Row, order_of
from experiments.paper.systems import FT, MAX, ORACLE, POW2, VLLM, config_for

SEEDS = (0, 1, 2)
FACTORS = {
    f"{part} {factor:+.0%}": {part: 1 + factor} for part in ("bandwidth", "flops", "host") for factor in (-0.15, 0.15)
}
BASE = "seed 0"
# Under `ideal` a step takes less than the paper's did, so the rates of the knees are higher by about this much.
_FASTER = 1.3
# Of the panels of Fig. 12 with ShareGPT's lengths.
MODELS_OF = {"a": "opt-13b", "b": "opt-66b", "c": "opt-175b"}
_CLAIMS = {
    MAX: "the text claims 2.7 to 8",
    POW2: "no claim in the text",
    ORACLE: "the text claims 1.7 to 2.7",
    FT: "FasterTransformer runs under ideal as fast a step as vLLM; the paper's was faster than vLLM's; the text "
    "claims up to 22",
}


def ratio_of(letter: str, name: str) -> str:
    """The quantity of a row: how many times a rival's rate vLLM serves."""
    return f"rate of vLLM over {name}'s under ideal; {MODELS_OF[letter]}, ShareGPT"


def headline(full: bool) -> Plan[Result]:
    """The ratios for OPT-13B with all variants, for OPT-66B and OPT-175B with one."""
    panels = [p for letter in MODELS_OF for p in panels_of(f"12{letter}")]
    found = yield from together([_curves(p, full) for p in panels])
    curves = {p.letter: of_panel for p, of_panel in zip(panels, found, strict=True)}
    data = {
        letter: {variant: {name: c.knee for name, c in systems.items()} for variant, systems in variants.items()}
        for letter, variants in curves.items()
    }
    every = [c for variants in found for systems in variants.values() for c in systems.values()]
    seconds = "the paper's lengths" if full else "600 s (FasterTransformer with OPT-175B 3,600 s)"
    return Result(
        figure="headline",
        title="Headline. Requests that vLLM serves over each rival, under the uncalibrated profile ideal, ShareGPT",
        conditions=(
            f"{seconds}; rates at 0.5 s/token; seeds {SEEDS} of the workload and {', '.join(FACTORS)} for OPT-13B, one "
            "variant for OPT-66B and OPT-175B",
        ),
        rows=tuple(row for letter, knees in data.items() for row in _rows(letter, panel("12", letter), knees)),
        data=data,
        digests=tuple(digest for c in every for digest in c.digests),
    )


def _curves(p: Panel, full: bool) -> Plan[dict[str, dict[str, Curve]]]:
    """The curves of a panel's systems in each of its variants."""
    base = replace(p.setting, profile="ideal", ft_profile="ideal", duration_s=p.full_s if full else 600.0)
    variants = {BASE: base}
    if p.letter == "a":
        variants |= {f"seed {seed}": replace(base, seed=seed) for seed in SEEDS}
        variants |= {name: replace(base, executor=factor) for name, factor in FACTORS.items()}
    paper = panel(p.figure, p.letter)
    plans = [
        curve(lambda rate, setting=setting, name=name: config_for(setting, name, rate), [], _FASTER * paper.knee(name))
        for setting in variants.values()
        for name in p.systems
    ]
    curves = iter((yield from together(plans)))
    return {variant: {name: next(curves) for name in p.systems} for variant in variants}


def _rows(letter: str, paper: PublishedPanel, knees: dict[str, dict[str, float]]) -> list[Row]:
    """The rows of a panel, whose `knees` are by variant and system."""
    rows: list[Row] = []
    for name, claim in _CLAIMS.items():
        ratios = [of[VLLM] / of[name] for of in knees.values()]
        band = f"; {min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} variants" if len(ratios) > 1 else ""
        rows.append(
            Row(
                figure="Headline",
                quantity=ratio_of(letter, name),
                paper=round(paper.knee(VLLM) / paper.knee(name), 4),
                ours=ratios[0],
                tolerance=0.15,
                unit="x",
                reason=claim + band,
            )
        )
    orders = [order_of({name: of[name] for name in paper.inside}) for of in knees.values()]
    model = MODELS_OF[letter]
    order = Row(
        figure="Headline",
        quantity=f"order of the systems under ideal, in each of {len(knees)} variants; {model}, ShareGPT",
        paper=order_of({name: paper.knee(name) for name in paper.inside}),
        ours=", or ".join(dict.fromkeys(orders)),
        kind="order",
    )
    return [*rows, order]
