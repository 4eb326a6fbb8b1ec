"""What a user may ask about how tokens are chosen and when a sequence ends.

A SamplingParams that exists is valid on its own; what depends on a model is checked in admission.py.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import Any, cast

from jpaged.config.declaration import about, check_options, option, require_int, require_number, shown

MAX_N = 16384
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 512
MAX_STOP_TOKEN_IDS = 60
MAX_STOP_STRINGS = 64
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. Names and defaults are vLLM's.

    With `best_of` the `n` sequences of the highest summed log probability are returned, best first. A `temperature`
    below 1e-5 is greedy, a `top_k` of -1 is off, a `seed` of -1 is None. `stop` strings are left out of the text unless
    `include_stop_str_in_output`. `max_tokens` None: as many as the model's length allows.
    Raises ValueError, naming the field, the value and the remedy.
    """

    n: int = option(1, "Sequences per prompt.", low=1, high=MAX_N)
    best_of: int | None = option(
        None,
        "Sequences to generate, of which the n most probable are returned; default: n.",
        low=1,
        high=MAX_N,
        flag=False,
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of tokens that the output has; 0 is off.", low=-2.0, high=2.0
    )
    frequency_penalty: float = option(
        0.0, "Subtracted from a token's logit for each time the output has it; 0 is off.", low=-2.0, high=2.0
    )
    repetition_penalty: float = option(
        1.0, "Divides the logits of tokens that prompt or output have; 1 is off.", low=0.0, high=100.0
    )
    temperature: float = option(1.0, "Temperature of sampling; 0 is greedy.", low=0.0, high=2.0)
    top_p: float = option(
        1.0, "Sample from the most likely tokens that together have this probability; 1 is off.", low=0.0, high=1.0
    )
    top_k: int = option(0, "Sample from this many most likely tokens; 0 is off.", low=-1)
    min_p: float = option(
        0.0, "Sample from tokens at least this fraction as likely as the most likely; 0 is off.", low=0.0, high=1.0
    )
    seed: int | None = option(
        None, "Seed of this request; default: from the engine's seed.", low=-1, high=2**63 - 1, flag=False
    )
    stop: abc.Sequence[str] | str | None = option(None, "Text that ends a sequence; may be given several times.")
    stop_token_ids: abc.Sequence[int] | None = option(
        None, "Ids that end a sequence, beside the model's end-of-sequence ids.", flag=False
    )
    ignore_eos: bool = option(False, "Go on after the model's end-of-sequence token.")
    max_tokens: int | None = option(16, "New tokens per sequence, at most.", low=1)
    min_tokens: int = option(0, "New tokens before a sequence may end.", low=0)
    logprobs: int | None = option(
        None, "Most likely ids to report per token, beside the chosen one.", low=0, high=MAX_LOGPROBS
    )
    prompt_logprobs: int | None = option(
        None, "Most likely ids to report per prompt token.", low=0, high=MAX_LOGPROBS, flag=False
    )
    detokenize: bool = option(True, "Give the text, not only the ids.", flag=False)
    skip_special_tokens: bool = option(True, "Leave special tokens out of the text.", flag=False)
    include_stop_str_in_output: bool = option(False, "Keep the stop string in the text.", flag=False)
    logit_bias: abc.Mapping[int, float] | None = option(
        None, "Number added to the logit of each of these ids, clipped to [-100, 100].", flag=False
    )

    def __post_init__(self) -> None:
        check_options(self)
        self._check_numbers()
        self._check_stops()
        self._check_logit_bias()
        if self.num_sequences > 1 and self.greedy:
            name = "n" if self.best_of is None else "best_of"
            raise ValueError(f"{name}={self.num_sequences} with temperature={self.temperature}: greedy sequences would "
                             f"all be the same; set {name}=1 or a temperature above 0")  # fmt: skip

    @property
    def num_sequences(self) -> int:
        """How many sequences run."""
        return self.n if self.best_of is None else self.best_of

    @property
    def chooses(self) -> bool:
        """Whether some of the sequences that run are not returned."""
        return self.num_sequences > self.n

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely ids are reported beside the chosen one; None: not even that one's logprob."""
        return 0 if self.logprobs is None and self.chooses else self.logprobs

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens that came before, beyond the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def _check_numbers(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of={self.best_of}: must be at least n={self.n}, the number returned")
        if self.top_p == 0.0:
            raise ValueError("top_p=0: must be above 0; for greedy decoding set temperature=0")
        if self.repetition_penalty == 0.0:
            raise ValueError("repetition_penalty=0: must be above 0; 1 is off")
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens}: must be at most max_tokens={self.max_tokens}")

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(_sequence("stop", self.stop))
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop={shown(self.stop)}: every entry must be a string that is not empty")
        if len(stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(stop)} entries: give at most {MAX_STOP_STRINGS}")
        if stop and not self.detokenize:
            raise ValueError("stop with detokenize=False: stop strings need text; set detokenize=True")
        ids = tuple(_sequence("stop_token_ids", self.stop_token_ids))
        for token in ids:
            require_int("stop_token_ids", token, 0, None)
        if len(ids) > MAX_STOP_TOKEN_IDS:
            raise ValueError(f"stop_token_ids has {len(ids)} entries: give at most {MAX_STOP_TOKEN_IDS}")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)

    def _check_logit_bias(self) -> None:
        given: Any = self.logit_bias
        if given is None:
            return
        if not isinstance(given, abc.Mapping):
            raise ValueError(f"logit_bias={shown(given)}: give a mapping of token id to number")
        bias = cast(abc.Mapping[Any, Any], given)
        if len(bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias has {len(bias)} entries: give at most {MAX_LOGIT_BIAS}")
        clipped: dict[int, float] = {}
        for token, value in bias.items():
            require_int("logit_bias id", token, 0, None)
            require_number(f"logit_bias[{shown(token)}]", value, None, None)
            clipped[token] = max(-100.0, min(100.0, float(value)))
        object.__setattr__(self, "logit_bias", clipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """How a beam search runs: `beam_width` hypotheses, at most `max_tokens` new tokens each.

    A finished hypothesis scores its summed log probability over `length ** length_penalty`, where `length` counts
    the generated tokens, the end-of-sequence token included. `early_stopping`: True ends the search of a prompt as
    soon as `beam_width` hypotheses have finished; False when the best running beam is no better than the worst of
    them at its present length; "never" when it could not become better at any length.
    Raises ValueError, naming the field, the value and the remedy.
    """

    beam_width: int = field(
        metadata=about("Beam search with this many beams, instead of sampling.", low=1, high=MAX_LOGPROBS // 2)
    )
    max_tokens: int = field(metadata=about("New tokens per hypothesis, at most.", low=1))
    ignore_eos: bool = option(False, "Go on after the model's end-of-sequence token.")
    length_penalty: float = option(
        1.0, "A finished beam scores its log probability divided by length ** penalty.", low=-100.0, high=100.0
    )
    early_stopping: bool | str = option(
        False, "When a beam search ends: see BeamSearchParams.", choices=(False, True, "never")
    )
    include_stop_str_in_output: bool = option(False, "Keep the end-of-sequence text.", flag=False)

    def __post_init__(self) -> None:
        check_options(self)


def _sequence(name: str, value: Any) -> abc.Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, abc.Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{name}={shown(value)}: must be a list")
    return value  # pyright: ignore[reportUnknownVariableType]
