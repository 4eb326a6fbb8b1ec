"""The fleet's tests use the core's rig: engines over the oracle executor, watched at every step."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
