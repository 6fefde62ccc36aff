# SPDX-License-Identifier: Apache-2.0
"""CUDA and TensorRT: devices, memory, captured graphs, and engines on them."""
