"""The checks of the GPU kernels find what they are there to find."""

import jax.numpy as jnp
import pytest

from jpaged.gpu_check import correctness
from jpaged.gpu_check.correctness import Check, check_correctness
from jpaged.gpu_check.sections import SectionRun

SMALL = {"heads": (4, 2, 16), "lengths": (1, 20, 0), "num_queries": (1, 6, 0)}


def outcomes(monkeypatch, tmp_path, checks: list[Check]) -> list[dict]:
    monkeypatch.setattr(correctness, "_tiny_checks", lambda name: checks)
    run = SectionRun(tiny=True, seconds=60.0, before={}, target=tmp_path / "part")
    check_correctness(run, "any")
    assert sum(run.found[f"num_{outcome}"] for outcome in ("right", "wrong", "absent")) == len(checks)
    return run.found["checks"]


def test_xla_is_found_right_everywhere(monkeypatch, tmp_path):
    operations = ("paged_attention", "ragged_paged_attention", "write_kv", "copy_pages")
    checks = [Check(operation, "xla", **SMALL) for operation in operations]
    checks += [Check(operation, "xla", **SMALL, kv_dtype="int8", dtype="float32") for operation in operations]
    checks.append(Check("paged_attention", "xla", **SMALL, options=(("window", 3), ("soft_cap", 2.0))))
    assert [found["outcome"] for found in outcomes(monkeypatch, tmp_path, checks)] == ["right"] * len(checks)


@pytest.mark.parametrize("spoil", [lambda out: out + 0.5, lambda out: out.at[0, 0, 0].set(jnp.nan)])
def test_an_attention_that_is_off_or_not_a_number_is_wrong(monkeypatch, tmp_path, spoil):
    honest = correctness.OPERATIONS["paged_attention"]

    def spoilt(*args, implementation, **how):
        out = honest(*args, implementation="reference", **how)
        return out if implementation == "reference" else spoil(out)

    monkeypatch.setitem(correctness.OPERATIONS, "paged_attention", spoilt)
    (found,) = outcomes(monkeypatch, tmp_path, [Check("paged_attention", "xla", **SMALL)])
    assert found["outcome"] == "wrong"


@pytest.mark.parametrize("operation", ["write_kv", "copy_pages"])
def test_one_byte_elsewhere_is_wrong(monkeypatch, tmp_path, operation):
    honest = correctness.OPERATIONS[operation]

    def spoilt(*args, implementation, **how):
        kv = honest(*args, implementation="reference", **how)
        return kv if implementation == "reference" else kv._replace(v=kv.v.at[0, 0, 0, 0, 0].set(1))

    monkeypatch.setitem(correctness.OPERATIONS, operation, spoilt)
    (found,) = outcomes(monkeypatch, tmp_path, [Check(operation, "xla", **SMALL)])
    assert (found["outcome"], found["same_bytes"]) == ("wrong", [True, False])


def test_what_is_not_supported_is_absent_and_what_fails_is_wrong(monkeypatch, tmp_path):
    def call(check, how):
        def fails(*args):
            raise NotImplementedError("no") if check.dtype == "float16" else RuntimeError("out of shared memory")

        return fails

    monkeypatch.setattr(correctness, "_call", call)
    checks = [Check("paged_attention", "xla", **SMALL, dtype=dtype) for dtype in ("float16", "bfloat16")]
    found = outcomes(monkeypatch, tmp_path, checks)
    assert [entry["outcome"] for entry in found] == ["absent", "wrong"]
    assert "out of shared memory" in found[1]["error"]


def test_every_operation_dtype_and_option_of_both_gpu_kernels_is_checked():
    triton = list(correctness._checks("triton"))
    assert {check.operation for check in triton} == {
        "paged_attention", "ragged_paged_attention", "write_kv", "copy_pages",
    }  # fmt: skip
    assert {check.kv_dtype or check.dtype for check in triton} >= {
        "float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2",
    }  # fmt: skip
    assert {name for check in triton for name, _ in check.options} == {"window", "soft_cap"}
    assert {check.operation for check in correctness._checks("mosaic_gpu")} == {
        "paged_attention", "ragged_paged_attention",
    }  # fmt: skip
    for checks in (triton, list(correctness._checks("mosaic_gpu"))):
        names = [check.name for check in checks]
        assert len(set(names)) == len(names), "a name is the key of a result"
