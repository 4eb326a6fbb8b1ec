"""What the fixed runs came to when they were recorded: tests/golden/plan_digests.json."""

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "golden" / "plan_digests.json"
# Of the bytes that a digest is made from (jpaged.core.observe.plan_digest.ENCODING_VERSION).
ENCODING_VERSION = 1


def machine() -> str:
    """Whose float bits this machine has, of which a draw between two close tokens depends; "" where nobody knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    vendor = re.search(r"vendor_id\s*: (\w+)", text)
    return f"{vendor[1]} {'AVX-512' if ' avx512f' in text else 'AVX2'}" if vendor and " avx2" in text else ""


def read() -> dict[str, Any]:
    """What is recorded, by name: [plans, tokens] of "runs", the ids of each sequence of "readme".

    "sampled" has the answers of the README that are drawn, by machine and name.
    """
    if not FILE.exists():
        return {"encoding_version": ENCODING_VERSION, "runs": {}, "readme": {}, "sampled": {}}
    return json.loads(FILE.read_text())


def write(recorded: dict[str, Any]) -> None:
    """Record them, a run in a line."""
    parts = [f' "encoding_version": {ENCODING_VERSION}']
    for part in ("runs", "readme", "sampled"):
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in recorded[part].items()]
        parts.append(f' "{part}": {{\n' + ",\n".join(lines) + "\n }")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
