"""Replicas under Ray Serve, for people who have it: Ray routes, each replica is one engine.

Lives here: `build`, which makes the application; `serve run examples.ray_serve:build model=smollm2-135m replicas=2`.
Promises: the same answers as `LLM.generate`; nothing of jpaged imports Ray, and no measurement goes through it.
Must not know: jpaged's own router: Ray Serve has its own, which asks replicas for their queues.
"""

import asyncio
from typing import Any

from ray import serve

from jpaged import LLM, SamplingParams
from jpaged.core.requests.request import RequestOutput


@serve.deployment(max_ongoing_requests=64)
class Replica:
    """One engine. Requests that come while it is at work join the next call of `generate`, which batches them."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._llm = LLM(model, **options)
        self._waiting: list[tuple[Any, SamplingParams, asyncio.Future[RequestOutput]]] = []
        self._at_work = asyncio.Lock()

    async def complete(self, prompt: Any, **params: Any) -> dict[str, Any]:
        """The text and ids of each sequence. `prompt` is a text or a list of ids, `params` those of SamplingParams."""
        done: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, SamplingParams(**params), done))
        async with self._at_work:
            if not done.done():
                await self._run_all_that_wait()
        output = done.result()
        return {"outputs": [{"text": one.text, "token_ids": one.token_ids} for one in output.outputs]}

    async def __call__(self, request: Any) -> dict[str, Any]:
        """The same over HTTP: a JSON body with `prompt` and any sampling parameters."""
        body = await request.json()
        return await self.complete(body.pop("prompt"), **body)

    async def _run_all_that_wait(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            outputs = await asyncio.to_thread(self._generate, [(prompt, params) for prompt, params, _ in batch])
        except Exception:
            # One bad request is not to harm the others: each alone, so that its error is its own.
            for prompt, params, done in batch:
                await self._run_alone(prompt, params, done)
            return
        for (_, _, done), output in zip(batch, outputs, strict=True):
            done.set_result(output)

    async def _run_alone(self, prompt: Any, params: SamplingParams, done: "asyncio.Future[RequestOutput]") -> None:
        try:
            (output,) = await asyncio.to_thread(self._generate, [(prompt, params)])
            done.set_result(output)
        except Exception as error:
            done.set_exception(error)

    def _generate(self, batch: list[tuple[Any, SamplingParams]]) -> list[RequestOutput]:
        prompts = [{"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt for prompt, _ in batch]
        return self._llm.generate(prompts, [params for _, params in batch], use_tqdm=False)


def build(arguments: dict[str, str]) -> Any:
    """The application: `model`, `replicas`, `gpus` a replica (0 on a CPU); all else is options of the engine."""
    options: dict[str, Any] = dict(arguments)
    model = options.pop("model", "smollm2-135m")
    # Ray sets CUDA_VISIBLE_DEVICES of a replica to the GPUs that it was given, before JAX is imported there.
    actor = {"num_cpus": 1, "num_gpus": float(options.pop("gpus", 0))}
    deployment = Replica.options(num_replicas=int(options.pop("replicas", 1)), ray_actor_options=actor)
    return deployment.bind(model, {name: _number(value) for name, value in options.items()})


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value
