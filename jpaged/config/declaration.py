"""How an option is declared: default, bounds or choices, and one line of help, said once at the field.

`check_options` holds a value to its declaration; the command line's flags, the sections of an experiment's YAML and
docs/options.md are made from it. Every error names the field, the value and what to do.
"""

import hashlib
import inspect
import json
import re
import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache, wraps
from types import NoneType
from typing import Any, Concatenate, get_args

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option. `kinds`: the types it may have; `default` is MISSING where it must be given.

    `low` and `high` are bounds, both included. `check(name, value)` stands in for the check that the type implies.
    `flag`: whether the command line has it.
    """

    name: str
    kinds: tuple[Any, ...]
    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    check: Callable[[str, Any], Any] | None = None
    flag: bool = True

    def require(self, value: Any) -> None:
        """Raise ValueError unless `value` is what the declaration allows."""
        if value is None and NoneType in self.kinds:
            return
        if any(value == choice and type(value) is type(choice) for choice in self.choices):
            return
        if self.check is not None:
            self.check(self.name, value)
        elif bool in self.kinds:
            require_bool(self.name, value)
        elif int in self.kinds:
            require_int(self.name, value, self.low, self.high)
        elif float in self.kinds:
            require_number(self.name, value, self.low, self.high)
        elif self.choices:
            require_choice(self.name, value, self.choices)
        elif self.kinds[0] is str:
            require_text(self.name, value)


def about(help: str, **facts: Any) -> dict[str, Any]:
    """The metadata of a field that is an option; `facts` are fields of Option. For one that has no default."""
    return {"option": {"help": help, **facts}}


def option(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field that is an option."""
    return field(default=default, metadata=about(help, **facts))


def like(kind: type, name: str, default: Any) -> Any:
    """A field that is the option `name` of another dataclass, with a default of its own."""
    declared = next(each for each in fields(kind) if each.name == name)
    return field(default=default, metadata=declared.metadata)


def left_open(kind: type, **defaults: Any) -> Any:
    """A frozen dataclass with the options of `kind`, each None where it is left open, but for those with `defaults`."""
    made: list[Any] = []
    for each in fields(kind):
        declared: Any = each.type
        hint = declared if each.name in defaults else declared | None
        made.append((each.name, hint, field(default=defaults.get(each.name), metadata=each.metadata)))
    return make_dataclass(f"Open{kind.__name__}", made, frozen=True, kw_only=True)


def given(section: Any) -> dict[str, Any]:
    """The options of a section that are not None."""
    values = {each.name: getattr(section, each.name) for each in options_of(section.__class__)}
    return {name: value for name, value in values.items() if value is not None}


@cache
def options_of(kind: Any) -> tuple[Option, ...]:
    """The options that a dataclass declares or inherits, those that may be given by position first."""
    ordered = sorted((each for each in fields(kind) if "option" in each.metadata), key=lambda each: bool(each.kw_only))
    return tuple(
        Option(each.name, get_args(each.type) or (each.type,), each.default, **each.metadata["option"])
        for each in ordered
    )


def check_options(section: Any) -> None:
    """Raise ValueError for the first option of a dataclass instance that its declaration does not allow."""
    for each in options_of(section.__class__):
        each.require(getattr(section, each.name))


def part_of[T](kind: Callable[..., T], options: Any, **known: Any) -> T:
    """A section made of the fields that `options` has under the same names, but for those in `known`."""
    names = [each.name for each in fields(kind) if each.name not in known]  # pyright: ignore[reportArgumentType]
    return kind(**{name: getattr(options, name) for name in names}, **known)


def with_keywords_of[**P](
    declared: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the arguments of the dataclass `declared`: for type checkers, `inspect.signature` and `help`."""

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(method)
        def wrapped(self: Any, *args: P.args, **keywords: P.kwargs) -> None:
            method(self, *args, **keywords)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(declared)
        wrapped.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # pyright: ignore
        lines = [f"{each.name}: {each.help}" for each in options_of(declared)]  # pyright: ignore[reportArgumentType]
        wrapped.__doc__ = "\n".join(lines)
        return wrapped

    return decorate


def digest_of(facts: Any, length: int) -> str:
    """The first hexadecimal digits of a name for plain facts: equal facts, and they alone, have equal names."""
    # 1 and 1.0 are equal, so they are written alike.
    plain = json.loads(json.dumps(facts), parse_float=_int_if_whole)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:length]


def require_int(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Raise ValueError unless `value` is an int (not a bool) in [low, high]; None leaves a side open."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={shown(value)}: must be an integer")
    _require_range(name, value, low, high)


def require_number(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Raise ValueError unless `value` is a finite number (not a bool) in [low, high]; None leaves a side open."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={shown(value)}: must be a number")
    # An int may be too large for a float, and for isfinite.
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"{name}={shown(value)}: must be finite")
    _require_range(name, value, low, high)


def _require_range(name: str, value: float, low: float | None, high: float | None) -> None:
    if (low is None or value >= low) and (high is None or value <= high):
        return
    bound = f"at least {low}" if high is None else f"at most {high}" if low is None else f"between {low} and {high}"
    raise ValueError(f"{name}={shown(value)}: must be {bound}")


def require_fraction(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value < 1:
        raise ValueError(f"{name}={shown(value)}: must be a fraction in [0, 1)")


def require_bool(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={shown(value)}: must be True or False")


def require_text(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={shown(value)}: must be a name")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}={shown(value)}: choose one of {', '.join(map(str, choices))}")


def parse_bytes(name: str, value: int | str) -> int:
    """Bytes of a number or of a text such as "512MiB" or "2GB". Raises ValueError naming the remedy."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{name}={value!r}: give bytes, or a text such as '512MiB' or '2GB'")
        size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise ValueError(f"{name}={value!r}: must be at least one byte")
    return size


def shown(value: Any) -> str:
    """The value as an error message shows it: short, and in one line."""
    return " ".join(reprlib.repr(value).split())


def _int_if_whole(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
