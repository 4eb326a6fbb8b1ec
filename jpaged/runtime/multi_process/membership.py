"""This process's part in an engine of several: driver or follower.

Lives here: Membership and enter.
Promises: all processes build the same engine: the driver chooses what depends on its machine, the others take it over.
Must not know: how an engine is built.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Never

from jpaged.config.engine import EngineConfig
from jpaged.runtime.multi_process.driver import Driver
from jpaged.runtime.multi_process.follower import Runner, Seat, follow
from jpaged.runtime.multi_process.processes import Peers


class Membership:
    """One of `driver` and `seat` is there: this process leads, or follows."""

    def __init__(self, driver: Driver | None, seat: Seat | None) -> None:
        self.driver, self._seat = driver, seat

    def agree(self, config: EngineConfig, choose: Callable[[], EngineConfig]) -> EngineConfig:
        """The config that `choose` gives in the driver, with its sizes of the pool, in every process."""
        if self.driver is not None:
            chosen = choose()
            cache = chosen.cache
            sizes = [cache.num_pages, cache.num_host_pages, chosen.scheduler.max_model_len]
            self.driver.tell("config", *sizes, chosen.digest())
            return chosen
        assert self._seat is not None
        message = self._seat.receive()
        if message[0] != "config":
            self._seat.close()
            raise ValueError("process 0 has given up before the engine was built; see what it said")
        num_pages, num_host_pages, max_model_len, digest = message[1:]
        chosen = dataclasses.replace(
            config,
            cache=dataclasses.replace(config.cache, num_pages=num_pages, num_host_pages=num_host_pages),
            scheduler=dataclasses.replace(config.scheduler, max_model_len=max_model_len),
        )
        if chosen.digest() != digest:
            raise ValueError(
                f"with the pool's size the config has digest {chosen.digest()} here and {digest} in process 0; "
                "start all processes with the same options"
            )
        return chosen

    def follow(self, runner: Runner) -> Never:
        """A follower's life: run what the driver plans, then end this process."""
        assert self._seat is not None, "the driver does not follow"
        follow(runner, self._seat)
        sys.exit(0)


def enter(config: EngineConfig, peers: Peers) -> Membership:
    """Join the other processes. JAX must not have started.

    Raises ValueError for what does not fit together, in every process.
    """
    from jpaged.runtime.multi_process.join import join

    channels = join(peers, config.digest())
    if peers.leads:
        return Membership(Driver(channels), None)
    return Membership(None, Seat(channels[0]))
