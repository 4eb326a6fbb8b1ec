"""jpaged: PagedAttention in JAX and Pallas.

Lives here: the public names, loaded when they are first used.
Promises: `import jpaged` loads neither jax nor numpy.
Must not know: anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jpaged.core.request import CompletionOutput, Logprob, RequestOutput
    from jpaged.core.sampling_params import BeamSearchParams, SamplingParams
    from jpaged.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "BeamSearchParams", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "jpaged.llm",
    "SamplingParams": "jpaged.core.sampling_params",
    "BeamSearchParams": "jpaged.core.sampling_params",
    "RequestOutput": "jpaged.core.request",
    "CompletionOutput": "jpaged.core.request",
    "Logprob": "jpaged.core.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jpaged' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
