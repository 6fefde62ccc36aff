# SPDX-License-Identifier: Apache-2.0
"""The error for what damaged input must not lead to."""


class FindError(Exception):
    """Raised where damaged input leads to anything but an answer or a proper error message."""
