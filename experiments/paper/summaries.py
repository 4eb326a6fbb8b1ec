"""What figures read out of summaries.

A number, or an error that names what is missing.
"""

from experiments.kinds import Summary


def number(summary: Summary, key: str) -> float:
    """A number of a summary. Raises ValueError if the run has none."""
    value = summary[key]
    if not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r}: the run has no such number; lengthen duration_s")
    return float(value)
