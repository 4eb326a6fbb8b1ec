"""Every architecture against logits of Hugging Face transformers, at every position, through the paged pool."""

from pathlib import Path

import numpy as np
import pytest
from paged_driver import PagedDriver

from models import ModelConfig, load_config, load_params, resolve_source

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"
NAMES = sorted(folder.name for folder in TINY.iterdir())
SIMILAR = ("llama-linear", "llama-llama3", "llama-tied", "opt-post", "qwen2")  # to others, in how they use the pool
DIFFERENT = [name for name in NAMES if name not in SIMILAR]
TOLERANCE = 1e-4


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(TINY / name / "logits.npz") as file:
        return file["ids"], file["logits"]


def tiny_model(name: str) -> tuple[ModelConfig, dict]:
    """Config and params; a rotary variant of "llama" has that folder's weights."""
    source = resolve_source(str(TINY / name), load_format="dummy")
    config = load_config(source)
    weights = name if (TINY / name / "model.safetensors").exists() else "llama"
    return config, load_params(resolve_source(str(TINY / weights)), config, "float32")


def driver_for(name: str, **options) -> PagedDriver:
    config, params = tiny_model(name)
    return PagedDriver(config, params, max_model_len=golden(name)[0].shape[1], **options)


@pytest.mark.parametrize("name", NAMES)
def test_one_prefill_of_two_sequences_gives_the_logits_of_transformers(name):
    ids, logits = golden(name)
    first, second = driver_for(name).step({0: ids[0], 1: ids[1]})
    np.testing.assert_allclose(first, logits[0], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(second, logits[1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [*[pytest.param(name, marks=pytest.mark.slow) for name in SIMILAR], *DIFFERENT])
def test_chunks_and_decode_steps_give_the_logits_of_transformers_too(name):
    ids, logits = golden(name)
    found = driver_for(name, page_size=3).run(1, ids[1], chunks=[4, 4])
    np.testing.assert_allclose(found, logits[1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["opt-pre", "mistral"])
def test_a_prefill_chunk_and_a_decoding_row_share_a_step(name):
    ids, logits = golden(name)
    driver = driver_for(name, num_seqs=4)
    driver.step({2: ids[0, :5]}, pad_tokens=5, pad_rows=2)  # the shapes of the next step
    together = driver.step({2: ids[0, 5:6], 0: ids[1, :7]})
    np.testing.assert_allclose(together[0], logits[0, 5:6], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(together[1], logits[1, :7], atol=TOLERANCE, rtol=0)
    both = driver.step({0: ids[1, 7:8], 2: ids[0, 6:7]}, pad_rows=2)
    np.testing.assert_allclose(both[0], logits[1, 7:8], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(both[1], logits[0, 6:7], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["opt-projected", "qwen3"])
def test_the_reference_kernels_and_an_unrolled_loop_give_the_same_logits(name):
    ids, logits = golden(name)
    driver = driver_for(name, attention_implementation="reference", scan_unroll="full")
    np.testing.assert_allclose(driver.step({0: ids[0]})[0], logits[0], atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt-pre", "mistral"])
def test_the_gpu_kernels_interpreted_give_the_same_logits(name):
    pytest.importorskip("pallas_kernels.paged_attention.triton", reason="no Triton kernels yet")
    ids, logits = golden(name)
    driver = driver_for(name, attention_implementation="triton", interpret=True)
    found = driver.run(0, ids[0, :10], chunks=[8])
    np.testing.assert_allclose(found, logits[0, :10], atol=TOLERANCE, rtol=0)


def test_a_sequence_does_not_see_its_company():
    ids, _ = golden("llama")
    alone = driver_for("llama").step({1: ids[1, :9]})[0]
    with_others = driver_for("llama").step({0: ids[0, :20], 1: ids[1, :9], 2: ids[0, :3]})[1]
    np.testing.assert_allclose(with_others, alone, atol=1e-5, rtol=0)


def test_opt_positions_start_at_row_two_and_end_at_the_last_row():
    """Reaches position 11, the last of a table made for 12."""
    ids, logits = golden("opt-pre")
    driver = driver_for("opt-pre")
    assert ids.shape[1] == driver.config.max_position_embeddings == 12
    assert driver.params["positions"]["embedding"].shape[0] == 14
    np.testing.assert_allclose(driver.run(0, ids[0], chunks=[5])[11], logits[0, 11], atol=TOLERANCE, rtol=0)


def test_opt_refuses_a_length_beyond_its_learned_positions():
    config, params = tiny_model("opt-pre")
    with pytest.raises(ValueError, match=r"max_model_len=13 .* 12 positions"):
        PagedDriver(config, params, max_model_len=13)


def test_dynamic_rotary_scaling_is_none_within_the_trained_context():
    ids, _ = golden("llama")
    config, params = tiny_model("llama-dynamic")
    short = PagedDriver(config, params, max_model_len=16).step({0: ids[0, :16]})[0]
    plain = driver_for("llama").step({0: ids[0, :16]})[0]
    np.testing.assert_array_equal(short, plain)


def test_bfloat16_stays_near_float32():
    config = load_config(resolve_source(str(TINY / "llama")))
    params = load_params(resolve_source(str(TINY / "llama")), config, "bfloat16")
    ids, logits = golden("llama")
    found = PagedDriver(config, params, max_model_len=40, dtype="bfloat16").step({0: ids[0]})[0]
    assert np.abs(found - logits[0]).mean() < 0.05 * np.abs(logits[0]).mean()
