"""Workloads: what is asked, how long it is, and when.

Integers, the same for the same spec on every machine, with a digest that names them.
"""

from jpaged.workloads.build import build_workload
from jpaged.workloads.files import load_workload, save_csv
from jpaged.workloads.lengths import LENGTHS
from jpaged.workloads.spec import TraceFile, WorkloadSpec
from jpaged.workloads.statistics import PrefixReuse, WorkloadStats, describe, prefix_reuse
from jpaged.workloads.workload import Workload

__all__ = [
    "LENGTHS",
    "PrefixReuse",
    "TraceFile",
    "Workload",
    "WorkloadSpec",
    "WorkloadStats",
    "build_workload",
    "describe",
    "load_workload",
    "prefix_reuse",
    "save_csv",
]
