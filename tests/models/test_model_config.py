"""What ModelConfig accepts, and how it refuses."""

import subprocess
import sys

import pytest

from models.config import ModelConfig, RopeScaling
from models.families import PRESETS

LLAMA = {"architectures": ["LlamaForCausalLM"]}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}
OPT = {"architectures": ["OPTForCausalLM"]}


def refusal(hf: dict) -> str:
    with pytest.raises(ValueError, match="is not supported") as caught:
        ModelConfig.from_hf(hf)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_importing_models_loads_no_array_library():
    code = (
        "import sys, models, models.config as c, models.families as f; f.PRESETS['opt-13b'].num_params;"
        "c.ModelConfig.from_hf({'architectures': ['LlamaForCausalLM']});"
        "print([m for m in ('jax', 'flax', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_keys_mean_what_they_mean_to_transformers():
    llama = ModelConfig.from_hf(LLAMA)
    assert (llama.hidden_size, llama.num_layers, llama.num_kv_heads, llama.head_dim) == (4096, 32, 32, 128)
    assert not llama.tie_word_embeddings
    assert (llama.bos_token_id, llama.eos_token_ids) == (1, (2,))
    assert ModelConfig.from_hf({"model_type": "mistral"}).sliding_window == 4096
    assert ModelConfig.from_hf({"model_type": "mistral", "sliding_window": None}).sliding_window is None
    assert ModelConfig.from_hf({"model_type": "mistral"}).num_kv_heads == 8
    qwen2 = ModelConfig.from_hf(QWEN2)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.sliding_window) == (True, False, None)
    qwen3 = ModelConfig.from_hf({"model_type": "qwen3"})
    assert (qwen3.qk_norm, qwen3.head_dim, qwen3.qkv_bias) == (True, 128, False)
    assert ModelConfig.from_hf(OPT) == PRESETS["opt-125m"]


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
)
def test_old_and_new_spellings_of_rotary_parameters_are_one(spelling):
    config = ModelConfig.from_hf(LLAMA | spelling)
    assert (config.rope_theta, config.rope_scaling) == (5e5, RopeScaling(kind="linear", factor=2.0))
    assert config.max_length == 4096


def test_llama3_scaling_takes_its_context_from_the_config_when_it_names_none():
    rope = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    scaling = ModelConfig.from_hf(LLAMA | {"max_position_embeddings": 512, "rope_scaling": rope}).rope_scaling
    assert scaling is not None
    assert scaling.original_max_position_embeddings == 512
    rope["original_max_position_embeddings"] = 128
    scaling = ModelConfig.from_hf(LLAMA | {"max_position_embeddings": 512, "rope_scaling": rope}).rope_scaling
    assert scaling is not None
    assert scaling.original_max_position_embeddings == 128


def test_generation_config_names_the_ids_that_end_a_text():
    config = ModelConfig.from_hf(LLAMA | {"eos_token_id": 2}, {"eos_token_id": [7, 9], "bos_token_id": None})
    assert (config.eos_token_ids, config.bos_token_id) == ((7, 9), 1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_type", "yarn", "llama3"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["rope_parameters"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor"]),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ["factor", "'2'"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"hidden_act": "mish"}, ["hidden_act", "mish", "silu"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"num_attention_heads": 5}, ["num_attention_heads", "4096"]),
        ({"num_attention_heads": 0}, ["num_attention_heads", "0"]),
        ({"num_key_value_heads": 3}, ["num_kv_heads=3", "num_heads=32"]),
        ({"head_dim": 7}, ["head_dim=7", "even"]),
        ({"vocab_size": -1}, ["vocab_size=-1"]),
        ({"num_hidden_layers": True}, ["num_layers=True"]),
        ({"rms_norm_eps": "small"}, ["norm_eps='small'"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings='yes'"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        ({"eos_token_id": "</s>"}, ["eos_token_ids='</s>'"]),
    ],
)
def test_what_cannot_run_is_refused_by_name(changes, named):
    message = refusal(LLAMA | changes)
    for word in named:
        assert word in message


def test_a_window_on_some_layers_is_refused_and_on_all_or_none_is_read():
    sliding = QWEN2 | {"use_sliding_window": True, "sliding_window": 64, "num_hidden_layers": 24}
    assert "max_window_layers=12" in refusal(sliding | {"max_window_layers": 12})
    assert ModelConfig.from_hf(sliding | {"max_window_layers": 0}).sliding_window == 64
    assert ModelConfig.from_hf(sliding | {"max_window_layers": 24}).sliding_window is None
    assert ModelConfig.from_hf(sliding | {"layer_types": ["sliding_attention"] * 24}).sliding_window == 64
    assert ModelConfig.from_hf(sliding | {"layer_types": ["full_attention"] * 24}).sliding_window is None
    assert "layer_types" in refusal(sliding | {"layer_types": ["full_attention", "sliding_attention"] * 12})


def test_opt_options_are_read_or_refused():
    assert not ModelConfig.from_hf(OPT | {"do_layer_norm_before": False}).final_layer_norm
    assert not ModelConfig.from_hf(OPT | {"_remove_final_layer_norm": True}).final_layer_norm
    assert not ModelConfig.from_hf(OPT | {"enable_bias": False}).qkv_bias
    assert ModelConfig.from_hf(OPT | {"word_embed_proj_dim": 512}).embedding_dim == 512
    assert "layer_norm_elementwise_affine=False" in refusal(OPT | {"layer_norm_elementwise_affine": False})


def test_bytes_of_a_token_follow_the_kv_heads():
    assert PRESETS["opt-13b"].kv_bytes_per_token(2) == 819_200  # the paper's 800 KB a token
    assert PRESETS["llama-3-8b"].kv_bytes_per_token(2) == 131_072
    assert PRESETS["smollm2-135m"].kv_bytes_per_token(4) == 46_080
