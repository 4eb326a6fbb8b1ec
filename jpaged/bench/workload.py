"""Requests of a benchmark: how many prompt and output tokens each has, and which ids.

Lives here: BenchRequest, and workloads from a CSV file, of fixed lengths, or shaped like the paper's two data sets.
Promises: the same file and seed give the same ids, drawn in the order of the file.
Must not know: engines.
"""

import csv
import random
import re
import reprlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

COLUMNS = ("prompt_tokens", "output_tokens")
# Ordinary ids: the lowest are often special, the highest may be added ones.
LOW_ID, HIGH_ID = 1000, 45000
# Data sets of the paper whose lengths `shaped` draws; prompt and output have less than 2048 tokens in all.
SHAPES = ("alpaca", "sharegpt")
_INTEGER = re.compile(r"\s*[0-9]{1,12}\s*")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt of random ids and the number of tokens to generate."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int


def read_csv(
    path: Path, vocab_size: int, seed: int, max_model_len: int, num_prompts: int | None = None
) -> list[BenchRequest]:
    """The first `num_prompts` requests (None: all) of a CSV with the columns prompt_tokens and output_tokens.

    Raises ValueError naming the line. Lines after the last one wanted are not looked at.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None or not set(COLUMNS) <= set(reader.fieldnames):
                raise ValueError(f"{path}: needs the columns {' and '.join(COLUMNS)}, has {reader.fieldnames}")
            lengths = [
                _lengths(row, f"{path}, line {reader.line_num}", max_model_len) for row in islice(reader, num_prompts)
            ]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV in UTF-8: {error}") from None
    if not lengths:
        raise ValueError(f"{path}: has no requests; add a line with {' and '.join(COLUMNS)}")
    if num_prompts is not None and len(lengths) < num_prompts:
        raise ValueError(f"num_prompts={num_prompts}: {path} has {len(lengths)} requests; ask for fewer")
    return _draw(lengths, vocab_size, seed)


def fixed(
    num_prompts: int, input_len: int, output_len: int, vocab_size: int, seed: int, max_model_len: int
) -> list[BenchRequest]:
    """`num_prompts` requests of one shape. Raises ValueError."""
    for name, value in (("num_prompts", num_prompts), ("input_len", input_len), ("output_len", output_len)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    check_fits(input_len, output_len, max_model_len, f"input_len={input_len}, output_len={output_len}")
    return _draw([(input_len, output_len)] * num_prompts, vocab_size, seed)


def shaped(shape: str, num_prompts: int, vocab_size: int, seed: int) -> list[BenchRequest]:
    """`num_prompts` requests as long as those of the paper's "sharegpt" or "alpaca", below 2048 tokens in all."""
    # Drawing needs NumPy, which the flags of `jpaged bench` do not.
    from jpaged.workloads.lengths import LENGTHS

    lengths = list(islice(LENGTHS[shape](seed), num_prompts))
    return _draw(lengths, vocab_size, seed)


def check_fits(prompt_tokens: int, output_tokens: int, max_model_len: int, where: str) -> None:
    """Raise ValueError if an engine would end the request early, or refuse it."""
    if prompt_tokens + output_tokens > max_model_len:
        raise ValueError(
            f"{where}: {prompt_tokens} prompt and {output_tokens} output tokens are more than max_model_len="
            f"{max_model_len}; shorten them or raise max_model_len"
        )


def _draw(lengths: list[tuple[int, int]], vocab_size: int, seed: int) -> list[BenchRequest]:
    rng = random.Random(seed)
    low, high = (LOW_ID, HIGH_ID) if vocab_size >= HIGH_ID else (0, vocab_size)
    return [BenchRequest(tuple(rng.randrange(low, high) for _ in range(prompt)), output) for prompt, output in lengths]


def _lengths(row: dict[str, str], where: str, max_model_len: int) -> tuple[int, int]:
    values = []
    for column in COLUMNS:
        text = row.get(column)
        if text is None or not _INTEGER.fullmatch(text) or int(text) < 1:
            raise ValueError(f"{where}: {column}={reprlib.repr(text)} must be an integer of at least 1")
        values.append(int(text))
    check_fits(values[0], values[1], max_model_len, where)
    return values[0], values[1]
