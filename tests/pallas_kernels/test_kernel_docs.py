"""docs/kernels.md says what the code does."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from attention_cases import build_case

from pallas_kernels import paged_attention, ragged_paged_attention
from pallas_kernels.dispatch import IMPLEMENTATIONS
from pallas_kernels.support import support_of
from pallas_kernels.support_table import replaced
from pallas_kernels.tuning import RECORDS as TUNINGS

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_committed_tables_are_the_generated_ones():
    text = DOCS.read_text()
    assert replaced(text) == text, "run: python -m pallas_kernels.support_table docs/kernels.md"


def test_the_example_runs_as_it_stands(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    exec(compile(example, str(DOCS), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip() == "(2, 8, 64)"


OPTIONS = {"window": 3, "soft_cap": 2.0, "alibi_slopes": jnp.ones(2)}
RECORDS = [
    (operation, implementation)
    for operation in ("paged_attention", "ragged_paged_attention")
    for implementation in IMPLEMENTATIONS
    if support_of(operation, implementation)
]


def traced(operation: str, implementation: str, **options) -> None:
    case = build_case([5, 2], page_size=16, num_kv_heads=1, group=2, head_dim=64, num_layers=2, dtype=jnp.bfloat16)
    how = {"implementation": implementation, "interpret": implementation in ("triton", "mosaic_gpu"), **options}
    if operation == "paged_attention":
        jax.eval_shape(lambda *args: paged_attention(*args, **how), *case.decode)
    else:
        jax.eval_shape(lambda *args: ragged_paged_attention(*args, **how), *case.ragged)


@pytest.mark.parametrize(("operation", "implementation"), RECORDS)
def test_options_and_tuning_run_where_the_record_has_them_and_are_refused_elsewhere(operation, implementation):
    record = support_of(operation, implementation)
    assert record is not None
    record_type = TUNINGS[operation]
    sizes = {"block_tokens": 64, "splits": 2, "num_warps": 4, "num_stages": 2, "block_queries": 16}
    tunings = {f.name: {"tuning": record_type(**{f.name: sizes[f.name]})} for f in dataclasses.fields(record_type)}
    calls = {name: {name: value} for name, value in OPTIONS.items()} | tunings
    for name, options in calls.items():
        if name in (*record.score_options, *record.tuning):
            traced(operation, implementation, **options)
        else:
            with pytest.raises(NotImplementedError, match=implementation):
                traced(operation, implementation, **options)
