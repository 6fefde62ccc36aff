# SPDX-License-Identifier: Apache-2.0
"""The event loop of both kinds of processes: uvloop's if it is installed."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for this thread."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
