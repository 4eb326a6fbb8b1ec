"""The Ray Serve example runs where Ray is installed: two replicas give what one engine gives."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from jpaged import SamplingParams
from tests.engine.tiny import TINY_LLAMA, random_prompts, tiny_llm

pytest.importorskip("ray.serve")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("ray_serve_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_makes_an_application_without_starting_anything() -> None:
    application = example().build({"model": "tiny", "replicas": "3", "max_num_seqs": "8"})
    assert application is not None


@pytest.mark.slow
def test_two_replicas_under_ray_serve_give_what_one_engine_gives(monkeypatch: pytest.MonkeyPatch) -> None:
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
