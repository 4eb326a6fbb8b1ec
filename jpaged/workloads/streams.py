"""Random numbers that stay the same: one stream per purpose, whatever else is taken from others.

PCG64's raw words are the same on every machine and under every NumPy; samples are integer operations on them.
"""

import numpy as np

# The spawn key of each purpose. A number that was given out is never used for another purpose.
PURPOSES = {
    "prompt": 0,
    "output": 1,
    "pair": 2,
    "rows": 3,
    "gaps": 4,
    "turns": 5,
    "order": 6,
}


def stream(seed: int, purpose: str) -> np.random.PCG64:
    """The stream of one purpose of one seed; streams of other purposes do not touch it."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose],)))


def words(bits: np.random.PCG64, count: int) -> np.ndarray:
    """`count` integers uniform in [0, 2^32), as int64."""
    return (np.asarray(bits.random_raw(count), dtype=np.uint64) >> np.uint64(32)).astype(np.int64)


def below(bits: np.random.PCG64, limit: int) -> int:
    """One integer in [0, limit), limit at most 2^31; its bias is below limit / 2^32."""
    return (int(bits.random_raw()) >> 32) * limit >> 32


def fractions(bits: np.random.PCG64, count: int) -> list[float]:
    """`count` floats uniform in (0, 1], multiples of 2^-53."""
    raw = np.asarray(bits.random_raw(count), dtype=np.uint64) >> np.uint64(11)
    return ((raw + np.uint64(1)).astype(np.float64) * 2.0**-53).tolist()
