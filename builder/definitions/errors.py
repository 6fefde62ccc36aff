# SPDX-License-Identifier: Apache-2.0
"""What a definition says about a model that it does not describe."""


class NotDefinedError(ValueError):
    """No definition describes this model exactly; an export may still work. The message is the reason alone."""
