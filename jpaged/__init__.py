"""jpaged: PagedAttention in JAX and Pallas.

Lives here: the public names, loaded when they are first used.
Promises: `import jpaged` loads neither jax nor numpy.
Must not know: anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jpaged.core.requests.request import CompletionOutput, Logprob, RequestOutput
    from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
    from jpaged.serving.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "BeamSearchParams", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "jpaged.serving.llm",
    "SamplingParams": "jpaged.core.requests.sampling_params",
    "BeamSearchParams": "jpaged.core.requests.sampling_params",
    "RequestOutput": "jpaged.core.requests.request",
    "CompletionOutput": "jpaged.core.requests.request",
    "Logprob": "jpaged.core.requests.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jpaged' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
