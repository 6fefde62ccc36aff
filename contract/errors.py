# SPDX-License-Identifier: Apache-2.0
"""The error for what breaks the contract; callers may name one of their own instead."""


class ContractError(ValueError):
    """Metadata that is damaged or of another version.

    The message names what it was read from, the entry, its value, what is allowed and the next step.
    """
