"""What a caller may pass as prompts and parameters, made uniform; a mistake names the prompt and the remedy."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from jpaged.core.requests.sampling_params import SamplingParams

# Sequences of small integers, but hardly meant as ids.
_BYTES = bytes | bytearray | memoryview


class Prompt(NamedTuple):
    """A prompt's text, if it was given as text, its ids, and what keeps its cached prefix apart from others'."""

    text: str | None
    token_ids: tuple[int, ...]
    cache_salt: str | None = None


def parse_prompts(prompts: Any, encode: Callable[[str], list[int]] | None) -> list[Prompt]:
    """The prompts of a call: a text, a list of ids, a mapping with one of them, or a list of any of these.

    `encode` turns text into ids; None: there is no tokenizer, and text is refused. Raises ValueError.
    """
    if isinstance(prompts, str | Mapping) or _is_ids(prompts):
        prompts = [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, _BYTES):
        raise ValueError(f"prompts={_short(prompts)}: give text, a list of token ids, or a list of either")
    if not prompts:
        raise ValueError("prompts is empty: give at least one prompt, with at least one token")
    return [_parse_one(prompt, f"prompts[{i}]", encode) for i, prompt in enumerate(prompts)]


def match_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One SamplingParams a prompt: the one given for all, or the list of them. Raises ValueError."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ValueError(f"sampling_params={_short(params)}: give a SamplingParams or a list of them")
    if len(params) != count:
        raise ValueError(f"sampling_params has {len(params)} entries for {count} prompts: give one, or one each")
    return list(params)


def match_priority(priority: Sequence[int] | None, count: int, scheduling_policy: str) -> list[int]:
    """One priority a prompt, 0 where none are given. Raises ValueError, also if the policy would ignore them."""
    if priority is None:
        return [0] * count
    if not isinstance(priority, Sequence) or isinstance(priority, str | _BYTES):
        raise ValueError(f"priority={_short(priority)}: give a list with one integer a prompt")
    for value in priority:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"priority has {_short(value)}: priorities are integers")
    if len(priority) != count:
        raise ValueError(f"priority has {len(priority)} entries for {count} prompts: give one each")
    if scheduling_policy != "priority":
        raise ValueError(
            f"priority={_short(priority)} with scheduling_policy={scheduling_policy!r}: use an LLM with "
            "scheduling_policy='priority'"
        )
    return list(priority)


def _parse_one(prompt: Any, name: str, encode: Callable[[str], list[int]] | None) -> Prompt:
    if isinstance(prompt, Mapping):
        salt = prompt.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise ValueError(f"{name}: cache_salt={_short(salt)} must be a string that is not empty")
        keys = set(prompt) - {"cache_salt"}
        if keys == {"prompt_token_ids"}:
            prompt = prompt["prompt_token_ids"]
            if isinstance(prompt, str):
                raise ValueError(f"{name}: prompt_token_ids is text; pass it as 'prompt'")
        elif keys == {"prompt"}:
            prompt = prompt["prompt"]
        else:
            raise ValueError(f"{name} has the keys {sorted(map(str, keys))}: give either prompt or prompt_token_ids")
        if isinstance(prompt, Mapping):
            raise ValueError(f"{name} has a mapping in a mapping: give text or a list of token ids")
        return _parse_one(prompt, name, encode)._replace(cache_salt=salt)
    if isinstance(prompt, str):
        return _parse_text(prompt, name, encode)
    if isinstance(prompt, Sequence) and not isinstance(prompt, _BYTES):
        if not prompt:
            raise ValueError(f"{name} is empty: give at least one token")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, Integral):
                raise ValueError(f"{name} has {_short(token)} among its token ids: ids are integers")
        return Prompt(None, tuple(int(token) for token in prompt))
    raise ValueError(f"{name}={_short(prompt)}: give text or a list of token ids")


def _parse_text(text: str, name: str, encode: Callable[[str], list[int]] | None) -> Prompt:
    if not text:
        raise ValueError(f"{name} is empty: give at least one character")
    if encode is None:
        raise ValueError(f"{name} is text, but this model has no tokenizer: give token ids, or pass tokenizer=")
    ids = encode(text)
    if not ids:
        raise ValueError(f"{name} has no tokens once encoded: give at least one")
    return Prompt(text, tuple(ids))


def _is_ids(prompts: Any) -> bool:
    if not isinstance(prompts, Sequence) or isinstance(prompts, str | _BYTES) or not prompts:
        return False
    return all(isinstance(token, Integral) for token in prompts)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
