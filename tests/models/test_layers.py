"""The parts that model families share, against NumPy in float64.

Promises: no model, no pool.
Must not know: which model uses which part.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import gated


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
