# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.pool: sessions of one model on several GPUs, called as one."""

from .choice import ALL, machine_devices, read_devices
from .device_pool import DevicePool
from .members import DeviceStats

__all__ = ["ALL", "DevicePool", "DeviceStats", "machine_devices", "read_devices"]
