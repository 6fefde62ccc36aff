# SPDX-License-Identifier: Apache-2.0
"""What a damaged input must not lead to."""


class FindError(Exception):
    """Raised where damaged input is met with something else than an answer or a message of its own."""
