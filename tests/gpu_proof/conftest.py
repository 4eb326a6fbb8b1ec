"""What the GPU proof needs: the CUDA plugin, and a table of what was compiled at the end.

Lives here: the check for the plugin, and the report.
Promises: `make gpu-proof` fails without the plugin; any other run skips what needs it, and says how to get it.
Must not know: kernels, models.
"""

import importlib.util
import os

import pytest

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
REMEDY = "the CUDA plugin of JAX is not installed; run `make gpu-proof`, or install jpaged's extra 'gpu-proof'"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    present = any(importlib.util.find_spec(name) for name in PLUGINS)
    if not present and os.environ.get("JPAGED_GPU_PROOF") == "1":
        raise pytest.UsageError(REMEDY)
    for item in items:
        if not present and item.get_closest_marker("gpu_proof"):
            item.add_marker(pytest.mark.skip(reason=REMEDY))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        dict(report.user_properties)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call" and dict(report.user_properties).get("target")
    ]
    if not rows:
        return
    terminalreporter.section("compiled ahead of time")
    for row in sorted(rows, key=lambda row: (row["case"], row["target"])):
        terminalreporter.write_line(f"{row['target']:8} {row['case']:44} temp {row['temp']:>11,} B  {row['registers']}")
