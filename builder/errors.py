# SPDX-License-Identifier: Apache-2.0
"""The error that padfree.builder raises."""


class BuildError(RuntimeError):
    """An engine cannot be built or written.

    The message names what failed, the value, what is allowed and the next step.
    """
