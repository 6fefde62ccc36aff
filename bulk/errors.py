# SPDX-License-Identifier: Apache-2.0
"""The error that everything in padfree.bulk raises."""


class BulkError(ValueError):
    """Inputs, an output folder, a model or a cluster that bulk work cannot use.

    The message names what failed, the value, what is allowed and the next step.
    """


class IncompleteError(BulkError):
    """A worker that lacks one of its own processes: it has to be started again, and then its work can go on."""
