"""Lengths sampled from distributions: endless streams of (prompt, output) token counts.

The first n pairs of a seed are the same however many follow.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial

from jpaged.workloads.alpaca_bins import alpaca_fig11
from jpaged.workloads.fits import MAX_TOTAL, alpaca, gamma, lognormal, sharegpt, sharegpt_weibull, weights
from jpaged.workloads.length_table import LengthTable
from jpaged.workloads.streams import below, stream

Pairs = Iterator[tuple[int, int]]
CHUNK = 1024
# Fig. 17's prompts keep the last 1,024 tokens of a conversation; 8 slots of 2,048 stay free.
CHATBOT_PROMPT, CHATBOT_OUTPUT = 1024, 1016
# Of 100,000: how often a turn follows. 5.19 turns a conversation, as in the 577 conversations of a public trace.
CHATBOT_FOLLOWS = 80_747


def independent(tables: Callable[[], tuple[LengthTable, LengthTable]], seed: int) -> Pairs:
    """Prompt and output sampled independently; pairs of 2048 tokens and more in all are sampled again."""
    prompt, output = tables()
    prompt_bits, output_bits = stream(seed, "prompt"), stream(seed, "output")
    while True:
        pairs = zip(prompt.sample(prompt_bits, CHUNK), output.sample(output_bits, CHUNK), strict=True)
        yield from (pair for pair in pairs if sum(pair) < MAX_TOTAL)


def chatbot(seed: int) -> Pairs:
    """Turns of conversations as in Fig. 17: a prompt is history and question, cut to the last 1,024 tokens.

    An approximation, as the paper's 10,000 conversations are not public: questions and answers have ShareGPT's fitted
    lengths, and each turn is followed by another with probability 0.807. Each pair is an independent turn; the history
    cut from the front, turns share no prefix. 60 % of the prompts have 1,024 tokens.
    """
    turns, lengths = stream(seed, "turns"), independent(sharegpt, seed)
    while True:
        history = 0
        while below(turns, 100_000) < CHATBOT_FOLLOWS:
            history += sum(next(lengths))
        question, answer = next(lengths)
        yield min(history + question, CHATBOT_PROMPT), min(answer, CHATBOT_OUTPUT)


@cache
def _wmt16() -> tuple[LengthTable, LengthTable]:
    """English sentence with " =>", and German tokens in thousandths of English ones."""
    return (
        LengthTable.of_weights(4, weights(gamma(3.2, 34 / 3.2), 4, 200)),
        LengthTable.of_weights(600, _ratio_weights()),
    )


def _ratio_weights() -> list[float]:
    cdf = lognormal(0.312, 0.22)
    return [cdf((k + 0.5) / 1000) - cdf((k - 0.5) / 1000) for k in range(600, 3001)]


def wmt16(seed: int) -> Pairs:
    """Sentences of Fig. 16's translations from English to German, without the prefix that all prompts share.

    Rough: the paper gives no lengths. English has about 34 tokens of LLaMA's with the arrow behind it, German 45; the
    spread (a gamma of shape 3.2, and a ratio of 1.4 give or take a fifth) is an assumption. Add the prefix, 80 tokens
    with one example or 341 with five, as `shared_prefix_tokens`.
    """
    english, thousandths = _wmt16()
    prompt_bits, ratio_bits = stream(seed, "prompt"), stream(seed, "pair")
    while True:
        prompts, ratios = english.sample(prompt_bits, CHUNK), thousandths.sample(ratio_bits, CHUNK)
        # The arrow, two tokens, is not translated.
        yield from ((n, max(1, ((n - 2) * ratio + 500) // 1000)) for n, ratio in zip(prompts, ratios, strict=True))


def constant(prompt_tokens: int, output_tokens: int) -> Pairs:
    """Always the same lengths."""
    while True:
        yield prompt_tokens, output_tokens


def uniform(prompt_tokens: tuple[int, int], output_tokens: tuple[int, int], seed: int) -> Pairs:
    """Lengths uniform between (lowest, highest), both included."""
    (prompt_low, prompt_high), (output_low, output_high) = prompt_tokens, output_tokens
    prompt_bits, output_bits = stream(seed, "prompt"), stream(seed, "output")
    while True:
        prompt = prompt_low + below(prompt_bits, prompt_high - prompt_low + 1)
        yield prompt, output_low + below(output_bits, output_high - output_low + 1)


LENGTHS: dict[str, Callable[[int], Pairs]] = {
    "sharegpt": partial(independent, sharegpt),
    "sharegpt_weibull": partial(independent, sharegpt_weibull),
    "alpaca": partial(independent, alpaca),
    "alpaca_fig11": partial(independent, alpaca_fig11),
    "chatbot": chatbot,
    "wmt16": wmt16,
}
