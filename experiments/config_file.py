"""One YAML file per experiment: a question, a config, what is swept, what is shown.

Every point is checked before any runs; an error names the file, the point and the field.
"""

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.check import check_point, check_shown
from experiments.config import Config
from experiments.files import from_plain, nearest, parse_yaml, read_yaml, set_in

SWEEPS = ("grid", "list", "zip")
Setting = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """The points of a file, in its order: a config each, and the settings that tell it from the others.

    `show`: which numbers of a summary its table has; empty: the usual ones.
    """

    name: str
    question: str
    configs: tuple[Config, ...]
    settings: tuple[Setting, ...]
    show: tuple[str, ...] = ()


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a file; `overrides` ("cache.page_size=32") are of all its points, and go last.

    `sweep` in the file may have a `grid` (name: values, all combinations), a `list` (of settings) and a `zip` (name:
    values, the k-th with the k-th); points are all combinations of the three. Raises ValueError in one line.
    """
    facts = read_yaml(path)
    try:
        if not isinstance(facts, dict):
            raise ValueError("holds no fields; begin with `question:`")
        return _experiment(path.stem, facts, [parse_override(text) for text in overrides])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_override(text: str) -> tuple[str, Any]:
    """The name and the value of "name=value", which is typed as in a config file. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--set {text}: write it as name=value, such as cache.page_size=32")
    try:
        return name.strip(), parse_yaml(value)
    except ValueError as error:
        raise ValueError(f"--set {text}: {error}") from None


def _experiment(name: str, facts: dict[str, Any], overrides: list[tuple[str, Any]]) -> Experiment:
    question = facts.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question={question!r}: say in a sentence what the experiment is to answer")
    sweep, show = facts.pop("sweep", {}), facts.pop("show", [])
    if not isinstance(show, list) or not all(isinstance(key, str) for key in show):
        raise ValueError(f"show={show!r}: must be a list of names in a summary")
    found: dict[str, tuple[Config, Setting]] = {}
    for setting in _settings(sweep):
        plain = copy.deepcopy(facts)
        for field, value in [*setting.items(), *overrides]:
            # A copy: setting a field of a section must not reach the sweep's own.
            set_in(plain, field, copy.deepcopy(value))
        label = ", ".join(f"{field}={value}" for field, value in setting.items())
        try:
            config = from_plain(plain)
            check_point(config)
        except ValueError as error:
            raise ValueError(f"point {label}: {error}" if label else str(error)) from None
        # What an override has made equal is one point.
        found.setdefault(config.digest(), (config, setting))
    configs, settings = zip(*found.values(), strict=True)
    check_shown(show, type(configs[0]))
    return Experiment(name, question.strip(), configs, _differing(settings), tuple(show))


def _settings(sweep: Any) -> list[Setting]:
    """All combinations of a sweep's three parts; of no sweep one empty setting.

    Raises ValueError for a field that two of its values are for.
    """
    if not isinstance(sweep, dict):
        raise ValueError(f"sweep={sweep!r}: must have {', '.join(SWEEPS)}")
    for key in sweep:
        if key not in SWEEPS:
            raise ValueError(f"sweep.{key}: no such kind of sweep; {nearest(str(key), list(SWEEPS))}")
    listed = _listed(sweep["list"]) if "list" in sweep else []
    parts: list[list[Setting]] = [listed] if listed else []
    zipped = _columns("sweep.zip", sweep.get("zip", {}))
    if len({len(values) for values in zipped.values()}) > 1:
        counts = ", ".join(f"{name} has {len(values)}" for name, values in zipped.items())
        raise ValueError(f"sweep.zip: the k-th values go together, but {counts}; give equally many")
    if zipped:
        parts.append([dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)])
    grid = _columns("sweep.grid", sweep.get("grid", {}))
    parts += [[{name: value} for value in values] for name, values in grid.items()]
    for names in listed or [{}]:
        given = {"list": names, "zip": zipped, "grid": grid}
        _refuse_contradictions([(part, name) for part, of_part in given.items() for name in of_part])
    return [{k: v for setting in chosen for k, v in setting.items()} for chosen in itertools.product(*parts)]


def _refuse_contradictions(given: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError if two of (part of the sweep, name) set the same field, of which one would be lost."""
    for (part, name), (other_part, other) in itertools.combinations(given, 2):
        if name == other:
            raise ValueError(f"sweep.{part} and sweep.{other_part} both set {name}; set it in one of them")
        if f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}."):
            raise ValueError(
                f"sweep.{part} sets {name} and sweep.{other_part} sets {other}, the one within the other; set fields "
                "alone, or the section alone"
            )


def _columns(where: str, columns: Any) -> dict[str, list[Any]]:
    if not isinstance(columns, dict) or not all(isinstance(v, list) and v for v in columns.values()):
        raise ValueError(f"{where}={columns!r}: must have a list of values for each name")
    _require_names(where, columns)
    return columns


def _listed(settings: Any) -> list[Setting]:
    if not isinstance(settings, list) or not settings or not all(isinstance(s, dict) for s in settings):
        raise ValueError(f"sweep.list={settings!r}: must be a list of settings, each of names and values")
    for setting in settings:
        _require_names("sweep.list", setting)
    return settings


def _require_names(where: str, names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{where}: {name!r} is no name of a field; write one such as cache.page_size")


def _differing(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The settings, field by field, without the names that all have the same value of."""
    settings = [_flat(setting) for setting in settings]
    names = dict.fromkeys(name for setting in settings for name in setting)
    swept = [name for name in names if len({repr(setting.get(name)) for setting in settings}) > 1]
    return tuple({name: setting[name] for name in swept if name in setting} for setting in settings)


def _flat(setting: Setting, prefix: str = "") -> Setting:
    """Sections that a setting gives whole as fields with dotted names."""
    flat: Setting = {}
    for name, value in setting.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
