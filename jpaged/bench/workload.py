"""Requests of a benchmark: how many prompt and output tokens each has, and which ids.

Lives here: BenchRequest, and workloads from a CSV file or of fixed lengths.
Promises: the same file and seed give the same ids, drawn in the order of the file.
Must not know: engines.
"""

import csv
import random
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("prompt_tokens", "output_tokens")
# Ordinary ids: the lowest are often special, the highest may be added ones.
LOW_ID, HIGH_ID = 1000, 45000


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt of random ids and the number of tokens to generate."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int


def read_csv(path: Path, vocab_size: int, seed: int) -> list[BenchRequest]:
    """The requests of a CSV with the columns prompt_tokens and output_tokens. Raises ValueError naming the line."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None or not set(COLUMNS) <= set(reader.fieldnames):
                raise ValueError(f"{path}: needs the columns {' and '.join(COLUMNS)}, has {reader.fieldnames}")
            lengths = [_lengths(row, f"{path}, line {i}") for i, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None
    if not lengths:
        raise ValueError(f"{path}: has no requests; add a line with {' and '.join(COLUMNS)}")
    return _draw(lengths, vocab_size, seed)


def fixed(num_prompts: int, input_len: int, output_len: int, vocab_size: int, seed: int) -> list[BenchRequest]:
    """`num_prompts` requests of one shape. Raises ValueError."""
    for name, value in (("num_prompts", num_prompts), ("input_len", input_len), ("output_len", output_len)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    return _draw([(input_len, output_len)] * num_prompts, vocab_size, seed)


def _draw(lengths: list[tuple[int, int]], vocab_size: int, seed: int) -> list[BenchRequest]:
    rng = random.Random(seed)
    low, high = (LOW_ID, HIGH_ID) if vocab_size >= HIGH_ID else (0, vocab_size)
    return [BenchRequest(tuple(rng.randrange(low, high) for _ in range(prompt)), output) for prompt, output in lengths]


def _lengths(row: dict[str, str], where: str) -> tuple[int, int]:
    values = []
    for column in COLUMNS:
        text = row.get(column)
        if text is None or not text.strip().isdecimal() or int(text) < 1:
            raise ValueError(f"{where}: {column}={text!r} must be an integer of at least 1")
        values.append(int(text))
    return values[0], values[1]
