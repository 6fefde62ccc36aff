# SPDX-License-Identifier: Apache-2.0
"""CUDA and TensorRT: devices, memory, captured graphs, and engines on them."""

from . import device_code, plugin_library
from .buckets import token_bucket
from .device import Device
from .trt import import_tensorrt, shared_logger, short_version

__all__ = [
    "Device",
    "device_code",
    "import_tensorrt",
    "plugin_library",
    "shared_logger",
    "short_version",
    "token_bucket",
]
