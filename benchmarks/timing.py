# SPDX-License-Identifier: Apache-2.0
"""GPU times by events, and CUDA graphs of what is timed: from builder/bench/timing.py."""

from from_package import load

_module = load("timing")
captured, mean_ms, time_ms = _module.captured, _module.mean_ms, _module.time_ms
