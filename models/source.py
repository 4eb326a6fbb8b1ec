"""Where a model's files are.

From what a user wrote (a folder, a file, a preset, a hub id) to a local path. Nothing is fetched for a path that
exists; every failure is one line that says what to do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.catalog import CATALOG, fetch
from models.config import LOAD_FORMATS
from models.families import PRESETS

Kind = Literal["safetensors", "gguf", "dummy"]
INDEX = "model.safetensors.index.json"
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
_NOT_HUB_FILES = ["consolidated*", "original/*", "onnx/*"]


@dataclass(frozen=True)
class ModelSource:
    """Files of a model: a folder (`safetensors`), a file (`gguf`), or a shape with random weights (`dummy`).

    `path` is the folder or file, where tokenizer and config are read too; None for a preset with random weights.
    `name` is what the user called it.
    """

    kind: Kind
    path: Path | None
    name: str


def resolve_source(model: str, *, revision: str | None = None, load_format: str = "auto") -> ModelSource:
    """The files of `model`: a catalog name, a preset (with load_format='dummy'), a folder, a .gguf file or a hub id.

    A catalog name wins over a folder of that name; write `./name` for the folder. Raises ValueError, in one line,
    for what cannot be found or fetched and for a `load_format` that does not fit.
    """
    if load_format not in LOAD_FORMATS:
        raise ValueError(f"load_format={load_format!r} does not exist; use one of {', '.join(LOAD_FORMATS)}")
    if load_format == "dummy":
        return _dummy(model)
    if model in CATALOG:
        if load_format == "safetensors":
            raise ValueError(f"model={model!r} is a GGUF file; use load_format='gguf' or 'auto'")
        return ModelSource("gguf", fetch(model), model)
    path = Path(model).expanduser()
    if path.exists():
        return _local(path, model, load_format)
    if model in PRESETS:
        raise ValueError(f"model={model!r} is a shape without weights; pass load_format='dummy' for random weights")
    if path.suffix == ".gguf" or path.is_absolute() or model.startswith((".", "~")):
        raise ValueError(f"model={model!r} is not an existing file or folder; check the path")
    return _local(_from_hub(model, revision), model, load_format)


def _dummy(model: str) -> ModelSource:
    if model in PRESETS:
        return ModelSource("dummy", None, model)
    path = Path(model).expanduser()
    if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
        return ModelSource("dummy", path, model)
    known = ", ".join(PRESETS)
    raise ValueError(f"model={model!r}: random weights need a preset ({known}) or a folder with config.json")


def _local(path: Path, model: str, load_format: str) -> ModelSource:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"model={model!r} is a file but not .gguf; name the checkpoint's folder instead")
        if load_format == "safetensors":
            raise ValueError(f"load_format='safetensors' does not fit model={model!r}; use 'gguf' or 'auto'")
        return ModelSource("gguf", path, model)
    has_safetensors = (path / "model.safetensors").is_file() or (path / INDEX).is_file()
    if has_safetensors and load_format != "gguf":
        return ModelSource("safetensors", path, model)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1 and load_format != "safetensors":
        return ModelSource("gguf", files[0], model)
    raise ValueError(_nothing_to_load(path, model, load_format, [file.name for file in files]))


def _nothing_to_load(path: Path, model: str, load_format: str, gguf_names: list[str]) -> str:
    if len(gguf_names) > 1 and load_format != "safetensors":
        return f"model={model!r} holds several .gguf files ({', '.join(gguf_names)}); name one of them"
    if list(path.glob("pytorch_model*.bin")) or list(path.glob("*.pth")):
        return (
            f"model={model!r} has only pickled PyTorch weights, which run code when they are loaded; convert it with "
            "transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    wanted = "*.gguf" if load_format == "gguf" else f"model.safetensors or {INDEX}"
    return f"model={model!r}: no weights in {path} (looked for {wanted}); check the folder and load_format"


def _from_hub(model: str, revision: str | None) -> Path:
    try:
        import huggingface_hub

        return Path(
            huggingface_hub.snapshot_download(
                model, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_NOT_HUB_FILES
            )
        )
    except Exception as error:  # the hub client raises its own, httpx's and OS errors: all mean "not here"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        known = ", ".join(CATALOG)
        asked = "" if revision is None else f" and revision={revision!r}"
        raise ValueError(
            f"model={model!r} is no local path or catalog name ({known}) and was not found on the Hugging Face hub: "
            f"{reason}; check the name{asked}, or pass a downloaded folder (HF_HUB_OFFLINE=1 uses the hub cache alone)"
        ) from error
