"""What a workload is made of, in a config's words.

Plain numbers and names, so a spec can stand in a config file; every error names field, value and remedy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jpaged.config.declaration import require_bool, require_choice, require_int, require_text
from jpaged.workloads.arrivals import require_positive, require_rate
from jpaged.workloads.workload import MAX_TOKENS

ARRIVALS = ("poisson", "gamma", "uniform", "recorded", "all_at_once", "paper")
ROWS = ("in_order", "sampled")
TOO_LONG = ("drop", "refuse")
MADE = ("constant", "uniform")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A file of requests: where it is, where its numbers are from, and under which licence they may be passed on.

    `prefix_unit`: the tokens that each of its hash_ids stands for, where the file has some and does not say.
    """

    path: Path
    source: str
    licence: str
    prefix_unit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Which lengths arrive when.

    `lengths`: a distribution (see LENGTHS), "constant", "uniform", a file of the registry given to `build_workload`,
    or the path of a file. For "constant" `prompt_tokens` and `output_tokens` are numbers, for "uniform" each is
    (lowest, highest).

    `arrivals`: "poisson", "gamma" (of shape `burstiness`, and gaps stretched to meet the rate exactly with
    `rescale_gaps`) or "uniform" at `rate` per second; "recorded" in the file, at `time_scale` times their times or, if
    `rate` is given, scaled to that mean rate; "all_at_once"; "paper": the recipe of the paper's traces,
    whose requests have less than 2,048 tokens.

    `duration_s` or `num_requests` says how many; without either a file's requests all come, once. `rows`: a file's
    requests come "in_order", or "sampled" with replacement. Each prompt has `shared_prefix_tokens` more, all the same.
    Outputs are cut to `max_output_tokens`. Requests of more than `max_model_len` tokens are too long: "drop" passes
    over them and counts them in `Workload.num_dropped` (the rate stays as asked, but for recorded arrivals), "refuse"
    raises ValueError.
    """

    lengths: str = "sharegpt"
    arrivals: str = "poisson"
    rate: float | None = None
    duration_s: float | None = None
    num_requests: int | None = None
    seed: int = 0
    burstiness: float = 1.0
    rescale_gaps: bool = False
    time_scale: float = 1.0
    rows: str = "in_order"
    max_model_len: int | None = None
    max_output_tokens: int | None = None
    too_long: str = "drop"
    shared_prefix_tokens: int = 0
    prompt_tokens: int | tuple[int, int] | None = None
    output_tokens: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require_text("lengths", self.lengths)
        require_choice("arrivals", self.arrivals, ARRIVALS)
        require_choice("rows", self.rows, ROWS)
        require_choice("too_long", self.too_long, TOO_LONG)
        require_bool("rescale_gaps", self.rescale_gaps)
        require_int("seed", self.seed, 0, (1 << 32) - 1)
        require_int("shared_prefix_tokens", self.shared_prefix_tokens, 0, MAX_TOKENS)
        for name, low in (("num_requests", 1), ("max_model_len", 2), ("max_output_tokens", 1)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), low, None)
        if self.duration_s is not None:
            require_positive("duration_s", self.duration_s)
        require_positive("burstiness", self.burstiness, low=1e-3)
        require_positive("time_scale", self.time_scale)
        self._check_arrivals()
        self._check_made_lengths()

    def _check_arrivals(self) -> None:
        if self.duration_s is not None and self.num_requests is not None:
            raise ValueError(
                f"duration_s={self.duration_s}: num_requests={self.num_requests} says already how many; give one"
            )
        if self.rate is not None:
            require_rate(self.rate)
            if self.arrivals == "all_at_once":
                raise ValueError(f"rate={self.rate}: all_at_once has no rate; leave it out")
        elif self.arrivals not in ("recorded", "all_at_once"):
            raise ValueError(f"rate=None: {self.arrivals} arrivals need a rate; give requests per second")
        if self.arrivals == "paper" and (self.duration_s is None or self.rows != "in_order"):
            raise ValueError(
                f"duration_s={self.duration_s!r}, rows={self.rows!r}: the paper's recipe makes a trace of a duration "
                "out of rows in order; give duration_s and leave rows out"
            )
        if self.arrivals == "all_at_once" and self.duration_s is not None:
            raise ValueError(f"duration_s={self.duration_s}: all_at_once takes no time; give num_requests")
        if self.arrivals == "recorded" and self.rows != "in_order":
            raise ValueError(f"rows={self.rows!r}: recorded arrivals belong to rows in order; leave rows out")
        if self.time_scale != 1.0 and (self.arrivals != "recorded" or self.rate is not None):
            raise ValueError(f"time_scale={self.time_scale}: is of recorded arrivals without a rate; leave it out")
        if self.burstiness != 1.0 and self.arrivals != "gamma":
            raise ValueError(
                f"burstiness={self.burstiness}: is of gamma arrivals; set arrivals to gamma or leave it out"
            )
        if self.rescale_gaps and (self.arrivals not in ("poisson", "gamma") or self.duration_s is not None):
            raise ValueError("rescale_gaps=True: is of poisson or gamma arrivals of a number of requests; leave it out")

    def _check_made_lengths(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            value: Any = getattr(self, name)
            if self.lengths not in MADE:
                if value is not None:
                    raise ValueError(f"{name}={value!r}: is of constant and uniform lengths; leave it out")
            elif self.lengths == "constant":
                require_int(name, value, 1, MAX_TOKENS - 1)
            else:
                if not isinstance(value, tuple | list) or len(value) != 2:
                    raise ValueError(f"{name}={value!r}: must be (lowest, highest) for uniform lengths")
                require_int(f"the lowest of {name}", value[0], 1, MAX_TOKENS - 1)
                require_int(f"the highest of {name}", value[1], value[0], MAX_TOKENS - 1)
                # A config file has lists.
                object.__setattr__(self, name, tuple(value))
