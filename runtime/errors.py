# SPDX-License-Identifier: Apache-2.0
"""The error that everything in padfree.runtime raises."""


class SessionError(ValueError):
    """A plan, a model, a machine or a request that cannot be run.

    The message names what failed, the value, what is allowed and the next step.
    """


class OutputSizeError(SessionError):
    """An engine has an output whose size follows from what the inputs hold, not from their shapes."""
