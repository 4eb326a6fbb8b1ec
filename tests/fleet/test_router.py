"""Routing: every request is with one replica that is up, the counts never drift, equal prefixes meet."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jpaged.core.errors import QueueFull
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.fleet.router import ROUTING, PrefixAffinity, ReplicaLoad, Router


def request(name: str, prompt: Sequence[int] = (1,), max_tokens: int | None = 8, salt: str | None = None) -> Request:
    return Request(
        request_id=name, prompt_token_ids=tuple(prompt), params=SamplingParams(max_tokens=max_tokens), cache_salt=salt
    )


def newest(asked: Request, replicas: Sequence[ReplicaLoad]) -> int:
    """A user's own policy."""
    return len(replicas) - 1


def nobody(asked: Request, replicas: Sequence[ReplicaLoad]) -> int:
    """A user's own policy that is wrong."""
    return len(replicas)


class Traffic(RuleBasedStateMachine):
    """Routes, finishes, fails, drains and restores in any order, beside a ledger of its own."""

    @initialize(
        num_replicas=st.integers(1, 4),
        policy=st.sampled_from([*ROUTING, f"{__name__}:newest"]),
        expected=st.sampled_from([0, 4, 256]),
    )
    def start(self, num_replicas: int, policy: str, expected: int) -> None:
        self.router = Router(num_replicas, policy, page_size=2, expected_output_tokens=expected)
        self.expected = expected
        self.takes = [True] * num_replicas
        self.up = [True] * num_replicas
        self.at: dict[str, tuple[int, Request]] = {}
        self.done: list[str] = []
        self.homeless: list[Request] = []
        self.num_asked = 0

    @rule(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=9), max_tokens=st.sampled_from([1, 8, 400, None]))
    def ask(self, prompt: list[int], max_tokens: int | None) -> None:
        self.num_asked += 1
        self.homeless.append(request(f"r{self.num_asked}", prompt, max_tokens))
        self.place()

    @rule()
    def place(self) -> None:
        for asked in list(self.homeless):
            if not any(self.takes):
                with pytest.raises(QueueFull, match="no replica takes requests"):
                    self.router.route(asked)
                return
            number = self.router.route(asked)
            assert self.takes[number], "a replica that takes none got a request"
            self.at[asked.request_id] = (number, asked)
            self.homeless.remove(asked)
            with pytest.raises(ValueError, match="has it already"):
                self.router.route(asked)

    @precondition(lambda self: self.at)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.at)))
        self.router.finished(name)
        del self.at[name]
        self.done.append(name)
        with pytest.raises(ValueError, match="ended before"):
            self.router.finished(name)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.takes) - 1))
        lost = self.router.fail(number)
        mine = [name for name, (at, _) in self.at.items() if at == number]
        assert [asked.request_id for asked in lost] == mine, "a request is lost, or run twice"
        for name in mine:
            del self.at[name]
        self.homeless += lost
        self.takes[number] = self.up[number] = False

    @rule(data=st.data(), drain=st.booleans())
    def drain_or_restore(self, data: st.DataObject, drain: bool) -> None:
        number = data.draw(st.integers(0, len(self.takes) - 1))
        if drain:
            self.router.drain(number)
            self.takes[number] = False
        else:
            self.router.restore(number)
            self.takes[number] = self.up[number] = True

    @invariant()
    def the_table_is_that_of_the_ledger(self) -> None:
        if not hasattr(self, "router"):
            return
        self.router.check()
        for load in self.router.loads:
            mine = [asked for at, asked in self.at.values() if at == load.number]
            expected = sum(
                len(asked.prompt_token_ids) + min(asked.params.max_tokens or 10**9, self.expected) for asked in mine
            )
            assert (load.requests, load.tokens) == (len(mine), expected)
        assert self.router.num_in_flight == len(self.at)
        assert self.num_asked == len(self.at) + len(self.done) + len(self.homeless)
        for name, (at, _) in self.at.items():
            assert self.router.replica_of(name) == at


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True)


def routed(router: Router, prompts: Sequence[Sequence[int]]) -> list[int]:
    return [router.route(request(f"{i}", prompt)) for i, prompt in enumerate(prompts)]


def test_round_robin_goes_round_and_passes_over_whoever_is_down() -> None:
    router = Router(3, "round_robin")
    assert routed(router, [[1]] * 4) == [0, 1, 2, 0]
    router.drain(1)
    assert [router.route(request(f"x{i}")) for i in range(3)] == [2, 0, 2]
    router.restore(1)
    assert [router.route(request(f"y{i}")) for i in range(3)] == [0, 1, 2]


def test_least_outstanding_tokens_counts_tokens_and_not_requests() -> None:
    router = Router(2, "least_outstanding_tokens", expected_output_tokens=0)
    assert routed(router, [[1] * 100, [1] * 30, [1] * 30, [1] * 30, [1] * 30]) == [0, 1, 1, 1, 1]
    router.finished("0")
    assert router.route(request("next")) == 0


def test_an_output_weighs_what_is_expected_of_it_or_its_limit_if_that_is_less() -> None:
    router = Router(1, expected_output_tokens=50)
    router.route(request("short", [1, 2], max_tokens=10))
    router.route(request("long", [1, 2], max_tokens=1000))
    router.route(request("open", [1, 2], max_tokens=None))
    assert router.loads == (ReplicaLoad(0, 12 + 52 + 52, 3),)


def test_equal_prefixes_meet_and_a_longer_one_goes_where_its_longest_part_went() -> None:
    router = Router(4, "prefix_affinity", page_size=2)
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    assert routed(router, [a, b, [*a, 9], [*b, 9, 9, 9], [*a, 9, 9, 9], [1, 2, 9, 9], [1]]) == [0, 1, 0, 1, 0, 0, 2]


def test_new_prefixes_are_spread_over_replicas_that_are_all_idle() -> None:
    router = Router(3, "prefix_affinity", page_size=2)
    places: list[int] = []
    for i in range(6):
        places.append(router.route(request(f"{i}", [i, i, i])))
        router.finished(f"{i}")
    assert places == [0, 1, 2, 0, 1, 2]


def test_what_all_prompts_begin_with_sends_none_of_them_anywhere() -> None:
    policy = PrefixAffinity(1, min_share=0.5)
    loads = [ReplicaLoad(number, 10 * (2 - number), 0) for number in range(2)]
    assert policy(request("first", [1, 2, 3, 4]), [loads[0]]) == 0
    assert policy(request("little", [1, 9, 9, 9]), loads) == 1
    assert policy(request("half", [1, 2, 8, 8]), loads) == 0


def test_prefixes_with_other_salts_are_other_prefixes() -> None:
    router = Router(2, "prefix_affinity", page_size=2)
    places = [router.route(request(f"{i}", [1, 2, 3], salt=salt)) for i, salt in enumerate(["a", "b", "a"])]
    assert places == [0, 1, 0]


def test_affinity_never_fills_a_replica_beyond_its_bound() -> None:
    policy = PrefixAffinity(2, factor=1.5, slack_tokens=100)
    tokens, passed_over = [0, 0, 0], 0
    for i in range(300):
        loads = [ReplicaLoad(n, t, 0) for n, t in enumerate(tokens)]
        index = policy(request(f"{i}", [1, 2, 3]), loads)
        assert not policy.overloaded(loads[index], loads)
        passed_over += index != 0
        tokens[index] += 10
    assert passed_over > 0
    assert max(tokens) <= 1.5 * min(tokens) + 100 + 10


def test_affinity_holds_while_the_replica_is_under_the_bound() -> None:
    router = Router(4, "prefix_affinity", page_size=2)
    fillers = [[9, i, i] for i in range(3)]
    first, *_ = routed(router, [[1, 2, 3], *fillers])
    assert {router.route(request(f"again{i}", [1, 2, i])) for i in range(50)} == {first}


def test_a_prefix_is_not_sought_where_a_failure_has_emptied_the_cache() -> None:
    router = Router(2, "prefix_affinity", page_size=2)
    assert routed(router, [[1, 2, 3], [7, 8]]) == [0, 1]
    (lost,) = router.fail(0)
    assert router.route(lost) == 1
    router.restore(0)
    router.finished(lost.request_id)
    router.route(request("filler", [5] * 50))
    assert router.route(request("again", [1, 2, 4])) == 1, "went to the emptied cache"


def test_what_affinity_remembers_is_bounded() -> None:
    policy = PrefixAffinity(1, max_prefixes=10, max_pages=4)
    loads = [ReplicaLoad(0, 0, 0)]
    for i in range(100):
        policy(request(f"{i}", [i] * 8), loads)
    assert len(policy._went_to) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Router(0), "num_replicas=0: must be at least 1"),
        (lambda: Router(2, "fastest"), "routing_policy='fastest': use one of round_robin"),
        (lambda: Router(2, "nowhere:policy"), "cannot be imported"),
        (lambda: PrefixAffinity(16, factor=0.5), "factor=0.5: at least 1"),
        (lambda: PrefixAffinity(16, min_share=2), "min_share=2: a share"),
        (lambda: Router(2).drain(2), "replica=2: there are 2"),
        (lambda: Router(2, f"{__name__}:nobody").route(request("a")), "routing_policy chose 2 among 2 replicas"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # pyright: ignore[reportCallIssue]
