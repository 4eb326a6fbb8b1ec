"""Flags that several commands share, and how a user's mistake leaves the program.

Lives here: engine_options, sampling_options, beam_options, json_option, UserErrorGroup.
Promises: a flag sets the field of its name in EngineOptions, SamplingParams or BeamSearchParams; a mistake is one line
and exit code 2.
Must not know: what a command does.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from jpaged.config.engine import PARALLEL_STYLES, PREEMPTION_MODES, SCHEDULING_POLICIES
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams

Command = Callable[..., Any]

_ENGINE = (
    click.option("--model", default="smollm2-135m", show_default=True, help="Name, folder, .gguf file or hub id."),
    click.option("--tokenizer", default=None, help="Folder or .gguf file of another tokenizer."),
    click.option("--revision", default=None, help="Branch, tag or commit on the hub."),
    click.option(
        "--load-format",
        type=click.Choice(["auto", "safetensors", "gguf", "dummy"]),
        default="auto",
        show_default=True,
        help="dummy: random weights of the model's shape.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "bfloat16", "float16"]),
        default="float32",
        show_default=True,
        help="Weights and activations.",
    ),
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16", "int8", "fp8_e4m3", "fp8_e5m2"]),
        default="auto",
        show_default=True,
        help="Pages; auto: as --dtype.",
    ),
    click.option("--page-size", type=int, default=16, show_default=True, help="Tokens a page."),
    click.option("--num-pages", type=int, default=None, help="Usable pages of the pool."),
    click.option("--kv-memory", default=None, help='Size of the pool in bytes, such as "512MiB", or "auto".'),
    click.option("--max-num-seqs", type=int, default=16, show_default=True, help="Sequences that run at once."),
    click.option(
        "--max-num-batched-tokens",
        type=int,
        default=512,
        show_default=True,
        help="Tokens that a step computes at most.",
    ),
    click.option(
        "--max-model-len", type=int, default=None, help="Prompt + output; default: the model's, or the pool's."
    ),
    click.option("--long-prefill-token-threshold", type=int, default=None, help="Prompt tokens a step and request."),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=True,
        show_default=True,
        help="Reuse the pages of equal prefixes.",
    ),
    click.option("--num-host-pages", type=int, default=None, help="Pages to swap to on the host; default: none."),
    click.option("--swap-space", default=None, help='The same in bytes, or such as "1GiB".'),
    click.option(
        "--preemption-mode",
        type=click.Choice(PREEMPTION_MODES),
        default="auto",
        show_default=True,
        help="auto: recompute one sequence, swap several.",
    ),
    click.option(
        "--scheduling-policy",
        type=click.Choice(SCHEDULING_POLICIES),
        default="fcfs",
        show_default=True,
        help="Who goes first.",
    ),
    click.option(
        "--admission-policy",
        default="in_order",
        show_default=True,
        help="in_order, longest_prefix, or an import path module:name.",
    ),
    click.option("--victim-policy", default="last", show_default=True, help="Who is preempted: last, or module:name."),
    click.option(
        "--eviction-policy", default="lru", show_default=True, help="Which idle page goes: lru, or module:name."
    ),
    click.option(
        "--max-overtakes", type=int, default=16, show_default=True, help="Later requests that may pass a waiting one."
    ),
    click.option("--attention-implementation", default=None, help="reference, xla or triton; default: the platform's."),
    click.option(
        "--warmup",
        type=click.Choice(["lazy", "full"]),
        default="lazy",
        show_default=True,
        help="Compile each program when it pays, or all before the first request.",
    ),
    click.option(
        "--async-scheduling/--no-async-scheduling",
        default=True,
        show_default=True,
        help="Plan a step while the one before it runs.",
    ),
    click.option(
        "--tensor-parallel-size", type=int, default=1, show_default=True, help="Devices that share each layer."
    ),
    click.option(
        "--parallel-style",
        type=click.Choice(PARALLEL_STYLES),
        default="shard_map",
        show_default=True,
        help="Collectives written down, or placed by the compiler.",
    ),
    click.option("--coordinator", default=None, help="Where several processes meet: HOST:PORT, or auto (SLURM, MPI)."),
    click.option("--num-processes", type=int, default=None, help="How many they are."),
    click.option("--process-id", type=int, default=None, help="Which of them this is; 0 answers."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of every draw (and of dummy weights)."),
)
ENGINE_FIELDS = (
    "model", "tokenizer", "revision", "load_format", "dtype", "kv_cache_dtype", "page_size", "num_pages", "kv_memory",
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold", "enable_prefix_caching",
    "num_host_pages", "swap_space", "preemption_mode", "scheduling_policy", "admission_policy", "victim_policy",
    "eviction_policy", "max_overtakes", "attention_implementation", "warmup", "async_scheduling",
    "tensor_parallel_size",
    "parallel_style", "coordinator", "num_processes", "process_id", "seed",
)  # fmt: skip

_SAMPLING = (
    click.option("--max-tokens", type=int, default=64, show_default=True, help="New tokens at most."),
    click.option("--min-tokens", type=int, default=0, show_default=True, help="No end before that many."),
    click.option("--temperature", type=float, default=1.0, show_default=True, help="0 is greedy."),
    click.option("--top-p", type=float, default=1.0, show_default=True),
    click.option("--top-k", type=int, default=0, show_default=True, help="0 is off."),
    click.option("--min-p", type=float, default=0.0, show_default=True),
    click.option("--repetition-penalty", type=float, default=1.0, show_default=True),
    click.option("--presence-penalty", type=float, default=0.0, show_default=True),
    click.option("--frequency-penalty", type=float, default=0.0, show_default=True),
    click.option("--n", type=int, default=1, show_default=True, help="Sequences a prompt."),
    click.option("--stop", multiple=True, help="Text that ends a sequence; may be given several times."),
    click.option("--ignore-eos", is_flag=True, help="The model's end-of-sequence token ends nothing."),
    click.option("--logprobs", type=int, default=None, help="Most likely ids to report a token (needs --json)."),
)
SAMPLING_FIELDS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "n", "stop", "ignore_eos", "logprobs",
)  # fmt: skip

_BEAM = (
    click.option("--beam-width", type=int, default=None, help="Beam search with so many beams, instead of sampling."),
    click.option(
        "--length-penalty", type=float, default=1.0, show_default=True, help="A beam's score is over length**it."
    ),
    click.option(
        "--early-stopping",
        type=click.Choice(["true", "false", "never"]),
        default="false",
        show_default=True,
        help="When a beam search ends: see BeamSearchParams.",
    ),
)
BEAM_FIELDS = ("beam_width", "length_penalty", "early_stopping")
# The sampling flags that mean something to a beam search too.
_SHARED_FIELDS = ("max_tokens", "ignore_eos")


def engine_options(command: Command) -> Command:
    """The flags of EngineOptions."""
    return _apply(_ENGINE, command)


def sampling_options(command: Command) -> Command:
    """The flags of SamplingParams."""
    return _apply(_SAMPLING, command)


def beam_options(command: Command) -> Command:
    """The flags of BeamSearchParams that are none of SamplingParams."""
    return _apply(_BEAM, command)


def take_params(options: dict[str, Any]) -> SamplingParams | BeamSearchParams:
    """What the sampling and beam flags ask for; they are taken out of `options`.

    Raises ValueError, also for a flag that the chosen kind of search would ignore.
    """
    sampling, beam = pick(options, SAMPLING_FIELDS), pick(options, BEAM_FIELDS)
    if beam["beam_width"] is None:
        _refuse_given(BEAM_FIELDS, "a beam search's flag: add --beam-width")
        return SamplingParams(**sampling)
    ignored = tuple(name for name in SAMPLING_FIELDS if name not in _SHARED_FIELDS)
    if sampling["temperature"] == 0:
        ignored = tuple(name for name in ignored if name != "temperature")
    _refuse_given(ignored, "a beam search does not sample: leave it out, or leave out --beam-width")
    beam["early_stopping"] = {"true": True, "false": False}.get(beam["early_stopping"], beam["early_stopping"])
    return BeamSearchParams(**beam, **{name: sampling[name] for name in _SHARED_FIELDS})


def _refuse_given(names: tuple[str, ...], why: str) -> None:
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise ValueError(f"--{name.replace('_', '-')}: {why}")


def json_option(command: Command) -> Command:
    """`--json`: one JSON document on standard output, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def pick(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The entries of `values` with these names, taken out of it."""
    return {name: values.pop(name) for name in names}


def print_json(document: Any) -> None:
    """The document in strict JSON."""
    click.echo(json.dumps(document, allow_nan=False))


class UserError(click.ClickException):
    """A mistake of the user's: one line, exit code 2."""

    exit_code = 2


class UserErrorGroup(click.Group):
    """Commands whose ValueError (what a user can mend) ends the program in one line, without a traceback."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """The context of the program's own flags."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise _one_line(error, "jpaged") from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _one_line(error, f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()) from error
        except (ValueError, NotImplementedError) as error:
            raise UserError(" ".join(str(error).split())) from error
        except BrokenPipeError:
            # The reader has gone (`| head`): nothing is left to say, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


def _one_line(error: click.UsageError, command: str) -> click.ClickException:
    """A wrong flag or command without the usage lines; a command without arguments still shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    if error.ctx is not None:
        command = error.ctx.command_path
    return UserError(f"{' '.join(error.format_message().split())} (see {command} --help)")


def _apply(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
