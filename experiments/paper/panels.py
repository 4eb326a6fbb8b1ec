"""What the panels of Figs. 12, 14, 16 and 17 are of.

How long each is run, and to what its numbers are held, is said here alone.
"""

from dataclasses import dataclass

from experiments.paper.systems import ALPACA, CHATBOT, FT, MAX, ORACLE, ORCAS, POW2, VLLM, WMT16, Setting

FIT_SHAREGPT = "paper-2023 was fitted to this figure's ShareGPT curves (vLLM and Orca)"
FIT_FT = "paper-2023-ft was fitted to FasterTransformer's ShareGPT curves of this figure"
FIT_ALPACA = "paper-2023-alpaca was fitted to OPT-13B's Alpaca knees of this figure (vLLM and Orca)"
SEQUENCE_NOTE = (
    "paper-2023 was fitted to ShareGPT; OPT-13B needed a larger cost a sequence for Alpaca's many short ones (0.34 for "
    "0.22 ms), and no such constant was fitted for this model"
)
_SAMPLES = (
    "paper-2023 was fitted to one sequence a request and charges 0.22 ms for each of n; the paper's sampler was a loop "
    "over requests, so its n may have cost less"
)
_BEAMS = "paper-2023 was fitted to sampling and has no term for what choosing among beams took the paper's host"
ALPACA_NOTE = (
    "the paper's Alpaca requests are not public: lengths are sampled with the shape of its Fig. 11, so the order and "
    "the bursts differ"
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel: what is run, with the durations of a quick and a full report, and what its numbers are held to."""

    figure: str
    letter: str
    setting: Setting
    full_s: float
    quick_s: float
    systems: tuple[str, ...] = (FT, *ORCAS, VLLM)
    tolerance: float = 0.15
    fitted: str = ""
    fitted_ft: str = ""
    note: str = ""
    # So many of the paper's rates are run in a quick report: the lowest, and the last ones.
    quick_rates: int = 3
    # Where the paper's line leaves the frame towards a point that it does not show: the rate of that point, as far as
    # the line's slope tells. A straight line over so wide a gap crosses 0.5 s/token far below where the system does.
    beyond: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.figure}{self.letter}"

    def fitted_to(self, system: str) -> str:
        """Which constants were fitted to the curve of a system; empty for a prediction."""
        return self.fitted_ft if system == FT else self.fitted


def _basic(letter: str, setting: Setting, full_s: float, quick_s: float, **rest: object) -> Panel:
    return Panel(figure="12", letter=letter, setting=setting, full_s=full_s, quick_s=quick_s, **rest)  # pyright: ignore[reportArgumentType]


def _sharing(letter: str, method: str, n: int, quick_s: float) -> Panel:
    return Panel(
        figure="14",
        letter=letter,
        setting=Setting(lengths=ALPACA, method=method, n=n),
        full_s=3600,
        quick_s=quick_s,
        systems=(*ORCAS, VLLM),
        quick_rates=2,
        note=f"{_BEAMS if method == 'beam' else _SAMPLES}; {ALPACA_NOTE}",
    )


def _prefix(letter: str, tokens: int) -> Panel:
    return Panel(
        figure="16",
        letter=letter,
        setting=Setting(model="llama-13b", lengths=WMT16, method="greedy", prefix=tokens),
        full_s=1200,
        quick_s=300,
        systems=(ORACLE, VLLM),
        note="sentence lengths are an assumption (34 English, 45 German tokens): the paper gives none, and the rate "
        "follows them more than the ratio does; every sequence is charged for reading the common pages, which a GPU "
        "finds in its L2 cache, so vLLM comes out slower the longer the prefix",
    )


# FasterTransformer's batches of 24 and 80 never fill within 15 minutes at its rates, so its trace is an hour.
PANELS = (
    _basic(
        "a",
        Setting(ft_batch=5),
        3600,
        3600,
        tolerance=0.10,
        fitted=FIT_SHAREGPT,
        fitted_ft=FIT_FT,
        quick_rates=4,
        beyond=((MAX, 0.75), (POW2, 1.0)),
    ),
    _basic("b", Setting(model="opt-66b", ft_batch=2), 3600, 3600, fitted=FIT_SHAREGPT, fitted_ft=FIT_FT, quick_rates=4),
    _basic(
        "c",
        Setting(model="opt-175b", ft_batch=24, ft_duration_s=3600),
        900,
        900,
        fitted=FIT_SHAREGPT,
        fitted_ft=FIT_FT,
        quick_rates=4,
    ),
    _basic(
        "d",
        Setting(lengths=ALPACA, ft_batch=14, profile="paper-2023-alpaca"),
        3600,
        300,
        fitted=FIT_ALPACA,
        note=ALPACA_NOTE,
    ),
    _basic(
        "e", Setting(model="opt-66b", lengths=ALPACA, ft_batch=8), 3600, 300, note=f"{SEQUENCE_NOTE}; {ALPACA_NOTE}"
    ),
    _basic(
        "f",
        Setting(model="opt-175b", lengths=ALPACA, ft_batch=80, ft_duration_s=3600),
        900,
        300,
        note=f"{SEQUENCE_NOTE}; {ALPACA_NOTE}",
    ),
    *(_sharing(letter, "sample", n, 300) for letter, n in (("a", 2), ("b", 4), ("c", 6))),
    *(_sharing(letter, "beam", n, 200) for letter, n in (("d", 2), ("e", 4), ("f", 6))),
    _prefix("a", 80),
    _prefix("b", 341),
    Panel(
        figure="17",
        letter="",
        setting=Setting(lengths=CHATBOT),
        full_s=3600,
        quick_s=3600,
        systems=(*ORCAS, VLLM),
        quick_rates=5,
        note="the paper's 10,000 conversations are not public: lengths are approximated (see jpaged/workloads)",
    ),
)


def panels_of(figure: str) -> list[Panel]:
    """The panels that a name such as "12", "12a" or "17" stands for."""
    return [p for p in PANELS if figure in (p.figure, p.name)]
