"""jpaged: PagedAttention in JAX and Pallas.

The public names, loaded when they are first used: `import jpaged` loads neither jax nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jpaged.core.errors import EngineFailed, QueueFull, RequestRefused
    from jpaged.core.requests.response import CompletionOutput, Logprob, RequestOutput
    from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
    from jpaged.serving.llm import LLM

__version__ = "0.1.0"

_HOMES = {
    "BeamSearchParams": "jpaged.core.requests.sampling_params",
    "CompletionOutput": "jpaged.core.requests.response",
    "EngineFailed": "jpaged.core.errors",
    "LLM": "jpaged.serving.llm",
    "Logprob": "jpaged.core.requests.response",
    "QueueFull": "jpaged.core.errors",
    "RequestOutput": "jpaged.core.requests.response",
    "RequestRefused": "jpaged.core.errors",
    "SamplingParams": "jpaged.core.requests.sampling_params",
}

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineFailed",
    "Logprob",
    "QueueFull",
    "RequestOutput",
    "RequestRefused",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jpaged' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
