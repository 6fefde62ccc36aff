# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that commands are given: checked against the model, with advice where they may be another model's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from padfree.runtime import Metadata, SessionError
from padfree.runtime.text import TokenizerFile, text_source

from .errors import BuildError

_log = logging.getLogger(__name__)

USUAL_SHARE = 0.9  # of a table's rows: tables are padded to multiples of up to 512, and keep rows for tokens to come


@contextmanager
def as_build_errors(where: str = "") -> Iterator[None]:
    """A SessionError inside becomes a BuildError, which says first `where`."""
    try:
        yield
    except SessionError as error:
        raise BuildError(f"{where}{error}") from error


def load_tokenizer(file: Path, metadata: Metadata, *, pairs: bool = False) -> TokenizerFile:
    """A tokenizer.json, read with what lies beside it and checked against the model.

    Args:
        file: the tokenizer.json.
        metadata: the model's inputs.
        pairs: pairs of texts will come too.

    Raises:
        BuildError: there is no such file, it is no tokenizer, or another model's.
    """
    with as_build_errors():
        source = text_source(file, metadata, file, pairs=pairs)
    come = pairs or metadata.text is None or metadata.text.may_take_pairs
    of_types = source.types_notes if come and metadata.types_input() is not None else ()
    for hint in (*source.notes, *of_types, *_hints(source.tokenizer(), metadata)):
        _log.warning("%s: %s", file, hint)
    return source


def _hints(tokenizer: Any, metadata: Metadata) -> list[str]:
    """Why the tokenizer may be another model's all the same."""
    ids, size = metadata.ids_input(), tokenizer.get_vocab_size(with_added_tokens=True)
    if ids.limit is None or size >= USUAL_SHARE * ids.limit:
        return []
    return [f"the tokenizer has {size} tokens, the model's table {ids.limit} rows; make sure that they belong together"]
