# SPDX-License-Identifier: Apache-2.0
"""Processes that run side by side, each on one core."""

from __future__ import annotations

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment: or every process's libraries take a thread for each core, which wait for each other by turning."""
