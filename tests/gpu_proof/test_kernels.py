"""Every kernel compiles for every GPU: in place, without spills, copies or loops outside the kernel."""

import pytest
from ahead_of_time import COMPUTING, architecture, compile_for
from cases import CASES, Case, bytes_of

pytestmark = pytest.mark.gpu_proof

SMALL = 128 * 2**20
"""Bytes: far above what splits and packed queries need, far below a pool."""

REPORTED: set[tuple[str, tuple[int, int]]] = set()


@pytest.mark.parametrize(("case", "target"), [pytest.param(c, t, id=f"{c.name} {t}") for c in CASES for t in c.targets])
def test_a_kernel_compiles_without_spills_copies_and_loops(case: Case, target: str, record_property):
    program = compile_for(target, case.function, *case.args, donate=0 if case.in_place else ())
    record_property("target", target)
    record_property("case", case.name)
    record_property("temp", program.temp)
    record_property("registers", program.registers)
    assert set(program.kinds) <= COMPUTING, program.thunks
    assert len(program.thunks) <= case.launches, program.thunks
    assert program.temp < SMALL
    assert program.largest("copy", "copy-start", "while") == 0
    if "mosaic_gpu" in case.name:
        # Mosaic GPU compiles a kernel once a process and architecture, and says then what it uses and spills.
        kernel = case.name, architecture(target)
        REPORTED.update({kernel} if "mosaic_gpu" in program.registers else ())
        assert kernel in REPORTED
    if case.in_place:
        assert program.aliased == bytes_of(case.pool)
