"""docs/options.md, made from the declarations: `python -m jpaged.cli.option_table > docs/options.md`."""

from dataclasses import MISSING
from typing import Any

from jpaged.cli.flags import flag_of
from jpaged.config.declaration import Option, options_of
from jpaged.config.options import (
    CacheConfig,
    EngineOptions,
    LoadOptions,
    ParallelConfig,
    RuntimeConfig,
    SchedulerConfig,
)
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams

_INTRODUCTION = """# Options

Made by `python -m jpaged.cli.option_table` from the declarations in `jpaged/config/options.py` and
`jpaged/core/requests/sampling_params.py`; the keywords of `LLM`, the flags of `jpaged` and the sections of an
experiment's YAML are made from the same. "-" is an option without a flag."""


def option_table() -> str:
    """The whole text of docs/options.md."""
    sections = (LoadOptions, CacheConfig, SchedulerConfig, ParallelConfig, RuntimeConfig)
    own = {each.name: each for each in options_of(EngineOptions)}
    tables: dict[str, Any] = {
        f"LLM(...): {kind.__name__}": [own.pop(each.name) for each in options_of(kind)] for kind in sections
    }
    tables = {"LLM(...): the model, sizes in bytes, processes": own.values()} | tables
    tables |= {kind.__name__: options_of(kind) for kind in (SamplingParams, BeamSearchParams)}
    return "\n\n".join([_INTRODUCTION, *(_section(*table) for table in tables.items())]) + "\n"


def _section(title: str, options: Any) -> str:
    rows = [f"| {' | '.join(_cells(each))} |" for each in options]
    return "\n".join([f"## {title}", "", "| option | flag | values | default | |", "|---|---|---|---|---|", *rows])


def _cells(option: Option) -> tuple[str, ...]:
    default = "required" if option.default is MISSING else f"`{option.default!r}`"
    flag = f"`{flag_of(option.name)}`" if option.flag else "-"
    return f"`{option.name}`", flag, _values(option), default, option.help


def _values(option: Option) -> str:
    """The types that a value may have, or its choices, and its bounds."""
    choices = [f"`{each}`" for each in option.choices]
    types = [kind.__name__ for kind in option.kinds if isinstance(kind, type) and kind is not type(None)]
    names = ", ".join(choices) if choices and int not in option.kinds else " or ".join([*types, *choices])
    if option.low is None:
        return names
    return f"{names}, {option.low} to {option.high}" if option.high is not None else f"{names}, at least {option.low}"


if __name__ == "__main__":
    print(option_table(), end="")
