# SPDX-License-Identifier: Apache-2.0
"""A request's inputs beside texts: those of the model with a row per sequence, under their own names."""

from __future__ import annotations

from padfree.contract.metadata import InputInfo
from padfree.runtime import Array, SessionError, read_values
from padfree.runtime.text import TextInputs

from ..errors import validation_error
from .body import Body


def values_of_texts(body: Body, inputs: TextInputs, texts: int) -> dict[str, Array]:
    """The values of all such inputs, [texts] or [texts, N].

    A field holds a value for every text, in a list, or one for all of them: a number, or N numbers.

    Raises:
        ApiError: a field is missing, or does not hold what the model takes.
    """
    return {item.name: _values(body, item, texts) for item in inputs.others}


def _values(body: Body, item: InputInfo, texts: int) -> Array:
    name = next((name for name in (item.original_name, item.name) if name in body), None)
    if name is None:
        what = "a number" if item.width in (None, 1) else f"{item.width} numbers"
        raise validation_error(
            f"'{item.original_name}' is missing, which the model reads for every text; send {what} for all, or a list "
            "with one for every text"
        )
    value = body.raw(name)
    is_one = not isinstance(value, list) or (item.width is not None and not any(isinstance(row, list) for row in value))
    if is_one and not (isinstance(value, list) and item.width == 1 and len(value) == texts):
        value = [value] * texts
    try:
        return read_values(value, item, texts)
    except SessionError as error:
        raise validation_error(str(error)) from error
