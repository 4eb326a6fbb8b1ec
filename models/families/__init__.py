# pyright: strict
"""The model families that are known: one file each, and a user's own by `register`."""

from models.config import ModelConfig
from models.families.llama import LLAMA
from models.families.opt import OPT
from models.family import Architecture, Family

FAMILIES: dict[str, Family] = {"opt": OPT, "llama": LLAMA}


def family_of(architecture: str) -> Family | None:
    """The family of an architecture by Hugging Face's name; None if no family has it."""
    return next((family for family in FAMILIES.values() if architecture in family.architectures), None)


def architectures() -> dict[str, Architecture]:
    """All that can be loaded, by Hugging Face's name."""
    return {name: found for family in FAMILIES.values() for name, found in family.architectures.items()}


def register(family: Family) -> Family:
    """Make a family of your own known to this process, and give it back. Raises ValueError if a name is taken."""
    if FAMILIES.get(family.name, family) is not family:
        raise ValueError(f"family {family.name!r} exists already; give yours another name")
    for name in family.architectures:
        if family_of(name) not in (None, family):
            raise ValueError(f"family {family.name!r}: {name} belongs to another family; leave it out")
    FAMILIES[family.name] = family
    PRESETS.update(_presets(family))
    return family


def _presets(family: Family) -> dict[str, ModelConfig]:
    return {name: ModelConfig.from_hf(document) for name, document in family.presets.items()}


PRESETS: dict[str, ModelConfig] = {name: shape for each in FAMILIES.values() for name, shape in _presets(each).items()}
"""Published shapes by name."""
