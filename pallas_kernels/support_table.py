"""The table of docs/kernels.md, out of the records that the kernels check.

`python -m pallas_kernels.support_table FILE` writes it into a file, between its markers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from pallas_kernels.dispatch import IMPLEMENTATIONS, OPERATIONS, resolve
from pallas_kernels.support import POOL_DTYPES, Support, support_of

BEGIN, END = "<!-- support table: begin -->", "<!-- support table: end -->"
_COLUMNS = ("implementation", "runs on", "how it is checked", "pool dtypes", "page size", "head_dim",
            "heads per kv head", "options", "tuning", "limits")  # fmt: skip
_ATTENTION = ("paged_attention", "ragged_paged_attention")


def support_table() -> str:
    """A Markdown table for each operation, with a row for each implementation."""
    parts = []
    for operation in OPERATIONS:
        columns = _COLUMNS if operation in _ATTENTION else (*_COLUMNS[:6], _COLUMNS[-1])
        rows = [columns, ("---",) * len(columns), *_rows(operation, columns)]
        parts.append(f"### {operation}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts)


def replaced(text: str) -> str:
    """`text` with the present table between its markers."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{support_table()}\n\n{END}{rest.split(END)[1]}"


def _rows(operation: str, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for implementation in IMPLEMENTATIONS:
        support = support_of(operation, implementation)
        if support is None:
            yield f"`{implementation}`", _why_absent(operation, implementation), *("",) * (len(columns) - 2)
        else:
            yield f"`{implementation}`", *(_cells(support)[column] for column in columns[1:])


def _cells(support: Support) -> dict[str, str]:
    every = support.pool_dtypes == POOL_DTYPES
    dtypes = "all" if every else ", ".join(support.pool_dtypes)
    step = support.page_size_multiple
    return {
        "runs on": support.hardware,
        "how it is checked": support.proof,
        "pool dtypes": dtypes + (", queries the same" if support.query_dtype_is_pool_dtype else ""),
        "page size": "any" if step == 1 else f"multiples of {step}",
        "head_dim": "any" if support.head_dims is None else ", ".join(map(str, support.head_dims)),
        "heads per kv head": "any" if support.max_group is None else f"up to {support.max_group}",
        "options": ", ".join(support.score_options),
        "tuning": ", ".join(support.tuning) or "none",
        "limits": "; ".join(support.notes) or "none",
    }


def _why_absent(operation: str, implementation: str) -> str:
    try:
        resolve(operation, implementation)
    except NotImplementedError as error:
        return f"absent: {str(error).split(': ', 1)[1]}"
    raise AssertionError(f"{operation} resolves {implementation!r} and has no record for it")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(replaced(path.read_text()))
