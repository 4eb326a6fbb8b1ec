"""What a user may ask about how tokens are chosen and when a sequence ends.

Lives here: SamplingParams and the checks of every field.
Promises: a SamplingParams that exists is valid on its own; what depends on a model is checked in admission.py.
Must not know: how a sampler works.
"""

import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

MAX_N = 16384
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 512
MAX_STOP_TOKEN_IDS = 60
MAX_STOP_STRINGS = 64
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. Names and defaults are vLLM's.

    `n`: sequences to return; `best_of`: sequences to generate, of which the `n` with the highest summed log
    probability are returned, best first (None: n). `temperature`: 0 (below 1e-5) is greedy. `top_k`: 0 or -1 is off.
    `top_p` in (0, 1], `min_p` in [0, 1]. `repetition_penalty` looks at prompt and output, `presence_penalty` and
    `frequency_penalty` at the output alone. `seed`: None draws one from the engine's seed and the order of the
    requests (-1 is None).
    `stop`: strings that end a sequence (left out of the text unless `include_stop_str_in_output`).
    `stop_token_ids`: ids that end it, beside the model's own end-of-sequence ids. `ignore_eos`: those do not end it.
    `max_tokens`: None is "as many as the model's length allows". `min_tokens`: no end before that many.
    `logprobs`, `prompt_logprobs`: how many of the most likely ids to report a position, beside the chosen one.
    `logit_bias`: id -> number added to its logit, clipped to [-100, 100].

    Raises ValueError, naming the field, the value and the remedy.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        self._check_stops()
        self._check_logit_bias()
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            check_bool(name, getattr(self, name))
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
        """How many of the most likely ids a step reports beside the chosen one; None: not even that one's logprob."""
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
        check_int("n", self.n, 1, MAX_N)
        if self.best_of is not None:
            check_int("best_of", self.best_of, 1, MAX_N)
            if self.best_of < self.n:
                raise ValueError(f"best_of={self.best_of}: must be at least n={self.n}, the number returned")
        check_float("temperature", self.temperature, 0.0, 2.0)
        check_float("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p=0: must be above 0; for greedy decoding set temperature=0")
        check_int("top_k", self.top_k, -1, None)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0)
        if self.repetition_penalty == 0.0:
            raise ValueError("repetition_penalty=0: must be above 0; 1 is off")
        if self.seed is not None:
            check_int("seed", self.seed, -1, 2**63 - 1)
            if self.seed == -1:
                object.__setattr__(self, "seed", None)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, None)
        check_int("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens}: must be at most max_tokens={self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(_sequence("stop", self.stop))
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop={_shown(self.stop)}: every entry must be a string that is not empty")
        if len(stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(stop)} entries: give at most {MAX_STOP_STRINGS}")
        if stop and not self.detokenize:
            raise ValueError("stop with detokenize=False: stop strings need text; set detokenize=True")
        ids = tuple(_sequence("stop_token_ids", self.stop_token_ids))
        for token in ids:
            check_int("stop_token_ids", token, 0, None)
        if len(ids) > MAX_STOP_TOKEN_IDS:
            raise ValueError(f"stop_token_ids has {len(ids)} entries: give at most {MAX_STOP_TOKEN_IDS}")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)

    def _check_logit_bias(self) -> None:
        given: Any = self.logit_bias
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise ValueError(f"logit_bias={_shown(given)}: give a mapping of token id to number")
        bias = cast(Mapping[Any, Any], given)
        if len(bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias has {len(bias)} entries: give at most {MAX_LOGIT_BIAS}")
        clipped: dict[int, float] = {}
        for token, value in bias.items():
            check_int("logit_bias id", token, 0, None)
            check_float(f"logit_bias[{_shown(token)}]", value, None, None)
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

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, 1, MAX_LOGPROBS // 2)
        check_int("max_tokens", self.max_tokens, 1, None)
        check_float("length_penalty", self.length_penalty, -100.0, 100.0)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            check_bool(name, getattr(self, name))
        if self.early_stopping != "never":
            check_bool("early_stopping", self.early_stopping)


def check_int(name: str, value: Any, low: int | None, high: int | None) -> None:
    """Raise ValueError unless `value` is an int (not a bool) in [low, high]; None leaves a side open."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={_shown(value)}: must be an integer")
    _check_range(name, value, low, high)


def check_float(name: str, value: Any, low: float | None, high: float | None) -> None:
    """Raise ValueError unless `value` is a finite number (not a bool) in [low, high]; None leaves a side open."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={_shown(value)}: must be a number")
    # An int may be too large for a float, and for isfinite.
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"{name}={_shown(value)}: must be finite")
    _check_range(name, value, low, high)


def check_bool(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={_shown(value)}: use True or False")


def _check_range(name: str, value: float, low: float | None, high: float | None) -> None:
    if low is not None and value < low:
        raise ValueError(f"{name}={_shown(value)}: must be at least {low}")
    if high is not None and value > high:
        raise ValueError(f"{name}={_shown(value)}: must be at most {high}")


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{name}={_shown(value)}: must be a list")
    return value  # pyright: ignore[reportUnknownVariableType]


def _shown(value: Any) -> str:
    """The value as an error message shows it: short, and in one line."""
    return " ".join(reprlib.repr(value).split())
