# SPDX-License-Identifier: Apache-2.0
"""A folder's model by a definition, which needs neither torch nor code of the model."""

from __future__ import annotations

from padfree.contract.texts import SENTENCES

from ..definitions.dispatch import write
from ..definitions.errors import NotDefinedError
from ..definitions.model import DefinedModel
from .folder import TOKENIZER_CONFIG, Folder
from .objects import Entries


def write_defined(folder: Folder, *, pooled: bool = False, adapter: str = "") -> DefinedModel:
    """The encoder of a folder with the head that its weights have; no weight is read yet.

    Args:
        folder: has weights.
        pooled: whether rows of tokens are wanted, whatever head there is.
        adapter: which adapter's weights are added; "" for none.

    Raises:
        NotDefinedError: no definition describes the model; the message is the reason.
        BuildError: its files do not belong together.
    """
    names = Entries(folder.encoder / TOKENIZER_CONFIG).raw.get("model_input_names")
    return write(
        folder.config.file,
        Entries(folder.config.file).raw,
        folder.weights,
        task=SENTENCES if pooled or folder.head.pooling else folder.task,
        labels=len(folder.config.labels),
        tokenizer_inputs=names if isinstance(names, list) else None,
        adapter=adapter,
    )


def reason_without(folder: Folder, adapter: str = "") -> str:
    """Why no definition describes a folder's model with this adapter; "" where one does.

    Raises:
        BuildError: its files do not belong together.
    """
    try:
        write_defined(folder, adapter=adapter)
    except NotDefinedError as error:
        return str(error)
    return ""
