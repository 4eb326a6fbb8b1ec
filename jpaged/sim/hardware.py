"""What a device can do, in numbers with their sources.

Peaks are the vendor's, efficiencies are measured ones or say that they are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device and its links. Rates are per second, times in nanoseconds, `memory_bytes` is what the driver reports.

    `flops`: peak dense FLOP/s by dtype. The three efficiencies are the fractions of a peak that are reached: reading
    weights, reading the KV pool, large matrix products; `attention_efficiency` is that of prefill attention, counting
    the FLOPs under the causal mask alone. `layer_ns`: what a layer takes besides (small kernels, launches).
    `sequence_ns`: what a sequence takes besides (sampling). `all_reduce_ns` and `all_reduce_rate` (bytes of the message
    over time) are by tensor parallel size. `copy_in_ns`, `copy_out_ns`: what each copy between host and device costs
    besides its bytes. `host_step_ns`, `host_sequence_ns`: an engine's own time between steps.
    """

    name: str
    memory_bytes: int
    memory_rate: float
    flops: Mapping[str, float]
    weights_efficiency: float
    kv_efficiency: float = 0.64
    compute_efficiency: float = 0.80
    attention_efficiency: float = 0.20
    layer_ns: float = 105e3
    sequence_ns: float = 40e3
    all_reduce_ns: Mapping[int, float] = MappingProxyType({1: 0.0})
    all_reduce_rate: Mapping[int, float] = MappingProxyType({})
    copy_in_rate: float
    copy_out_rate: float
    copy_in_ns: float = 3.5e3
    copy_out_ns: float = 1.9e3
    host_step_ns: float = 126e3
    host_sequence_ns: float = 4e3

    def peak_flops(self, dtype: str) -> float:
        """Peak dense FLOP/s in `dtype`. Raises ValueError if the device has no figure for it."""
        return _choose(self.flops, "dtype", dtype, f"on {self.name}")

    def all_reduce(self, num_devices: int) -> float:
        """Nanoseconds that an all-reduce of few bytes takes. Raises ValueError for a size without a figure."""
        return _choose(self.all_reduce_ns, "tensor_parallel_size", num_devices, f"on {self.name}")


def hardware_named(name: str) -> Hardware:
    """The preset of that name. Raises ValueError, naming the presets, if there is none."""
    return _choose(HARDWARE, "hardware", name, "known")


def _choose[K, V](choices: Mapping[K, V], field: str, key: K, where: str) -> V:
    if key not in choices:
        raise ValueError(f"{field}={key!r} is not {where}; choose one of {', '.join(map(str, choices))}")
    return choices[key]


GIB = 1024**3
# The constants of A100s, where their sources are (also the defaults of Hardware):
# - kv_efficiency: slopes over the context of DistServe's published decode fits, 0.53 to 0.69 of peak; the paper-era
#   engine 0.63. compute_efficiency: matrix products of 512 rows and more reach 0.68 to 0.93 of peak in AIConfigurator's
#   tables; 0.80 was chosen by a scan of DistServe's prefill slopes. attention_efficiency: 62 TFLOP/s, between the 47
#   measured at 512 tokens and the 82 at 1,024 (AIConfigurator, 40 heads).
# - weights_efficiency: AIConfigurator's matrix products of up to 64 rows read at 0.75 to 0.79 of peak on the 80 GB
#   card; kipply's FasterTransformer runs on the 40 GB card need 0.90.
# - layer_ns and all_reduce_ns were set by hand to the intercepts of DistServe's fits of OPT-13B and OPT-66B. So errors
#   against DistServe's points are those of a fit; every other source is a check.
# - all_reduce_rate: 128 MiB messages in AIConfigurator's NCCL table of A100-SXM4 (94, 70, 61 GB/s; 3 is between).
# - host_step_ns, host_sequence_ns: learned constants that BLIS (inference-sim, Apache-2.0) publishes; with
#   sequence_ns they make up the 40 us per sequence of the batch slopes of FasterTransformer's tables.
# - copies: Fig. 19a of the paper, 209,715,200 bytes either way: in 17.0 ms + 3.5 us a copy, out 15.95 ms + 1.9 us.
_A100_REDUCE_NS = MappingProxyType({1: 0.0, 2: 13e3, 3: 22e3, 4: 28e3, 8: 50e3})
_A100_REDUCE_RATE = MappingProxyType({2: 95e9, 3: 80e9, 4: 70e9, 8: 60e9})
_COPY_IN, _COPY_OUT = 209_715_200 / 17.0e-3, 209_715_200 / 15.95e-3
# NVIDIA's data sheets; no sparsity.
_A100_FLOPS = MappingProxyType({"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12})
_H100_FLOPS = MappingProxyType({"float16": 989e12, "bfloat16": 989e12, "float32": 67e12})
# Not measured: A100's figures times the ratio of NVLink 4 to NVLink 3 (900 to 600 GB/s), and of PCIe 5 to PCIe 4.
_H100_REDUCE_RATE = MappingProxyType({size: 1.5 * rate for size, rate in _A100_REDUCE_RATE.items()})

_H100 = Hardware(
    name="H100",
    memory_bytes=int(79.1 * GIB),  # an 80 GB card less the driver's part, as on A100-80GB; not measured
    memory_rate=3350e9,  # data sheet, SXM5
    flops=_H100_FLOPS,
    weights_efficiency=0.80,  # not measured: A100-80GB's
    all_reduce_ns=_A100_REDUCE_NS,  # not measured: A100's
    all_reduce_rate=_H100_REDUCE_RATE,
    copy_in_rate=2 * _COPY_IN,
    copy_out_rate=2 * _COPY_OUT,
)

HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Hardware(
                name="A100-40GB",
                # What the driver must have reported for the paper's Table 1: 39.403 to 39.407 GiB.
                memory_bytes=int(39.405 * GIB),
                memory_rate=1555e9,  # data sheet
                flops=_A100_FLOPS,
                weights_efficiency=0.90,
                all_reduce_ns=_A100_REDUCE_NS,
                all_reduce_rate=_A100_REDUCE_RATE,
                copy_in_rate=_COPY_IN,
                copy_out_rate=_COPY_OUT,
            ),
            Hardware(
                name="A100-80GB",
                memory_bytes=int(79.17 * GIB),  # as above: 79.15 to 79.2 GiB
                memory_rate=2039e9,  # data sheet
                flops=_A100_FLOPS,
                weights_efficiency=0.80,
                all_reduce_ns=_A100_REDUCE_NS,
                all_reduce_rate=_A100_REDUCE_RATE,
                copy_in_rate=_COPY_IN,
                copy_out_rate=_COPY_OUT,
            ),
            _H100,
            # Of a 141 GB card, rounded down; data sheet. What else an H100 has is taken to be the same.
            replace(_H100, name="H200", memory_bytes=139 * GIB, memory_rate=4800e9),
            Hardware(
                name="A10G",
                memory_bytes=22 * GIB,  # of a 24 GB card with ECC; rounded down
                memory_rate=600e9,  # data sheet
                # Data sheet of the A10G: 70 TFLOP/s of dense tensor products (half an A10's), 35 in float32.
                flops=MappingProxyType({"float16": 70e12, "bfloat16": 70e12, "float32": 35e12}),
                weights_efficiency=0.90,  # not measured: the figure of the other card with few bytes a FLOP
                # No NVLink. Not measured: A100's latency, and the rate of host copies for both ways over PCIe 4.
                all_reduce_ns=_A100_REDUCE_NS,
                all_reduce_rate=MappingProxyType(dict.fromkeys((2, 3, 4, 8), 6e9)),
                copy_in_rate=_COPY_IN,
                copy_out_rate=_COPY_OUT,
            ),
            Hardware(
                name="CPU",
                memory_bytes=16 * GIB,  # of a small cloud machine
                # Measured with NumPy on two cores of an AMD EPYC: copying 256 MB, and a float32 product of 2048 x 2048.
                memory_rate=26e9,
                flops=MappingProxyType({"float32": 100e9}),
                # The two rates above are reached ones, and there are no launches to speak of.
                weights_efficiency=1.0,
                kv_efficiency=1.0,
                compute_efficiency=1.0,
                attention_efficiency=0.5,  # not measured
                layer_ns=10e3,  # not measured
                copy_in_rate=13e9,  # a copy reads and writes
                copy_out_rate=13e9,
                copy_in_ns=1e3,
                copy_out_ns=1e3,
            ),
        )
    }
)
