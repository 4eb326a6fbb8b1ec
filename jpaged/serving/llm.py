"""The offline engine that scripts use: prompts in, outputs out.

Lives here: LLM: generate, stream, chat, and the step loop behind them.
Promises: results come in the order of the prompts; what one call does never ends or changes another's requests.
Must not know: how a step is scheduled, packed or run.
"""

import hashlib
import reprlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from jpaged.config.declaration import with_keywords_of
from jpaged.config.engine import EngineOptions
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.requests.request import CompletionDelta, FinishReason, Request, RequestOutput, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.serving.loading import load_engine
from jpaged.text.prompts import Prompt, match_params, match_priority, parse_prompts
from jpaged.text.responses import Response

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model with its engine. Its arguments are the fields of EngineOptions; `model` may be given by position.

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
        self._responses: dict[str, Response] = {}
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
        `sampling_params` is for all of them, a list has one for each. `priority` has one integer a prompt; the
        lowest goes first, under scheduling_policy="priority". Raises ValueError, before anything runs, if any of
        them cannot be served.
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
        cache = self.engine.scheduler.cache
        cache.check_pin(name)
        encode = None if self.tokenizer is None else self.tokenizer.encode
        prompts = parse_prompts(prompt, encode)
        if len(prompts) != 1:
            raise ValueError(f"prompt has {len(prompts)} entries: a pinned prefix is one prompt")
        ids = list(prompts[0].token_ids)
        self.generate([ids], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False)
        return self.engine.pin(name, tuple(ids))

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
        host = self.engine.stats.host_time + self.runner.host_time
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
        self.engine.scheduler.cache.reset_prefix_cache()

    def _add(self, prompts: Any, sampling_params: Any, priority: Any = None) -> list[Response]:
        encode = None if self.tokenizer is None else self.tokenizer.encode
        parsed = parse_prompts(prompts, encode)
        beam = None
        if isinstance(sampling_params, BeamSearchParams):
            beam = sampling_params
            sampling_params = beam_params(beam, len(self.config.model.eos_token_ids))
        params = match_params(sampling_params, len(parsed))
        priorities = match_priority(priority, len(parsed), self.config.scheduler.scheduling_policy)
        requests = [
            self._request(i, *parts, beam) for i, parts in enumerate(zip(parsed, params, priorities, strict=True))
        ]
        for i, request in enumerate(requests):
            try:
                self._check(request)
            except ValueError as error:
                self.engine.stats.num_requests_refused += 1
                raise ValueError(f"prompts[{i}]: {error}" if len(requests) > 1 else str(error)) from None
        responses = [Response(request, i, self.tokenizer) for i, request in enumerate(requests)]
        for response in responses:
            self.engine.add(response.request)
            self._responses[response.request.request_id] = response
            response.metrics = self.engine.metrics(response.request.request_id)
        self._num_requests += len(requests)
        return responses

    def _check(self, request: Request) -> None:
        if request.params.stop and self.tokenizer is None:
            raise ValueError("stop strings need text, and this model has no tokenizer: use stop_token_ids")
        self.engine.check(request)

    def _request(
        self, offset: int, prompt: Prompt, params: SamplingParams, priority: int, beam: BeamSearchParams | None
    ) -> Request:
        number = self._num_requests + offset
        return Request(
            request_id=str(number),
            prompt_token_ids=prompt.token_ids,
            params=params,
            beam=beam,
            priority=priority,
            seed=derive_seed(self.config.seed, number) if params.seed is None else params.seed,
            arrival=self.engine.clock.now(),
            prompt=prompt.text,
            cache_salt=prompt.cache_salt,
            eos_token_ids=self.config.model.eos_token_ids,
        )

    def _finish(self, responses: list[Response], use_tqdm: bool) -> list[RequestOutput]:
        try:
            self._run(responses, use_tqdm)
        finally:
            self._drop(responses)
        return [response.result() for response in responses]

    def _run(self, responses: list[Response], use_tqdm: bool) -> None:
        from tqdm import tqdm

        left = [response for response in responses if not response.finished]
        tokens = 0
        with tqdm(total=len(responses), desc="Processed prompts", disable=not use_tqdm, unit="req") as bar:
            while left:
                self._step()
                tokens += sum(len(delta.token_ids) for response in left for delta in response.pending)
                for response in left:
                    response.pending.clear()
                finished = [response for response in left if response.finished]
                if finished:
                    left = [response for response in left if not response.finished]
                    elapsed = bar.format_dict["elapsed"]
                    bar.set_postfix_str(f"{tokens / max(elapsed, 1e-9):.1f} output tok/s", refresh=False)
                    bar.update(len(finished))

    def _stream(self, responses: list[Response]) -> Generator[CompletionDelta | None, None, list[RequestOutput]]:
        try:
            yield None
            while True:
                for response in responses:
                    while response.pending:
                        yield response.pending.popleft()
                if all(response.finished for response in responses):
                    return [response.result() for response in responses]
                self._step()
        finally:
            self._drop(responses)

    def _step(self) -> None:
        """One step of the engine, for every request that is in it, whoever added it.

        If it fails or is interrupted, all of them are aborted and know it before the exception goes on: another
        stream must not wait for a request that has gone.
        """
        try:
            for delta in self.engine.step():
                response = self._responses.get(delta.request_id)
                if response is None:
                    continue
                stopped = response.take(delta)
                if stopped is not None and delta.finish_reason is None:
                    self.engine.end(delta.request_id, delta.index, FinishReason.STOP, stopped)
        except BaseException:
            self.engine.abort_all()
            for response in self._responses.values():
                response.abort()
            raise

    def _drop(self, responses: list[Response]) -> None:
        for response in responses:
            if not response.finished:
                self.engine.abort(response.request.request_id)
            self._responses.pop(response.request.request_id, None)


def derive_seed(engine_seed: int, number: int) -> int:
    """The 63-bit seed of the engine's `number`-th request, where the request brings none of its own."""
    digest = hashlib.sha256(f"{engine_seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
