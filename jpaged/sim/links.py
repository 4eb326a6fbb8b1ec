"""What pages travel over from one device to another.

Rates are the vendors' figures times an efficiency that says where it is from; integer nanoseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """`rate`: bytes per second one way, as reached; `latency_ns`: what each transfer costs besides its bytes."""

    name: str
    rate: float
    latency_ns: float

    def __post_init__(self) -> None:
        if not self.rate > 0 or not self.latency_ns >= 0:
            raise ValueError(
                f"link {self.name!r}: rate={self.rate} must be above 0 and latency_ns={self.latency_ns} not below"
            )

    def transfer_ns(self, num_bytes: int) -> int:
        """Nanoseconds that this many bytes take on an idle link."""
        return round(self.latency_ns + 1e9 * num_bytes / self.rate)


def link_named(name: str) -> Link:
    """The preset of that name. Raises ValueError, naming the presets, if there is none."""
    if name not in LINKS:
        raise ValueError(f"link={name!r} is not known; choose one of {', '.join(LINKS)}")
    return LINKS[name]


# One way, of the data sheets: NVLink 3 (A100) 300 GB/s, NVLink 4 (H100) 450 GB/s, PCIe 4 x16 32 GB/s, and the named
# line rates of networks. Not measured: the 0.8 of these that is reached, and the latencies.
_REACHED = 0.8
LINKS: Mapping[str, Link] = MappingProxyType(
    {
        link.name: link
        for link in (
            Link(name="nvlink3", rate=_REACHED * 300e9, latency_ns=10e3),
            Link(name="nvlink4", rate=_REACHED * 450e9, latency_ns=10e3),
            Link(name="pcie4", rate=_REACHED * 32e9, latency_ns=20e3),
            Link(name="200Gb/s", rate=_REACHED * 200e9 / 8, latency_ns=50e3),
            Link(name="100Gb/s", rate=_REACHED * 100e9 / 8, latency_ns=50e3),
            # Between the nodes of DistServe's testbed.
            Link(name="25Gb/s", rate=_REACHED * 25e9 / 8, latency_ns=50e3),
        )
    }
)
