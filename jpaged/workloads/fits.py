"""Fitted lengths of the paper's two data sets, free of the licence of any data.

Means of 161.31 / 337.99 (ShareGPT) and 19.31 / 58.45 (Alpaca) tokens of OPT's tokenizer, as in Fig. 11.

Made by maximum likelihood with the means held. A length k has the probability F(k + 1/2) - F(k - 1/2), normalised over
the table; prompt and output are independent (the data's rank correlation is 0.2), and pairs of 2048 tokens and more are
sampled again. Single gamma or Weibull outputs meet the means too but not the mean of 1 / length, by which the paper's
metric weighs requests: a gamma Alpaca gives 0.080 where the data has 0.0685 and the mixture below 0.0673.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from jpaged.workloads.length_table import LengthTable, mixed

Cdf = Callable[[float], float]
MAX_TOTAL = 2048


def lognormal(mu: float, sigma: float) -> Cdf:
    """The distribution function of exp(N(mu, sigma))."""
    return lambda x: 0.0 if x <= 0 else 0.5 * math.erfc((mu - math.log(x)) / (sigma * math.sqrt(2)))


def log_logistic(shape: float, scale: float, loc: float = 0.0) -> Cdf:
    """The distribution function of a log-logistic variable moved by `loc`."""
    return lambda x: 0.0 if x <= loc else 1.0 / (1.0 + ((x - loc) / scale) ** -shape)


def weibull(shape: float, scale: float) -> Cdf:
    """The distribution function of a Weibull variable."""
    return lambda x: 0.0 if x <= 0 else -math.expm1(-((x / scale) ** shape))


def gamma(shape: float, scale: float) -> Cdf:
    """The distribution function of a gamma variable."""
    from scipy.special import gammainc

    return lambda x: 0.0 if x <= 0 else float(gammainc(shape, x / scale))


def weights(cdf: Cdf, low: int, high: int) -> list[float]:
    """What `cdf` puts on each integer of [low, high], with half a token on either side."""
    edges = [cdf(k - 0.5) for k in range(low, high + 2)]
    return [right - left for left, right in pairwise(edges)]


def _table(low: int, high: int, *parts: tuple[float, Cdf]) -> LengthTable:
    return LengthTable.of_weights(low, mixed((share, weights(cdf, low, high)) for share, cdf in parts))


@cache
def sharegpt() -> tuple[LengthTable, LengthTable]:
    """(prompt, output) of ShareGPT's first turns."""
    return (
        _table(
            1,
            2046,
            (0.4477835061, lognormal(2.94369894, 0.6996666875)),
            (0.5522164939, lognormal(5.047258034, 1.915165337)),
        ),
        _table(
            1, 2046, (0.6728554511, gamma(0.9453851481, 350.9631195)), (0.3271445489, gamma(3.168325675, 118.4677513))
        ),
    )


@cache
def sharegpt_weibull() -> tuple[LengthTable, LengthTable]:
    """(prompt, output) of ShareGPT, the outputs as one Weibull part: simpler, with a worse mean of 1 / length."""
    return (
        _table(
            1,
            2046,
            (0.4488587802, lognormal(2.94442569, 0.700631022)),
            (0.5511412198, lognormal(5.05127753, 1.916958384)),
        ),
        _table(1, 2046, (1.0, weibull(1.155412208, 361.5252304))),
    )


@cache
def alpaca() -> tuple[LengthTable, LengthTable]:
    """(prompt, output) of Alpaca."""
    return (
        LengthTable.of_weights(6, alpaca_prompt_weights()),
        LengthTable.of_weights(1, alpaca_output_weights()),
    )


def alpaca_prompt_weights() -> Sequence[float]:
    """The fit's weights of prompts of 6 to 508 tokens."""
    return weights(log_logistic(2.66197945, 10.84296318, loc=5.5), 6, 508)


def alpaca_output_weights() -> Sequence[float]:
    """The fit's weights of outputs of 1 to 1470 tokens."""
    parts = (0.3251685948, gamma(1.824203791, 6.792377)), (0.6748314052, gamma(2.026268433, 39.78231491))
    return mixed((share, weights(cdf, 1, 1470)) for share, cdf in parts)
