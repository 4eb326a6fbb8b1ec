"""Who takes part in a job is read from flags, or from what the launcher put in the environment."""

import re
from typing import Any

import pytest

from jpaged.runtime.multi_process.processes import ProcessGroup, find_processes, first_host

SLURM = {
    "SLURM_JOB_ID": "8193", "SLURM_STEP_NODELIST": "gpu[07-09,12]", "SLURM_NTASKS": "4", "SLURM_PROCID": "2",
    "SLURM_LOCALID": "1",
}  # fmt: skip
OMPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
}  # fmt: skip


def test_flags_say_it_all():
    assert find_processes("10.0.0.1:9311", 2, 1, {}) == ProcessGroup("10.0.0.1", 9311, 2, 1)
    assert find_processes("[fe80::1]:9311", 2, 0, {}) == ProcessGroup("fe80::1", 9311, 2, 0)
    assert ProcessGroup("10.0.0.1", 9311, 2, 0).is_driver
    assert find_processes(None, None, None, SLURM) is None, "the environment is asked only if the user says so"


@pytest.mark.parametrize(
    ("environ", "group"),
    [
        (SLURM, ProcessGroup("gpu07", 61441, 4, 2, 1)),
        (SLURM | {"JAX_COORDINATOR_PORT": "9311", "JAX_LOCAL_DEVICE_IDS": "0"}, ProcessGroup("gpu07", 9311, 4, 2)),
        (OMPI, ProcessGroup("10.96.0.1", 1531576320 // 4096 % 4096 + 61440, 2, 1)),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"} | SLURM,
            ProcessGroup("a", 1, 2, 1),
        ),
    ],
)
def test_a_launcher_s_variables_are_read_when_asked_for(environ, group):
    assert find_processes("auto", None, None, environ) == group


@pytest.mark.parametrize(("nodes", "host"), [("node001", "node001"), ("a1,b2", "a1"), ("n[003,7],x", "n003")])
def test_the_first_host_of_a_list_of_nodes_is_where_to_meet(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, 2, None), "num_processes=2: only with coordinator='HOST:PORT' or 'auto'"),
        (("a:1", None, 0), "coordinator='a:1': give num_processes too"),
        (("a:1", 2, None), "coordinator='a:1': give process_id too"),
        (("a", 2, 0), "coordinator='a': give HOST:PORT"),
        (("a:99999", 2, 0), "coordinator port 99999: must be between 1 and 65535"),
        (("a:1", 1, 0), "num_processes=1: a coordinator is for two or more"),
        (("a:1", 2, 2), "process_id=2: must be between 0 and 1, since num_processes=2"),
        (("auto", None, None), "neither srun, Open MPI 4's mpirun nor JAX_COORDINATOR_ADDRESS is in the environment"),
    ],
)
def test_what_is_missing_or_wrong_is_said_with_the_remedy(arguments: Any, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        find_processes(*arguments, environ={})
