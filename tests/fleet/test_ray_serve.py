"""The Ray Serve example: its replica without Ray, and, where Ray is installed, two of them."""

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from jpaged import EngineFailed, SamplingParams
from tests.engine.tiny import TINY_LLAMA, random_prompts, tiny_llm

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("ray_serve_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LONG: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 4}


@pytest.fixture(scope="module")
def replica() -> Any:
    return example().Replica(TINY_LLAMA, {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64})


def test_a_late_request_joins_those_that_run_and_each_gets_its_own_answer(replica: Any) -> None:
    prompts = random_prompts(4, 3, 20)
    order: list[int] = []

    async def ask(number: int, **params: Any) -> list[int]:
        answer = await replica.complete(prompts[number], **params)
        order.append(number)
        return answer["outputs"][0]["token_ids"]

    async def everyone() -> list[Any]:
        first = asyncio.create_task(ask(0, **LONG))
        while not replica._running:
            await asyncio.sleep(0)
        refused = asyncio.create_task(ask(3, **LONG | {"n": 9}))
        left = asyncio.create_task(ask(1, **LONG))
        late = asyncio.create_task(ask(2, **SHORT))
        await asyncio.sleep(0)
        left.cancel()
        return await asyncio.gather(first, late, refused, left, return_exceptions=True)

    long, short, refusal, gone = asyncio.run(everyone())
    assert order == [2, 0]
    assert isinstance(refusal, ValueError) and "n=9" in str(refusal)
    assert isinstance(gone, asyncio.CancelledError)
    llm = replica._llm
    assert not llm.engine.has_unfinished
    outputs = llm.generate([prompts[0], prompts[2]], [SamplingParams(**LONG), SamplingParams(**SHORT)], use_tqdm=False)
    assert [long, short] == [output.outputs[0].token_ids for output in outputs]


def test_a_step_that_fails_is_told_to_everyone_and_the_replica_serves_on(
    replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = random_prompts(2, 3, 20)

    async def both() -> list[Any]:
        asked = [replica.complete(prompt, **SHORT) for prompt in prompts]
        return await asyncio.gather(*asked, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(replica._llm.engine, "step", lambda: 1 / 0)
        assert [type(answer) for answer in asyncio.run(both())] == [EngineFailed] * 2
    replica._task = None
    assert all(len(answer["outputs"][0]["token_ids"]) == 4 for answer in asyncio.run(both()))


def test_the_example_makes_an_application_without_starting_anything() -> None:
    pytest.importorskip("ray.serve")
    application = example().build({"model": "tiny", "replicas": "3", "max_num_seqs": "8"})
    assert application is not None


@pytest.mark.slow
def test_two_replicas_under_ray_serve_give_what_one_engine_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.serve")
    import ray
    from ray import serve

    path = os.pathsep.join([str(EXAMPLE.parents[1]), str(EXAMPLE.parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import ray_serve as module  # pyright: ignore[reportMissingImports]

    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        options = {"max_num_seqs": "8", "max_num_batched_tokens": "64", "max_model_len": "64"}
        handle = serve.run(module.build({"model": TINY_LLAMA, "replicas": "2", **options}), route_prefix=None)
        prompts = random_prompts(6, 3, 20)
        wish = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
        answers = [handle.complete.remote(prompt, **wish) for prompt in prompts]
        given = [answer.result(timeout_s=300)["outputs"][0]["token_ids"] for answer in answers]
        with pytest.raises(Exception, match="empty"):
            handle.complete.remote([], **wish).result(timeout_s=300)
    finally:
        serve.shutdown()
        ray.shutdown()
    outputs = tiny_llm().generate(prompts, SamplingParams(**wish), use_tqdm=False)
    assert given == [output.outputs[0].token_ids for output in outputs]
