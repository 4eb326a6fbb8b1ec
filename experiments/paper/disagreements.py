"""Where the paper's text and its own figures say different things.

Nothing simulated; the figures' numbers are those of published.json.
"""

from experiments.paper.published import panel
from experiments.paper.systems import FT, MAX, ORACLE, VLLM


def disagreements() -> list[tuple[str, str]]:
    """What the text claims, and what the figures show."""
    ratios = {name: [_ratio(letter, name) for letter in "abc"] for name in (ORACLE, MAX, FT)}
    chatbot = panel("17", "")
    return [
        ("ShareGPT: 1.7 to 2.7 times the rate of Orca (Oracle)", f"{_words(ratios[ORACLE])} at 0.5 s/token"),
        ("ShareGPT: 2.7 to 8 times the rate of Orca (Max)", _words(ratios[MAX])),
        ("up to 22 times the rate of FasterTransformer", f"{_words(ratios[FT])}; {_ratio('f', FT):.1f} on Alpaca (f)"),
        (
            "the chatbot: 2 times the rate of all three variants of Orca",
            ", ".join(f"{chatbot.knee(VLLM) / chatbot.knee(name):.2f}" for name in chatbot.inside if name != VLLM),
        ),
        ("the attention kernel is 20 to 26 % slower", "19 to 26 % at batch 32, 25 to 44 % at batch 8"),
        (
            "recomputing never takes more than 20 % of the time of swapping",
            "at most 17 % more than swapping in and out",
        ),
        ("larger models gain more", "the largest gain over Orca (Oracle) is OPT-66B's"),
        ("Table 1: 21 GB hold 9.7K slots of OPT-66B", "9.56K; 9.66K, 604 pages, are 21.2 GiB"),
        ("Table 1: OPT-175B has 346 GB of parameters", "175 x 10^9 parameters of 2 bytes are 350 GB"),
    ]


def _ratio(letter: str, name: str) -> float:
    found = panel("12", letter)
    return found.knee(VLLM) / found.knee(name)


def _words(ratios: list[float]) -> str:
    return f"{ratios[0]:.2f} (13B), {ratios[1]:.2f} (66B), {ratios[2]:.2f} (175B)"
