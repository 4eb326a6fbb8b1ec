"""A family that the project does not know, added in one file (toy_family.py), from a checkpoint on disk to text."""

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from paged_driver import PagedDriver
from safetensors.numpy import load_file, save_file
from toy_family import TOY, dense_logits, write_checkpoint

from jpaged import LLM, SamplingParams
from jpaged.sim.capacity import pages_that_fit
from jpaged.sim.hardware import HARDWARE
from jpaged.sim.ideal import ideal_cost_model
from models import load_config, load_params, register, resolve_source
from models.families import FAMILIES, PRESETS
from models.partition import param_specs
from models.weights import parameter_shapes
from tests.engine.tiny_text import write_text_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    register(TOY)
    yield write_checkpoint(tmp_path_factory.mktemp("toy") / "model")
    del FAMILIES["toy"], PRESETS["toy-nano"]


def test_its_logits_through_pages_are_those_of_a_plain_forward(checkpoint):
    source = resolve_source(str(checkpoint))
    config = load_config(source)
    driver = PagedDriver(config, load_params(source, config, "float32"), max_model_len=24)
    ids = np.random.default_rng(0).integers(3, 97, 24)
    wanted = dense_logits(load_file(checkpoint / "model.safetensors"), ids)
    np.testing.assert_allclose(driver.run(1, ids, chunks=[9, 7]), wanted, atol=1e-4, rtol=0)


def test_the_engine_serves_it_from_its_folder_with_ids_and_text(checkpoint, tmp_path):
    llm = LLM(str(write_text_model(tmp_path / "text", source=str(checkpoint))), max_model_len=48, max_num_seqs=4)
    prompts = ["hello and the other", "er"]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    tensors = load_file(checkpoint / "model.safetensors")
    for output in outputs:
        ids = list(output.prompt_token_ids)
        for _ in range(GREEDY.max_tokens):
            ids.append(int(dense_logits(tensors, ids)[-1].argmax()))
        answer = output.outputs[0]
        assert list(answer.token_ids) == ids[len(output.prompt_token_ids) :]
        assert answer.text == llm.tokenizer.decode(answer.token_ids)
        assert answer.text


def test_its_counts_splits_and_simulated_costs_come_from_its_tensors(checkpoint):
    config = load_config(resolve_source(str(checkpoint)))
    assert config == PRESETS["toy-nano"]
    assert config.num_params == sum(t.size for t in load_file(checkpoint / "model.safetensors").values())
    assert config.num_matrix_params == config.num_params - 2 * 32
    specs = param_specs(config, parameter_shapes(config, jnp.float32))
    assert specs["layers"]["up"]["kernel"] == P(None, "model")
    assert specs["layers"]["down"]["kernel"] == P(None, None, "model")
    assert specs["layers"]["norm"]["scale"] == P()
    assert jax.tree.structure(specs, is_leaf=lambda leaf: isinstance(leaf, P)) == jax.tree.structure(
        parameter_shapes(config, jnp.float32)
    )
    hardware = next(iter(HARDWARE.values()))
    assert pages_that_fit(config, hardware) > 0
    assert ideal_cost_model(config, hardware).weights_ns > 0


def test_a_checkpoint_that_lacks_its_tensors_and_a_name_that_is_taken_are_refused(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "less")
    less = load_file(checkpoint / "model.safetensors")
    del less["h.1.up.weight"]
    save_file(less, tmp_path / "less" / "model.safetensors")
    source = resolve_source(str(tmp_path / "less"))
    with pytest.raises(ValueError, match=r"ToyForCausalLM: missing: h\.1\.up\.weight"):
        load_params(source, load_config(source), "float32")
    with pytest.raises(ValueError, match="family 'toy' exists already"):
        register(replace(TOY))
    with pytest.raises(ValueError, match="ToyForCausalLM belongs to another family"):
        register(replace(TOY, name="other"))
