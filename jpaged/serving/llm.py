"""The offline engine that scripts use: prompts in, outputs out.

Results come in the order of the prompts; what one call does never ends or changes another's requests.
"""

import hashlib
import reprlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from jpaged.config.declaration import with_keywords_of
from jpaged.config.options import EngineOptions
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.errors import REFUSALS, EngineFailed
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.response import CompletionDelta, RequestOutput, Response
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.serving.loading import load_engine
from jpaged.text.prompts import Prompt, match_params, match_priority, parse_prompts

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model with its engine, and the `loop` that all calls share. Its arguments are the fields of EngineOptions.

    Names are vLLM's where it has the option, with `page_size`, `num_pages` (usable pages; the null page is one more)
    and `kv_memory` for the pool. Raises ValueError with the remedy for anything that a user can mend.
    """

    @with_keywords_of(EngineOptions)
    def __init__(self, *model: Any, **options: Any) -> None:
        try:
            self.options = EngineOptions(*model, **options)
        except TypeError as error:
            raise ValueError(f"{str(error).replace('EngineOptions.__init__()', 'LLM()')}; see help(LLM)") from None
        loaded = load_engine(self.options)
        self.engine = loaded.engine
        self.runner = loaded.runner
        self.tokenizer = loaded.tokenizer
        self.config = loaded.config
        self.attention_implementation = loaded.attention_implementation
        self.load_seconds = loaded.load_seconds
        self.loop = EngineLoop(self.engine, self.tokenizer)
        self._num_requests = 0

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Run the prompts to their end as one continuous batch; results are in the order of the prompts.

        `prompts`: a text, a list of ids, `{"prompt_token_ids": ids}`, or a list of any of these. One
        `sampling_params` is for all of them, a list has one for each. `priority` has one integer per prompt;
        the lowest goes first, under scheduling_policy="priority". Raises RequestRefused (a ValueError) or QueueFull,
        before anything runs, if any of them cannot be served. If a step fails, its exception ends the call.
        """
        return self._finish(self._add(prompts, sampling_params, priority), use_tqdm)

    def stream(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> Generator[CompletionDelta, None, list[RequestOutput]]:
        """Iterate over what each step adds to each sequence, as it comes; the generator returns the final outputs.

        The arguments are `generate`'s, and are checked at once. Closing the iterator aborts what still runs. Where a
        step fails under another call on this engine, the stream ends with `finish_reason="abort"`.
        """
        given = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params]
        if any(isinstance(params, SamplingParams) and params.chooses for params in given):
            raise ValueError("best_of above n: which sequences are returned is known at the end only; use generate")
        stream = self._stream(self._add(prompts, sampling_params, priority))
        # A generator that was never started has no `finally` to run when it is closed: start it.
        next(stream)
        return stream  # pyright: ignore[reportReturnType]

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """The `beam_width` best hypotheses of each prompt, the best first in `outputs`, as Hugging Face finds them.

        The beams of a prompt share its pages, and those of every prefix that they have in common. `prompts` and
        `priority` as for `generate`. Raises ValueError, before anything runs, if any of them cannot be served.
        """
        if not isinstance(params, BeamSearchParams):
            raise ValueError(f"params={reprlib.repr(params)}: give a BeamSearchParams")
        return self._finish(self._add(prompts, params, priority), use_tqdm)

    def pin_prefix(self, name: str, prompt: Any) -> int:
        """Compute the KV of a prefix that many prompts will begin with, and hold its full pages until `unpin_prefix`.

        Returns how many of its tokens are held: a multiple of the page size. Raises ValueError.
        """
        self.engine.check_pin(name)
        prompts = self._parse(prompt)
        if len(prompts) != 1:
            raise ValueError(f"prompt has {len(prompts)} entries: a pinned prefix is one prompt")
        ids = prompts[0].token_ids
        self.generate([ids], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False)
        return self.engine.pin(name, ids)

    def unpin_prefix(self, name: str) -> None:
        """Let go of a pinned prefix; it stays cached until its pages are needed. Raises ValueError."""
        self.engine.unpin(name)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several: lists of `{"role": ..., "content": ...}`. Raises ValueError."""
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
            raise ValueError(
                f"messages={reprlib.repr(messages)}: give a list of {{'role': ..., 'content': ...}}, or several lists"
            )
        conversations = [messages] if isinstance(messages[0], Mapping) else messages
        prompts = [
            self.render_chat(conversation, add_generation_prompt=add_generation_prompt, **template_options)
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(self, messages: Any, *, add_generation_prompt: bool = True, **template_options: Any) -> list[int]:
        """The token ids of a conversation, laid out by the model's chat template. Raises ValueError."""
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer, so no chat template: use generate with token ids")
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, **template_options
        )

    def stats(self) -> dict[str, Any]:
        """Facts of everything run so far; every key is present from the start."""
        stats: dict[str, Any] = self.engine.stats_dict()
        host = self.engine.stats.host_time + self.runner.stages.host_time
        stats["host_ms_per_step"] = 1e3 * host / stats["num_steps"] if stats["num_steps"] else 0.0
        stats["compiled_programs"] = len(self.runner.programs)
        stats["compile_seconds"] = self.runner.programs.seconds
        stats["attention_implementation"] = self.attention_implementation
        stats["config_digest"] = self.config.digest()
        return stats

    def warm_up(self) -> None:
        """Compile every program that any request can need; afterwards nothing compiles."""
        self.runner.warm_up()

    @property
    def step_records(self) -> list[StepRecord]:
        """What each step so far did to the pages. Raises ValueError unless the LLM was made with record_steps=True."""
        if self.engine.recorder is None:
            raise ValueError("no steps were recorded: make the LLM with record_steps=True")
        return self.engine.recorder.records

    def get_tokenizer(self) -> Any:
        """The tokenizer, or None where the model has none."""
        return self.tokenizer

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self.engine.reset_prefix_cache()

    def make_requests(
        self,
        prompts: Any,
        params: SamplingParams | BeamSearchParams | Sequence[SamplingParams] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[Request]:
        """The requests of a call, with ids and seeds of this engine, for `loop.add`. Raises ValueError."""
        parsed = self._parse(prompts)
        beam, eos_token_ids = None, self.config.model.eos_token_ids
        if isinstance(params, BeamSearchParams):
            beam, params = params, beam_params(params, len(eos_token_ids))
        all_params = match_params(params, len(parsed))
        priorities = match_priority(priority, len(parsed), self.config.scheduler.scheduling_policy)
        first = self._num_requests
        self._num_requests += len(parsed)
        return [
            Request(
                request_id=str(number),
                prompt_token_ids=prompt.token_ids,
                params=params,
                beam=beam,
                priority=priority,
                seed=derive_seed(self.config.seed, number) if params.seed is None else params.seed,
                arrival=self.engine.clock.now(),
                prompt=prompt.text,
                cache_salt=prompt.cache_salt,
                eos_token_ids=eos_token_ids,
            )
            for number, (prompt, params, priority) in enumerate(zip(parsed, all_params, priorities, strict=True), first)
        ]

    def _parse(self, prompts: Any) -> list[Prompt]:
        return parse_prompts(prompts, None if self.tokenizer is None else self.tokenizer.encode)

    def _add(self, prompts: Any, params: Any, priority: Any) -> list[Response]:
        requests = self.make_requests(prompts, params, priority)
        try:
            return self.loop.add_all(requests)
        except REFUSALS:
            # A refused call does not change the seeds of the next one.
            self._num_requests -= len(requests)
            raise

    def _finish(self, responses: list[Response], use_tqdm: bool) -> list[RequestOutput]:
        from tqdm import tqdm

        left, tokens = responses, 0
        try:
            with tqdm(total=len(responses), desc="Processed prompts", disable=not use_tqdm, unit="req") as bar:
                while left:
                    self._step()
                    tokens += sum(len(delta.token_ids) for response in left for delta in response.read())
                    before, left = len(left), [response for response in left if not response.finished]
                    if len(left) < before:
                        elapsed = bar.format_dict["elapsed"]
                        bar.set_postfix_str(f"{tokens / max(elapsed, 1e-9):.1f} output tok/s", refresh=False)
                        bar.update(before - len(left))
        finally:
            self._drop(responses)
        return [response.result() for response in responses]

    def _stream(self, responses: list[Response]) -> Generator[CompletionDelta | None, None, list[RequestOutput]]:
        try:
            yield None
            while True:
                # Another call's steps may add to what was read, while the reader of this stream has the word.
                while deltas := [delta for response in responses for delta in response.read()]:
                    yield from deltas
                if all(response.finished for response in responses):
                    return [response.result() for response in responses]
                self._step()
        finally:
            self._drop(responses)

    def _step(self) -> None:
        """One step for every request in the engine, whichever call added it.

        If it fails, this call gets the original exception; the outputs of every other end with "abort".
        """
        error: BaseException | None = None
        try:
            self.loop.step()
        except EngineFailed as failure:
            error = failure.__cause__
        if error is not None:
            raise error

    def _drop(self, responses: list[Response]) -> None:
        for response in responses:
            if not response.finished:
                self.loop.abort(response.request.request_id)


def derive_seed(engine_seed: int, number: int) -> int:
    """The 63-bit seed of the engine's `number`-th request, where the request brings none of its own."""
    digest = hashlib.sha256(f"{engine_seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
