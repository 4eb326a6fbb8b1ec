"""What the fixed runs came to when they were recorded: tests/golden/plan_digests.json."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "golden" / "plan_digests.json"
# Of the bytes that a digest is made from (jpaged.core.observe.plan_digest.ENCODING_VERSION).
ENCODING_VERSION = 1


def machine() -> str:
    """Whose float bits this machine has: a draw between two close tokens may turn with them. "" where nobody knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    vendor = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("vendor_id")), "")
    return f"{vendor} {'AVX-512' if ' avx512f' in text else 'AVX2'}" if " avx2" in text else ""


def read() -> dict[str, Any]:
    """{"encoding_version", "runs": name -> [plans, tokens], "readme": name -> ids of each sequence}.

    Of a seeded answer "readme" has, under "NAME on MACHINE", the ids on a machine where they are others.
    """
    if not FILE.exists():
        return {"encoding_version": ENCODING_VERSION, "runs": {}, "readme": {}}
    return json.loads(FILE.read_text())


def write(recorded: dict[str, Any]) -> None:
    """Record them, a run in a line."""
    parts = [f' "encoding_version": {ENCODING_VERSION}']
    for part in ("runs", "readme"):
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in recorded[part].items()]
        parts.append(f' "{part}": {{\n' + ",\n".join(lines) + "\n }")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
