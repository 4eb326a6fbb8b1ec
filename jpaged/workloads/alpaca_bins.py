"""Alpaca's lengths as the paper's Fig. 11 shows them: 128 bins, with a shape inside each.

Each bin has the figure's share of the 52,002 rows; the mean of 1 / output is the data's, 0.0685.

Inside a bin lengths are spread as the fit spreads them. The first bin of the outputs holds 1 to 12 tokens and 22 % of
the rows, and a latency per token weighs it most; so it has the shares measured on 20,000 answers of the data set.
"""

from collections.abc import Sequence
from functools import cache

from jpaged.workloads.fits import alpaca_output_weights, alpaca_prompt_weights
from jpaged.workloads.length_table import LengthTable

NUM_BINS = 128
# Of Fig. 11(b), from the first bin on; the bins after the last one listed are empty but for the largest length, 1 row.
PROMPT_COUNTS = (
    2883, 14295, 13722, 7974, 4754, 2703, 1641, 1057, 667, 479, 337, 271, 130, 176, 149, 125, 90, 72, 68, 65, 44, 41,
    36, 35, 29, 12, 21, 20, 11, 16, 8, 10, 7, 7, 9, 5, 1, 1, 2, 3, 2, 1, 2, 0, 2, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1,
    0, 4, 2, 0, 2, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1,
)  # fmt: skip
OUTPUT_COUNTS = (
    11390, 8196, 4453, 3100, 3441, 3351, 3696, 3005, 2795, 1972, 1679, 1074, 823, 537, 478, 287, 255, 190, 209, 156,
    150, 109, 102, 87, 60, 61, 37, 56, 26, 25, 17, 23, 21, 20, 14, 11, 10, 13, 6, 4, 2, 5, 3, 6, 6, 4, 2, 6, 4, 5, 1, 2,
    3, 0, 2, 1, 1, 3, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1,
)  # fmt: skip
PROMPT_RANGE, OUTPUT_RANGE = (6, 508), (1, 1470)
# Of outputs of 1 to 12 tokens, in ten-thousandths.
SHORT_OUTPUTS = (558, 742, 724, 639, 807, 876, 952, 1100, 946, 975, 836, 845)


@cache
def alpaca_fig11() -> tuple[LengthTable, LengthTable]:
    """(prompt, output) of Alpaca as binned by Fig. 11."""
    outputs = alpaca_output_weights()
    return (
        _table(PROMPT_COUNTS, PROMPT_RANGE, alpaca_prompt_weights()),
        _table(OUTPUT_COUNTS, OUTPUT_RANGE, (*SHORT_OUTPUTS, *outputs[len(SHORT_OUTPUTS) :])),
    )


def _table(counts: tuple[int, ...], limits: tuple[int, int], shape: Sequence[float]) -> LengthTable:
    low, high = limits
    full = (*counts, *(0,) * (NUM_BINS - 1 - len(counts)), 1)
    weights = list[float]()
    for i, count in enumerate(full):
        # Bin i covers [low + i w, low + (i + 1) w) with w = (high - low) / 128, the last one its upper edge too.
        first, last = (-(-j * (high - low) // NUM_BINS) for j in (i, i + 1))
        inside = shape[first : last + (i == NUM_BINS - 1)]
        weights += [count * weight / sum(inside) for weight in inside]
    return LengthTable.of_weights(low, weights)
