"""The table at the end of a run: what was not measured is said to be missing."""

from collections.abc import Iterable
from typing import Any


def fastest(trials: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The trial that took the least time; None if none ran."""
    return min((trial for trial in trials if "seconds" in trial), key=lambda trial: trial["seconds"], default=None)


def num_wrong(document: dict[str, Any]) -> int:
    """Checks that failed, in all sections; a section of checks that did not come to its end counts as one."""
    found = 0
    for name in ("correctness", "correctness_mosaic", "swap"):
        entry = document["sections"].get(name)
        if entry is not None:
            found += entry["result"].get("num_wrong", 0) + (entry["status"] != "done")
    return found


def summary(document: dict[str, Any]) -> str:
    """A few lines per section."""
    lines = [f"jpaged GPU check, {document['device']}, JAX {document['jax']}, {document['time']}"
             + (" (a rehearsal: its times mean nothing)" if document["tiny"] else "")]  # fmt: skip
    for name, entry in document["sections"].items():
        lines.append(f"\n{name}: {entry['status']} in {entry['seconds']:.0f} s")
        show = _SHOWN.get(name)
        if show is not None and entry["result"]:
            lines += [f"  {line}" for line in show(entry["result"])]
        left_out = entry["result"].get("left_out", [])
        if left_out:
            lines.append(f"  left out for lack of time: {len(left_out)}, the first: {left_out[0]}")
        if entry["status"] != "done":
            lines += [f"  {line}" for line in entry.get("output", "").strip().splitlines()[-3:]]
    wrong = num_wrong(document)
    return "\n".join([*lines, "", "All checks right." if not wrong else f"{wrong} CHECKS FAILED."])


def _device(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['device_kind']}, compute capability {result['compute_capability']}"]
    if "copy_gb_per_second" in result:
        lines.append(f"a copy moves {result['copy_gb_per_second']:.1f} GB/s (read and written)")
    if "matmul_tflops" in result:
        lines.append(f"bfloat16 products of {result['matmul_width']}: {result['matmul_tflops']:.2f} Tflop/s")
    return lines


def _checks(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['num_right']} right, {result['num_wrong']} wrong, {result['num_absent']} not supported"]
    wrong = [check for check in result["checks"] if check["outcome"] == "wrong"]
    return lines + [f"WRONG {check['name']}: {check.get('error') or check.get('difference')}" for check in wrong]


def _autotune(result: dict[str, Any]) -> list[str]:
    lines = []
    for trial in result["trials"]:
        best = fastest(trial["candidates"])
        if best is None:
            lines.append(f"{trial['shape']}: none of {len(trial['candidates'])} candidates ran")
            continue
        default = fastest(candidate for candidate in trial["candidates"] if not candidate["tuning"])
        gain = "" if default is None else f", {default['seconds'] / best['seconds']:.2f} times as fast as the default"
        lines.append(f"{trial['shape']}: {best['tuning'] or 'the default'} {1e6 * best['seconds']:.1f} us{gain}")
    return lines


def _kernels(result: dict[str, Any]) -> list[str]:
    from jpaged.bench.kernels_report import paper_table, table_text

    text = table_text(result["rows"])
    paper = paper_table(result["rows"])
    return [*text.splitlines(), *(["", *paper.splitlines()] if paper else [])]


def _engine(result: dict[str, Any]) -> list[str]:
    return [f"{result['model']}, {result['attention_implementation']}:"] + [_step(row) for row in result["batches"]]


def _page_sizes(result: dict[str, Any]) -> list[str]:
    return [f"pages of {row['page_size']}: {_step(row)}" for row in result["page_sizes"]]


def _step(row: dict[str, Any]) -> str:
    share = row.get("share_of_bandwidth")
    bound = f", {share:.0%} of the measured bandwidth (bound {row['bound_ms']:.2f} ms)" if share else ""
    return f"batch {row['batch']}, context {row['context']}: {row['step_ms']:.2f} ms per step{bound}"


def _swap(result: dict[str, Any]) -> list[str]:
    names = ("same_bytes", "swapped", "all_finished", "same_tokens")
    return [", ".join(f"{name.replace('_', ' ')}: {result.get(name, 'not known')}" for name in names)]


def _devices(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['num_devices']} device(s)" + (": nothing to split" if result["num_devices"] == 1 else "")]
    for row in result["sizes"]:
        step = f", {row['step_ms']:.2f} ms per decode step" if "step_ms" in row else ""
        lines.append(f"over {row['tensor_parallel_size']}: {row['same_tokens']:.1%} of the tokens of one{step}")
    return lines


_SHOWN = {
    "device": _device, "correctness": _checks, "correctness_mosaic": _checks, "autotune": _autotune,
    "kernels": _kernels, "engine": _engine, "page_sizes": _page_sizes, "swap": _swap,
    "devices": _devices,
}  # fmt: skip
