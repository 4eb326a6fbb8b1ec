"""Replicas behind a router: each request's answer once, whole and right, also where a replica fails."""

from collections import Counter
from typing import Any

import pytest

from jpaged.core.requests.request import FinishReason, Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.fleet.replica_set import Answer, ReplicaSet
from jpaged.fleet.router import ROUTING, Router
from tests.fleet.engines import Letters, all_failing, dying, failing, requests, right, sound

APART = ["threads", pytest.param("processes", marks=pytest.mark.slow)]


def assert_right(asked: list[Request], answers: dict[str, Answer]) -> None:
    for request in asked:
        answer = answers[request.request_id]
        assert answer.error is None
        assert answer.token_ids == right(request)
        assert answer.texts == {i: Letters().decode(ids) for i, ids in answer.token_ids.items()}
        assert set(answer.finish_reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("policy", ROUTING)
def test_replicas_in_turn_give_what_one_engine_gives_whatever_the_routing(policy: str) -> None:
    with ReplicaSet(sound, Router(3, policy, page_size=2)) as replicas:
        asked = requests(20, ignore_eos=True, n=2)
        assert_right(asked, replicas.run(asked))
        assert replicas.router.num_in_flight == 0
        engines = [worker.loop.engine for worker in replicas._workers]  # pyright: ignore
        assert all(engine.stats.num_requests_finished for engine in engines)


@pytest.mark.parametrize("workers", APART)
def test_replicas_apart_give_what_one_engine_gives(workers: str) -> None:
    with ReplicaSet(sound, Router(2), workers=workers) as replicas:
        asked = requests(12)
        assert_right(asked, replicas.run(asked))


@pytest.mark.parametrize("workers", ["in_turn", *APART])
def test_what_a_failed_replica_had_is_run_elsewhere_and_no_token_comes_twice(workers: str) -> None:
    with ReplicaSet(failing, Router(2, "round_robin"), workers=workers) as replicas:
        asked = requests(10)
        assert_right(asked, replicas.run(asked))
        assert "the device is on fire" in replicas.failures[0]
        assert replicas.router.loads[0].life == 1 and not replicas.failed


@pytest.mark.slow
def test_a_process_that_dies_without_a_word_is_found_dead() -> None:
    with ReplicaSet(dying, Router(2, "round_robin"), workers="processes") as replicas:
        asked = requests(10)
        assert_right(asked, replicas.run(asked))
        assert replicas.failures[0] == "it ended without a word"


def test_with_no_replica_left_every_request_is_reported() -> None:
    with ReplicaSet(all_failing, Router(2, "round_robin")) as replicas:
        asked = requests(6)
        answers = replicas.run(asked)
        assert all("no replica takes requests" in (answer.error or "") for answer in answers.values())
        assert set(replicas.failed) == {request.request_id for request in asked}
        assert not replicas.has_unfinished and replicas.router.num_in_flight == 0


def test_a_drained_replica_finishes_what_it_has_and_gets_no_more() -> None:
    with ReplicaSet(sound, Router(2, "round_robin")) as replicas:
        asked = requests(8)
        for request in asked[:4]:
            replicas.add(request)
        replicas.drain(0)
        assert {replicas.add(request) for request in asked[4:]} == {1}
        tokens: Counter[str] = Counter()
        while replicas.has_unfinished:
            tokens.update(delta.request_id for delta in replicas.poll())
        assert tokens == {request.request_id: 12 for request in asked}
        replicas.restart(0)
        assert {replicas.add(request) for request in requests(2)} == {0, 1}


def test_a_replica_that_is_restarted_serves_again() -> None:
    with ReplicaSet(sound, Router(1)) as replicas:
        (request,) = requests(1)
        replicas.add(request)
        with pytest.raises(ValueError, match="still runs requests"):
            replicas.restart(0)
        replicas.fail(0)
        assert list(replicas.failed) == ["r0"]
        replicas.restart(0)
        assert_right([request], replicas.run([request]))


@pytest.mark.parametrize("workers", ["in_turn", "threads"])
def test_a_request_that_no_engine_can_serve_is_refused_and_harms_nobody(workers: str) -> None:
    with ReplicaSet(sound, Router(2), workers=workers) as replicas:
        bad = Request(request_id="bad", prompt_token_ids=(99,), params=SamplingParams(max_tokens=2))
        asked = requests(4)
        answers = replicas.run([*asked[:2], bad, *asked[2:]])
        assert "has the id 99" in (answers["bad"].error or "")
        assert_right(asked, answers)


@pytest.mark.parametrize("workers", ["in_turn", "threads"])
def test_an_aborted_request_ends_and_the_others_go_on(workers: str) -> None:
    with ReplicaSet(sound, Router(2), workers=workers) as replicas:
        asked = requests(4, max_tokens=30)
        for request in asked:
            replicas.add(request)
        replicas.abort("r1")
        replicas.abort("nobody")
        ends: dict[str, Any] = {}
        while replicas.has_unfinished:
            ends |= {d.request_id: d.finish_reason for d in replicas.poll() if d.finish_reason}
        assert ends.pop("r1") == FinishReason.ABORT
        assert set(ends.values()) == {FinishReason.LENGTH} and len(ends) == 3


def test_a_mistake_is_told_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="workers='clouds': choose one of in_turn, threads, processes"):
        ReplicaSet(sound, Router(1), workers="clouds")
    with ReplicaSet(sound, Router(1)) as replicas:
        (request,) = requests(1)
        replicas.add(request)
        with pytest.raises(ValueError, match="still running"):
            replicas.add(request)
