"""Configs and their YAML.

Typed strictly: an unknown key is an error that names the nearest, a wrong value one that names its field.
"""

import dataclasses
import difflib
import re
import typing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from experiments.config import Config
from experiments.kinds import KINDS


class _Loader(yaml.SafeLoader):
    """Plain YAML without dates, of which no field is, in which a key given twice is an error."""

    # A date is text, so that the field it was given for is what complains.
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(
                    f"line {line}: {key.value} is there already, in line {lines[key.value]}; give one of the two"
                )
            lines[key.value] = line
        return node


def from_plain(facts: dict[str, Any]) -> Config:
    """The config that nested dicts describe. Raises ValueError, in one line, for whatever is wrong with them."""
    facts = dict(facts)
    kind = facts.pop("kind", "serving")
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: no such kind of experiment; {nearest(str(kind), list(KINDS))}")
    _check_keys(KINDS[kind], facts, "")
    try:
        return msgspec.convert(facts, KINDS[kind])
    except msgspec.ValidationError as error:
        raise ValueError(_plain_message(error, facts)) from None


def to_plain(config: Config) -> dict[str, Any]:
    """Nested dicts of all fields. Equal configs give equal ones: a whole number in a field of floats is a float."""
    typed = msgspec.convert(dataclasses.asdict(config), type(config))
    plain = msgspec.to_builtins(dataclasses.asdict(typed))
    return plain if config.kind == "serving" else {"kind": config.kind, **plain}


def read_yaml(path: Path) -> Any:
    """What the file holds. Raises ValueError if it is missing, is no YAML or gives a key twice."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); give the path of a YAML file") from None
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_yaml(text: str) -> Any:
    """What the text says in YAML. Raises ValueError, in one line, if it is none or gives a key twice."""
    try:
        # A subclass of the safe loader.
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from None
    except (ValueError, LookupError, AttributeError) as error:
        # What the safe loader raises for a value that does not have the form of its explicit tag.
        raise ValueError(f"a value cannot be read ({error}); write it plainly, without a !! tag") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def dump_yaml(facts: Any) -> str:
    """YAML of plain values, in their order."""
    return yaml.safe_dump(facts, sort_keys=False, width=120)


def set_in(facts: dict[str, Any], name: str, value: Any) -> None:
    """Set the field of a dotted name in nested dicts. Raises ValueError if a part before the last is no section."""
    *parts, last = name.split(".")
    for part in parts:
        facts = facts.setdefault(part, {})
        if not isinstance(facts, dict):
            raise ValueError(f"{name}: {part} is no section")
    facts[last] = value


def _check_keys(kind: Any, facts: dict[str, Any], prefix: str) -> None:
    known, sections = _names(kind), _sections(kind)
    for key, value in facts.items():
        if key not in known:
            raise ValueError(f"{prefix}{key}: no such field; {nearest(str(key), known)}")
        if key in sections and not isinstance(value, dict):
            raise ValueError(f"{prefix}{key}={value!r}: must be a section, with {', '.join(_names(sections[key]))}")
        if key in sections:
            _check_keys(sections[key], value, f"{prefix}{key}.")


def nearest(word: str, known: list[str]) -> str:
    """What to say to somebody who wrote `word` where one of `known` was wanted."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _sections(kind: Any) -> dict[str, Any]:
    """Those fields that are configs themselves."""
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}


def _plain_message(error: msgspec.ValidationError, facts: Any) -> str:
    """msgspec's "what - at `$.where`" with the field first; a config's own ValueError as it was raised."""
    what, at, where = str(error).rpartition(" - at `$")
    # The config as a whole has no place.
    field = where.strip("`").lstrip(".") if at else ""
    if isinstance(error.__cause__, ValueError):
        cause, section = str(error.__cause__), f"{field}." if field else ""
        return cause if cause.startswith(section) else f"{section}{cause}"
    for part in re.findall(r"\w+", field):
        facts = facts[int(part) if isinstance(facts, list) else part]
    return f"{field}={facts!r}: {what[:1].lower()}{what[1:]}"
