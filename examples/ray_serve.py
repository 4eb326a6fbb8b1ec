"""Replicas under Ray Serve, for people who have it: Ray routes, each replica is one engine.

`serve run examples.ray_serve:build model=smollm2-135m replicas=2`. The answers are those of `LLM.generate`; nothing of
jpaged imports Ray, and no measurement goes through it.
"""

import asyncio
import contextlib
from typing import Any

from jpaged import LLM, EngineFailed, QueueFull, RequestOutput, RequestRefused, SamplingParams
from jpaged.core.requests.request import Request
from jpaged.core.requests.response import Response


class Replica:
    """One engine, whose loop a task of Ray's event loop owns: a request joins those that run in the next step."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._llm = LLM(model, **options)
        self._arrived: list[tuple[Request, asyncio.Future[RequestOutput]]] = []
        self._running: list[tuple[Response, asyncio.Future[RequestOutput]]] = []
        self._task: asyncio.Task[None] | None = None

    async def complete(self, prompt: Any, **params: Any) -> dict[str, Any]:
        """The text and ids of each sequence. `prompt` is a text or a list of ids, `params` those of SamplingParams."""
        prompt = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        (request,) = self._llm.make_requests(prompt, SamplingParams(**params))
        done: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        self._arrived.append((request, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        output = await done
        return {"outputs": [{"text": one.text, "token_ids": one.token_ids} for one in output.outputs]}

    async def __call__(self, request: Any) -> dict[str, Any]:
        """The same over HTTP: a JSON body with `prompt` and any sampling parameters."""
        body = await request.json()
        return await self.complete(body.pop("prompt"), **body)

    async def _run(self) -> None:
        while self._arrived or self._running:
            self._add_arrived()
            with contextlib.suppress(EngineFailed):  # each response that it ended says so
                await asyncio.to_thread(self._llm.loop.step)
            for response, done in self._running:
                if done.cancelled():
                    self._llm.loop.abort(response.request.request_id)
                elif response.error is not None:
                    done.set_exception(response.error)
                elif response.finished:
                    done.set_result(response.result())
            self._running = [(response, done) for response, done in self._running if not done.done()]

    def _add_arrived(self) -> None:
        for request, done in self._arrived:
            try:
                self._running.append((self._llm.loop.add(request), done))
            except (RequestRefused, QueueFull) as error:
                if not done.cancelled():
                    done.set_exception(error)
        self._arrived.clear()


def build(arguments: dict[str, str]) -> Any:
    """The application: `model`, `replicas`, `gpus` per replica (0 on a CPU); all else is options of the engine."""
    from ray import serve

    options: dict[str, Any] = dict(arguments)
    model = options.pop("model", "smollm2-135m")
    # Ray sets CUDA_VISIBLE_DEVICES of a replica to the GPUs that it was given, before JAX is imported there.
    actor = {"num_cpus": 1, "num_gpus": float(options.pop("gpus", 0))}
    deployment = serve.deployment(max_ongoing_requests=64)(Replica)
    deployment = deployment.options(num_replicas=int(options.pop("replicas", 1)), ray_actor_options=actor)
    return deployment.bind(model, {name: _number(value) for name, value in options.items()})


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value
