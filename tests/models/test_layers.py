"""The parts that model families share, without model or pool, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import LayerNorm, RMSNorm, gated


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_gated_activation_is_rounded_once(dtype):
    rng = np.random.default_rng(0)
    gate, up = (jnp.asarray(4 * rng.standard_normal((16, 256)), dtype) for _ in range(2))
    out = gated("silu", gate, up)
    assert out.dtype == dtype
    wide_gate, wide_up = (np.asarray(x, np.float64) for x in (gate, up))
    expected = wide_gate / (1 + np.exp(-wide_gate)) * wide_up
    # Half a unit in the last place, and what float32 arithmetic adds before it is rounded.
    half_ulp = float(jnp.finfo(dtype).eps) / 2
    allowed = half_ulp * 1.01 if dtype == jnp.bfloat16 else 8 * half_ulp
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=allowed, atol=0)


@pytest.mark.parametrize("shape", [(32,), (64,), (576,), (4096,), (9, 64), (2, 128)], ids=str)
@pytest.mark.parametrize("norm", [RMSNorm, LayerNorm])
def test_a_norm_gives_a_row_the_same_bits_among_any_number_of_rows(norm, shape):
    rows = np.random.default_rng(0).standard_normal((200, *shape)).astype(np.float32)
    module = norm(1e-5, jnp.float32)
    apply = jax.jit(module.apply)
    variables = module.init(jax.random.key(0), rows)
    whole = np.asarray(apply(variables, rows))
    for count in (*range(1, 20), 31, 32, 33, 63, 64, 65, 127, 128, 129):
        np.testing.assert_array_equal(apply(variables, rows[:count]), whole[:count], err_msg=f"{count} rows")
