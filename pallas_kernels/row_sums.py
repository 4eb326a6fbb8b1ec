"""From how many numbers on XLA's CPU backend sums rows in one order.

Lives here: LEAST_SUMMED, and how many rows that takes.
Promises: sums over the last axis of at least so many rows have, row by row, the same bits whatever the number of rows.
Must not know: what is summed.

Fewer numbers are summed in a loop of XLA's own, more by a library that adds them in another order: a row among few
would differ in its last bits from the same row among many. Found for JAX 0.12 by summing 1 to 129 rows of 64 to 2,048.
"""

LEAST_SUMMED = 4096


def least_rows(row_size: int) -> int:
    """How many rows of `row_size` numbers are to be summed at once, padding included."""
    return -(-LEAST_SUMMED // row_size)
