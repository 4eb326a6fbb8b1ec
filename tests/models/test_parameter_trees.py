"""The shape of the parameters: presets, counts, independence of the layer loop's settings."""

import jax
import numpy as np
import pytest

from models import build_model
from models.families import PRESETS
from models.places import places
from models.weights import dummy_params, parameter_shapes

PUBLISHED = {
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_its_published_number_of_parameters_and_every_one_has_a_tensor(name):
    config = PRESETS[name]
    leaves = jax.tree.leaves(parameter_shapes(config, "bfloat16"))
    assert len(leaves) <= 20
    assert sum(leaf.size for leaf in leaves) == config.num_params == PUBLISHED[name]
    assert sum(int(np.prod(place.shape)) for place in places(config).values()) == config.num_params


def test_the_tree_does_not_depend_on_how_the_layer_loop_is_unrolled():
    config = PRESETS["smollm2-135m"]
    shapes = parameter_shapes(config, "float32")
    for unroll in (1, 7, "full"):
        model = build_model(config, dtype="float32", max_model_len=8, scan_unroll=unroll)
        assert model.options.scan_unroll == (30 if unroll == "full" else unroll)
        assert jax.tree.structure(parameter_shapes(config, "float32")) == jax.tree.structure(shapes)
    with pytest.raises(ValueError, match="scan_unroll=0"):
        build_model(config, dtype="float32", max_model_len=8, scan_unroll=0)


def test_dummy_weights_follow_the_seed_and_repeat_no_row():
    config = PRESETS["smollm2-135m"]
    first = dummy_params(config, "bfloat16", seed=3)
    again = dummy_params(config, "bfloat16", seed=3)
    other = dummy_params(config, "bfloat16", seed=4)
    embedding = first["embed"]["embedding"]
    np.testing.assert_array_equal(embedding, again["embed"]["embedding"])
    assert (embedding != other["embed"]["embedding"]).any()
    assert len({row.tobytes() for row in embedding}) == config.vocab_size
    assert (first["final_norm"]["scale"] == 1).all()
    assert abs(embedding.astype(np.float32).std() - 0.02) < 1e-3
