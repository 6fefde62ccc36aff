# SPDX-License-Identifier: Apache-2.0
"""A GPU's peak rates, bytes by a measured copy and FLOPs by its properties, and the shortest times that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from padfree.contract.names import EIGHT_BITS, FP8

COPIED_BYTES = 256 << 20
COPIES = 10
HAS_GEMMS = ("PadfreeLinear", "PadfreeLinearFp8", "PadfreeLinearInt8", "PadfreeAttention")

# Floating-point operations of one multiprocessor in one cycle, dense, with fp16 or bf16 on tensor cores; e4m3, where
# there is any, does twice as many. They give the figures of NVIDIA's data sheets: A100 312 TFLOPS, L4 121, H100 989,
# B200 2250, RTX 5090 419.
_HALF_PER_CYCLE: Mapping[tuple[int, int], int] = MappingProxyType(
    {(8, 0): 2048, (8, 6): 1024, (8, 7): 2048, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024}
)
# fp32 outside of tensor cores: two for every lane.
_FP32_PER_CYCLE: Mapping[tuple[int, int], int] = MappingProxyType({(8, 0): 128})
_USUAL_FP32 = 256


@dataclass(frozen=True)
class Peaks:
    """A GPU's rates.

    copy_gb_s: bytes read and written by a copy on the device, measured. multiprocessors and clock_mhz are properties.
    """

    major: int
    minor: int
    multiprocessors: int
    clock_mhz: float
    copy_gb_s: float

    def tflops(self, kind: str) -> float | None:
        """TFLOP/s of GEMMs in a type; None where this GPU's are not known."""
        at = (self.major, self.minor)
        per_cycle: int | None = _HALF_PER_CYCLE.get(at)
        if kind == "fp32":
            per_cycle = _FP32_PER_CYCLE.get(at, _USUAL_FP32)
        if per_cycle is None:
            return None
        return per_cycle * (2 if kind in EIGHT_BITS else 1) * self.multiprocessors * self.clock_mhz * 1e-6

    def floor_us(self, operator: str, kind: str, moved_bytes: int, flops: float) -> tuple[float, str]:
        """The least time in us for an operator, and what limits it: "bytes" or "flops"."""
        by_bytes = moved_bytes / self.copy_gb_s * 1e-3
        # Attention in e4m3 rounds its results alone.
        rate = self.tflops("fp16" if kind == FP8 and operator == "PadfreeAttention" else kind)
        by_flops = flops / rate * 1e-6 if rate and operator in HAS_GEMMS else 0.0
        return (by_flops, "flops") if by_flops > by_bytes else (by_bytes, "bytes")


def measure_peaks(device: Any) -> Peaks:
    """The rates of a GPU, which is made current.

    Args:
        device: a runtime.gpu.device.Device.

    Raises:
        SessionError: CUDA fails, as where no memory is left.
    """
    from padfree.runtime.gpu.cuda import Stream, check, driver, runtime

    attribute = driver.CUdevice_attribute
    check(runtime.cudaSetDevice(device.index))
    count = int(check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.index)))
    clock_khz = int(check(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device.index)))
    stream = Stream()
    source = target = 0
    try:
        source, target = (int(check(runtime.cudaMalloc(COPIED_BYTES))) for _ in range(2))
        stream.zero(source, COPIED_BYTES)
        times = stream.time_ms(lambda: stream.copy(target, source, COPIED_BYTES), COPIES)
    finally:
        for address in (source, target):
            if address:
                runtime.cudaFree(address)
        stream.close()
    rate = 2 * COPIED_BYTES / (min(times) * 1e-3) * 1e-9
    return Peaks(device.major, device.minor, count, clock_khz * 1e-3, round(rate, 1))
