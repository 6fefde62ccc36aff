# SPDX-License-Identifier: Apache-2.0
"""Windows: which keys a query sees by their distance, proved of a mask for every distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import NoMatch

_EVERY = 1 << 15  # tokens: every distance up to it is tried, then powers of two and their neighbours
_LAST = 24  # the first power that is not tried
OPEN = -1


@dataclass(frozen=True)
class Window:
    """Query i sees key j where i - left <= j <= i + right, both inclusive; OPEN: without a limit."""

    left: int = OPEN
    right: int = OPEN

    @property
    def by_order(self) -> bool:
        """Whether the order of tokens tells what is seen, whatever lies between them: all, or causal masks."""
        return self.left in (OPEN, 0) and self.right in (OPEN, 0)

    def __and__(self, other: Window) -> Window:
        pairs = (self.left, other.left), (self.right, other.right)
        left, right = (max(pair) if OPEN in pair else min(pair) for pair in pairs)
        return Window(left, right)


ALL = Window()
"""Every key is seen."""


def tried_distances() -> npt.NDArray[np.int64]:
    """The distances that are tried, key position less query position, ascending."""
    far = [(1 << power) + step for power in range(16, _LAST) for step in (-1, 0, 1)]
    ahead = np.concatenate([np.arange(_EVERY + 1), far])
    return np.concatenate([-ahead[:0:-1], ahead])


def window_of(
    distances: npt.NDArray[np.int64], is_token: npt.NDArray[np.bool_], masked: npt.NDArray[np.bool_]
) -> Window:
    """The window of a mask; `is_token` and `masked` have a row for each of its values and a column for each distance.

    Raises NoMatch where it is none: where seen keys are not one span around the query, or not masked alike.
    """
    seen: npt.NDArray[np.bool_] = np.any(is_token, axis=0)
    here = int(np.flatnonzero(distances == 0)[0])
    if not seen[here]:
        raise NoMatch("no query sees its own key")
    if not masked[:, ~seen].all():
        raise NoMatch("keys at a distance are neither kept nor masked")
    if np.any(is_token[:, seen] != is_token[:, [here]]) or np.any(masked[:, seen] != masked[:, [here]]):
        raise NoMatch("keys at different distances are masked by different values")
    inside = distances[seen]
    if not seen[(distances >= inside.min()) & (distances <= inside.max())].all():
        raise NoMatch("the keys that a query sees are not one span")
    ends = inside.min() == distances.min(), inside.max() == distances.max()
    return Window(OPEN if ends[0] else int(-inside.min()), OPEN if ends[1] else int(inside.max()))
