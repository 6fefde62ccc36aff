# SPDX-License-Identifier: Apache-2.0
"""Processes that run at the same time, each on one core."""

from __future__ import annotations

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Without this environment, every process's libraries start a thread per core, and all of them compete."""
