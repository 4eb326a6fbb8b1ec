"""A distribution of token counts as a table of integers.

A sample is a search in a table of 32-bit integers, so the same seed gives the same lengths on every machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jpaged.workloads.streams import words

RESOLUTION = 1 << 32


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Lengths `low`, `low` + 1, ...: `cumulative[i]` / 2^32 is the probability of at most `low` + i tokens.

    What is less likely than about 2^-33 at a length may be left out there. The last entry is 2^32.
    """

    low: int
    cumulative: tuple[int, ...]

    @classmethod
    def of_weights(cls, low: int, weights: Sequence[float]) -> "LengthTable":
        """The table of lengths whose probabilities are proportional to `weights`.

        Rounding to 32 bits swallows the last bits of the weights, in which mathematical libraries differ.
        """
        total = sum(weights)
        running, cumulative = 0.0, list[int]()
        for weight in weights:
            running += weight
            cumulative.append(round(running / total * RESOLUTION))
        assert cumulative[-1] == RESOLUTION and cumulative == sorted(cumulative), "weights are positive"
        return cls(low, tuple(cumulative))

    @property
    def high(self) -> int:
        """The largest length of the table."""
        return self.low + len(self.cumulative) - 1

    def probabilities(self) -> np.ndarray:
        """The probability of each length from `low` to `high`, float64."""
        return np.diff(np.asarray(self.cumulative, np.int64), prepend=0) / RESOLUTION

    def mean(self) -> float:
        """The expected length."""
        return float(self.probabilities() @ np.arange(self.low, self.high + 1))

    def mean_inverse(self) -> float:
        """The expected 1 / length: what a mean of latencies per token weighs short outputs by."""
        return float(self.probabilities() @ (1.0 / np.arange(self.low, self.high + 1)))

    def sample(self, bits: np.random.PCG64, count: int) -> list[int]:
        """`count` lengths: one word of the stream each."""
        at = np.searchsorted(np.asarray(self.cumulative, np.int64), words(bits, count), side="right")
        return (at + self.low).tolist()


def mixed(parts: Iterable[tuple[float, Sequence[float]]]) -> list[float]:
    """The weights of a mixture of (share, weights), all over the same lengths, each made to sum to its share."""
    scaled = [[share * weight / total for weight in weights] for share, weights in parts if (total := sum(weights))]
    return [sum(column) for column in zip(*scaled, strict=True)]
