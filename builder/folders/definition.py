# SPDX-License-Identifier: Apache-2.0
"""A folder's model by a definition, which needs neither torch nor code of the model."""

from __future__ import annotations

from padfree.contract.texts import LATE, SENTENCES

from ..definitions.dispatch import write
from ..definitions.errors import NotDefinedError
from ..definitions.graph import Unseen
from ..definitions.model import DefinedModel
from .folder import TOKENIZER_CONFIG, Folder
from .late_interaction import PROJECTION
from .objects import Entries


def write_defined(
    folder: Folder, *, pooled: bool = False, adapter: str = "", unseen: Unseen | None = None
) -> DefinedModel:
    """The encoder of a folder with the head that its weights have; no weight is read yet.

    Args:
        folder: has weights.
        pooled: whether rows of tokens are wanted, whatever head there is.
        adapter: which adapter's weights are added; "" for none.
        unseen: tokens that none sees; None: there are none.

    Raises:
        NotDefinedError: no definition describes the model; the message is the reason.
        BuildError: its files do not belong together.
    """
    rows_alone = pooled or folder.head.pooling or folder.task == LATE
    names = Entries(folder.encoder / TOKENIZER_CONFIG).raw.get("model_input_names")
    return write(
        folder.config.file,
        Entries(folder.config.file).raw,
        folder.weights,
        task=SENTENCES if rows_alone else folder.task,
        labels=len(folder.config.labels),
        tokenizer_inputs=names if isinstance(names, list) else None,
        adapter=adapter,
        unseen=unseen,
        apart=(PROJECTION,) if folder.task == LATE else (),
    )


def reason_without(folder: Folder, adapter: str = "") -> str:
    """Why no definition describes a folder's model with this adapter; "" where one does.

    Raises:
        BuildError: its files do not belong together.
    """
    late = folder.late
    unseen = Unseen(0, late.query_length) if late is not None and late.hides else None
    try:
        write_defined(folder, adapter=adapter, unseen=unseen)
    except NotDefinedError as error:
        return str(error)
    return ""
