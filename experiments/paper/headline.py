"""The paper's headline, how many times more requests vLLM serves, under a cost profile that was fitted to none of it.

No constant behind these numbers is from the paper; each ratio has its paper's claim beside it.
"""

from dataclasses import replace

from experiments.paper.knees import Curve, curve
from experiments.paper.panels import panels_of
from experiments.paper.plans import Plan, together
from experiments.paper.published import PublishedPanel, panel
from experiments.paper.rows import Result, Row, order_of
from experiments.paper.systems import FT, MAX, ORACLE, ORCAS, VLLM, Setting, config_for

SEEDS = (0, 1, 2)
FACTORS = {
    f"{part} {factor:+.0%}": {part: 1 + factor} for part in ("bandwidth", "flops", "host") for factor in (-0.15, 0.15)
}
BASE = "seed 0"
# Under `ideal` a step takes less than the paper's did, so the rates of the knees are higher by about this much.
_FASTER = 1.3
_CLAIMS = {ORACLE: "1.7 to 2.7", MAX: "2.7 to 8", FT: "up to 22"}


def headline(full: bool) -> Plan[Result]:
    """The ratios for OPT-13B with all variants, for OPT-66B and OPT-175B with one."""
    cases = _cases(full)
    plans = [
        curve(lambda rate, setting=setting, name=name: config_for(setting, name, rate), [], _FASTER * paper.knee(name))
        for (_, _, name), (setting, paper) in cases.items()
    ]
    curves: dict[tuple[str, str, str], Curve] = dict(zip(cases, (yield from together(plans)), strict=True))
    knees = {case: found.knee for case, found in curves.items()}
    rows: list[Row] = []
    for letter in ("a", "b", "c"):
        rows += _rows(letter, panel("12", letter), knees)
    data = {
        letter: {
            variant: {name: knees[letter, variant, name] for name in (FT, *ORCAS, VLLM)}
            for variant in dict.fromkeys(v for at, v, _ in cases if at == letter)
        }
        for letter in ("a", "b", "c")
    }
    seconds = "the paper's lengths" if full else "600 s (FasterTransformer with OPT-175B 3,600 s)"
    return Result(
        figure="headline",
        title="Headline. Requests that vLLM serves over each rival, under the uncalibrated profile ideal, ShareGPT",
        conditions=(
            f"{seconds}; rates at 0.5 s/token; seeds {SEEDS} of the workload and {', '.join(FACTORS)} for OPT-13B, one "
            "variant for OPT-66B and OPT-175B",
        ),
        rows=tuple(rows),
        data=data,
        digests=tuple(digest for found in curves.values() for digest in found.digests),
    )


def _cases(full: bool) -> dict[tuple[str, str, str], tuple[Setting, PublishedPanel]]:
    """By panel, variant and system: what is run, and where the paper has it."""
    cases: dict[tuple[str, str, str], tuple[Setting, PublishedPanel]] = {}
    for p in (found for letter in ("a", "b", "c") for found in panels_of(f"12{letter}")):
        base = replace(p.setting, profile="ideal", ft_profile="ideal", duration_s=p.full_s if full else 600.0)
        variants = {BASE: base}
        if p.letter == "a":
            variants |= {f"seed {seed}": replace(base, seed=seed) for seed in SEEDS}
            variants |= {name: replace(base, executor=factor) for name, factor in FACTORS.items()}
        for variant, setting in variants.items():
            for name in p.systems:
                cases[p.letter, variant, name] = setting, panel("12", p.letter)
    return cases


def _rows(letter: str, paper: PublishedPanel, knees: dict[tuple[str, str, str], float]) -> list[Row]:
    model = {"a": "opt-13b", "b": "opt-66b", "c": "opt-175b"}[letter]
    variants = dict.fromkeys(variant for at, variant, _ in knees if at == letter)
    rows: list[Row] = []
    for name in (*ORCAS, FT):
        ratios = {variant: knees[letter, variant, VLLM] / knees[letter, variant, name] for variant in variants}
        claim = f"the text claims {_CLAIMS[name]}" if name in _CLAIMS else "no claim in the text"
        band = f"; {min(ratios.values()):.2f} to {max(ratios.values()):.2f} over {len(ratios)} variants"
        rows.append(
            Row(
                figure="Headline",
                quantity=f"rate of vLLM over {name}'s under ideal; {model}, ShareGPT",
                paper=round(paper.knee(VLLM) / paper.knee(name), 4),
                ours=ratios[BASE],
                tolerance=0.15,
                unit="x",
                reason=_reason(name) + claim + (band if len(ratios) > 1 else ""),
            )
        )
    orders = {variant: order_of({name: knees[letter, variant, name] for name in paper.inside}) for variant in variants}
    rows.append(
        Row(
            figure="Headline",
            quantity=f"order of the systems under ideal, in each of {len(variants)} variants; {model}, ShareGPT",
            paper=order_of({name: paper.knee(name) for name in paper.inside}),
            ours=", or ".join(dict.fromkeys(orders.values())),
            kind="order",
        )
    )
    return rows


def _reason(name: str) -> str:
    if name != FT:
        return ""
    return "FasterTransformer runs under ideal as fast a step as vLLM; the paper's was faster than vLLM's; "
