"""Token ids without text: pieces of endless streams, each a function of its name alone.

Equal pieces give equal ids, on every machine; streams differ in their first token.
"""

from collections.abc import Sequence

import numpy as np

from jpaged.config.declaration import require_int

# Ordinary ids: the lowest are often special, the highest may be added ones.
LOW_ID, HIGH_ID = 1000, 45000
KINDS = {"request": 0, "session": 1, "block": 2, "shared": 3, "answer": 4}
Span = tuple[str, int, int, int]


def id_range(vocab_size: int) -> tuple[int, int]:
    """The ids [low, high) that prompts are made of. Raises ValueError."""
    require_int("vocab_size", vocab_size, 2, 1 << 31)
    return (LOW_ID, HIGH_ID) if vocab_size >= HIGH_ID else (0, vocab_size)


def span_ids(spans: Sequence[Span], vocab_size: int) -> tuple[int, ...]:
    """The ids of `spans` (kind, number, start, stop), one after another. Raises ValueError for a bad `vocab_size`."""
    low, high = id_range(vocab_size)
    sizes = [stop - start for _, _, start, stop in spans]
    keys = np.array([number * len(KINDS) + KINDS[kind] for kind, number, _, _ in spans], np.uint64)
    # Position of each token in its stream: a run from 0, moved to where its span starts.
    offsets = np.array([start for _, _, start, _ in spans], np.int64) - np.cumsum([0, *sizes[:-1]])
    positions = (np.arange(sum(sizes)) + np.repeat(offsets, sizes)).astype(np.uint64)
    words = _mix(np.repeat(_mix(keys), sizes) + positions * np.uint64(0x9E3779B97F4A7C15))
    ids = ((words >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)
    firsts = np.array([number % (high - low) for _, number, _, _ in spans], np.uint64)
    ids = np.where(positions == 0, np.repeat(firsts, sizes), ids)
    return tuple((ids + np.uint64(low)).tolist())


def _mix(words: np.ndarray) -> np.ndarray:
    """A permutation of 64-bit words that scatters neighbours (the finaliser of SplitMix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
