"""The collectives of a compiled program, read from its HLO.

An asynchronous pair counts once; a combined collective counts once, with the bytes of all its parts.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_INSTRUCTION = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"(pred|[a-z]+\d+\w*)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange: its kind and the shapes of its results on one device, with their bytes together."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    num_bytes: int


def collectives_of(hlo: str) -> list[Collective]:
    """Every collective instruction of an optimised HLO text, in its order. One in a loop's body is there once."""
    return [_collective(*found) for found in _INSTRUCTION.findall(hlo)]


def named(collectives: list[Collective]) -> str:
    """How many there are of each kind, in words."""
    counts = Counter(collective.kind for collective in collectives)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _collective(result: str, kind: str, start: str) -> Collective:
    arrays = _ARRAY.findall(result)
    if start and kind == "all-gather":
        arrays = arrays[len(arrays) // 2 :]  # the result of its start names operands, then results
    shapes = tuple(tuple(int(n) for n in dims.split(",") if n) for _, dims in arrays)
    sizes = [_bits(dtype) * math.prod(shape) // 8 for (dtype, _), shape in zip(arrays, shapes, strict=True)]
    return Collective(kind, shapes, sum(sizes))


def _bits(dtype: str) -> int:
    return 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
