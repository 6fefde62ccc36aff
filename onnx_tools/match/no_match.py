# SPDX-License-Identifier: Apache-2.0
"""How a check says that something is no match, and what becomes of its reason."""

from __future__ import annotations

from dataclasses import dataclass

IF_CONTIGUOUS = "--masks contiguous packs it, where no padding lies between the tokens of a row"
"""How reasons end where holes in masks are all that is in the way."""


class NoMatch(Exception):
    """Raised where a check fails; the message is the reason, which a pass reports as a miss."""


@dataclass(frozen=True)
class Miss:
    """A node that nearly matched, and why it does not."""

    node: str
    reason: str
