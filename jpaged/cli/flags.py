"""The flags that commands share, made from the declarations of EngineOptions, SamplingParams and BeamSearchParams."""

import functools
from collections import abc
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import click

from jpaged.config.declaration import Option, options_of
from jpaged.config.options import EngineOptions
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.observing.profiling import check_profile

Command = abc.Callable[..., Any]

# A reader wants more to look at than a script, whose default is vLLM's.
_MAX_TOKENS = 64


def int_option(flag: str, default: int | None, help: str, *, least: int | None = None, **more: Any) -> Any:
    """A flag for an integer that is at least `least`; `more` goes to click."""
    kind = int if least is None else click.IntRange(min=least)
    return click.option(flag, type=kind, default=default, show_default=True, help=help, **more)


def engine_options(command: Command) -> Command:
    """The flags of EngineOptions; the command gets them as the dict `engine`."""
    options = [each for each in options_of(EngineOptions) if each.flag]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        engine = {each.name: given.pop(each.name) for each in options}
        return command(engine=engine, **given)

    return _with_flags(options, run)


def params_options(command: Command) -> Command:
    """The flags of SamplingParams and BeamSearchParams; the command gets what they ask for as `params`.

    Raises ValueError, also for a flag that the chosen kind of search would ignore.
    """
    sampling, beam = (
        {each.name: each for each in options_of(kind) if each.flag} for kind in (SamplingParams, BeamSearchParams)
    )

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        values = {name: given.pop(name) for name in sampling | beam}
        if values["beam_width"] is None:
            refuse_given("a beam search's flag: add --beam-width", *(beam.keys() - sampling.keys()))
            return command(params=SamplingParams(**{name: values[name] for name in sampling}), **given)
        # Greedy is what a beam search is.
        ignored = sampling.keys() - beam.keys() - ({"temperature"} if values["temperature"] == 0 else set())
        refuse_given("a beam search does not sample: leave it out, or leave out --beam-width", *ignored)
        return command(params=BeamSearchParams(**{name: values[name] for name in beam}), **given)

    return _with_flags((beam | sampling).values(), run)


def refuse_given(why: str, *names: str) -> None:
    """Raise ValueError if the user gave a flag of these names."""
    source_of = click.get_current_context().get_parameter_source
    for name in sorted(names):
        if source_of(name) is click.core.ParameterSource.COMMANDLINE:
            raise ValueError(f"{flag_of(name)}: {why}")


def flag_of(name: str) -> str:
    """The flag of an option's name."""
    return f"--{name.replace('_', '-')}"


def _with_flags(options: abc.Iterable[Option], command: Command) -> Command:
    for each in reversed(list(options)):
        default = None if each.default is MISSING else _MAX_TOKENS if each.name == "max_tokens" else each.default
        shape: dict[str, Any] = {"type": _type(each)}
        name = flag_of(each.name)
        if each.kinds == (bool,):
            name, shape = f"{name}/--no-{name[2:]}", {}
        elif abc.Sequence[str] in each.kinds:
            shape = {"multiple": True}
        command = click.option(name, default=default, show_default=default is not None, help=each.help, **shape)(
            command
        )
    return command


def _type(option: Option) -> Any:
    if option.choices and int not in option.kinds:
        return click.Choice(option.choices, case_sensitive=all(isinstance(each, str) for each in option.choices))
    return next((kind for kind in (str, int, float) if kind in option.kinds), str)


def _checked(_: Any, __: Any, folder: Path | None) -> Path | None:
    check_profile(folder)
    return folder


profile_option = click.option(
    "--profile",
    type=click.Path(path_type=Path),
    callback=_checked,
    help="Write a trace of the run (jax.profiler) into this folder.",
)
n_option = int_option("--n", 1, "Sequences per prompt.")
temperature_option = click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
