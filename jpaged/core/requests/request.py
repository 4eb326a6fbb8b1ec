"""What a user asks: a frozen Request, why its sequences end, and when things happened to it."""

from dataclasses import dataclass, field
from enum import StrEnum

from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and what is wanted of it. With `beam`, `params` are what `beam_params` makes of it.

    `seed` is the resolved 64-bit seed of its samples, `arrival` is in seconds of the engine's clock. `eos_token_ids`
    end a sequence unless `params.ignore_eos`. The lowest `priority` goes first, under that policy. `cache_salt` keeps
    its cached prefix apart from that of requests with another salt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    beam: BeamSearchParams | None = None
    priority: int = 0
    seed: int = 0
    arrival: float = 0.0
    prompt: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    cache_salt: str | None = None

    @property
    def width(self) -> int:
        """How many sequences it runs at once: the beams of a beam search, else best_of or n."""
        return self.params.num_sequences if self.beam is None else self.beam.beam_width


def beam_params(beam: BeamSearchParams, num_stop_ids: int) -> SamplingParams:
    """The sampling parameters under which the beams of a search run: greedy, the best continuations reported."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=beam.max_tokens,
        ignore_eos=beam.ignore_eos,
        logprobs=candidates_wanted(beam.beam_width, 0 if beam.ignore_eos else num_stop_ids),
        include_stop_str_in_output=beam.include_stop_str_in_output,
    )


def candidates_wanted(width: int, num_stop_ids: int) -> int:
    """How many of a beam's likeliest tokens a search looks at: enough that `width` of them do not end it."""
    return width + num_stop_ids


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the engine's clock; None: not yet.

    `first_scheduled` and `first_token` are set once: a preemption does not move them. `itl` has the seconds between
    one token and the next of each sequence, in the order in which they came (of a beam search: between its steps).
    `num_preemptions` counts all, `num_preemptions_swap` those that kept the KV on the host.
    """

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    num_preemptions: int = 0
    num_preemptions_swap: int = 0
    num_cached_tokens: int = 0
    itl: list[float] = field(default_factory=list[float])

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival to the first step that computed a token of it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival
