# SPDX-License-Identifier: Apache-2.0
"""The model of a folder before it is made: whoever needs it makes it, perhaps in another process."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto
from padfree.contract.names import DEFINITION_METADATA_KEY, TEXT_METADATA_KEY
from padfree.contract.phases import EXPORTING, IMPORTS, Phases
from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import LATE, SENTENCES
from padfree.onnx_tools.files import Model, Storage, open_model
from padfree.onnx_tools.importing import bind_inputs
from padfree.runtime.text import TokenizerFile

from ..definitions.errors import NotDefinedError
from ..definitions.graph import Unseen
from ..errors import BuildError
from .definition import write_defined
from .export import check_exportable, export
from .folder import Folder, describe, read_folder
from .graph import add_head
from .head import Head, HeadOptions
from .onnx_files import quantized_operator


@dataclass(frozen=True)
class FolderModel:
    """How a folder's model is made.

    Attributes:
        folder: the folder.
        path: the name of its file, which may not have been written; the tokenizer lies beside it.
        options: pooling, normalisation and outputs, where the user asks for others than the folder's.
        mask: the input that is the padding mask, for pooling; None: attention_mask.
        fixed: inputs that are bound to numbers.
        kept: entries of TextInfo that come from the tokenizer (`kept_of`); empty: there is none.
        exports: whether torch has to export its weights, which takes a while.
        unseen: tokens of queries that none sees; None: there are none.
    """

    folder: Path
    path: Path
    options: HeadOptions
    mask: str | None
    fixed: Mapping[str, int | float]
    kept: Mapping[str, Any]
    exports: bool
    unseen: Unseen | None = None

    def make(self, storage: Storage, phases: Phases, say: Callable[[str], object]) -> Model:
        """The model: exported, or of the folder's ONNX file, with the head and the TextInfo.

        Args:
            storage: where the weights of an ONNX file are to be.
            phases: gets the seconds of imports and export.
            say: gets what the user is to know of the model.

        Raises:
            BuildError: the folder cannot be used, or the options do not fit the model; RewriteError: an input cannot be
                bound.
        """
        folder = read_folder(self.folder, self.options)
        head = head_of(self.folder, self.options, folder.head)
        if folder.onnx.choice is None:
            model = self._of_weights(folder, head, storage, phases, say)
        else:
            model = open_model(folder.onnx.choice, storage)
            _check_file(model.proto, folder)
        if self.fixed:
            model = Model.of(bind_inputs(model.whole(), self.fixed))
        add_head(model.proto, head, self.options.outputs, mask=self.mask)
        text = replace(describe(folder.text, folder.task, head), **self.kept)
        if text.task != LATE and text.late is not None:
            text = replace(text, late=None, prompts={}, default_prompt=None)
        if not head.pools_prompt and not any(item.name == PROMPT_LENGTH for item in model.proto.graph.input):
            say(
                f"{self.folder}: its pooling leaves out the tokens of prompts, and the ONNX file's takes all: no "
                "prompts are kept"
            )
            text = replace(text, prompts={}, default_prompt=None)
        model.proto.metadata_props.add(key=TEXT_METADATA_KEY, value=json.dumps(text.to_dict()))
        return model

    def _of_weights(
        self, folder: Folder, head: Head, storage: Storage, phases: Phases, say: Callable[[str], object]
    ) -> Model:
        """The model by its definition; where there is none, by torch."""
        # Pooling that the user asks for takes the encoder's rows, whatever head the weights have.
        pooled = bool(head.pooling and (self.options.pooling or head.scores))
        unseen = self.unseen if head.of_tokens else None
        try:
            with phases.measure(EXPORTING):
                definition = write_defined(folder, pooled=pooled, adapter=self.options.adapter, unseen=unseen)
                own = " (own definition)" if definition.is_own else ""
                say(f"{self.folder}: reading its weights by padfree's definition of {definition.name}{own}")
                model = definition.model(storage)
                entry = json.dumps({"name": definition.name, "own": definition.is_own})
                model.proto.metadata_props.add(key=DEFINITION_METADATA_KEY, value=entry)
                return model
        except NotDefinedError as error:
            check_exportable(folder, str(error))
            say(f"{self.folder}: exporting its weights with torch ({error})")
        return self._export(replace(folder, task=SENTENCES) if pooled else folder, phases)

    def _export(self, folder: Folder, phases: Phases) -> Model:
        with phases.measure(IMPORTS):
            for name in ("torch", "transformers", "transformers.modeling_utils"):  # the last takes longest
                importlib.import_module(name)
        with phases.measure(EXPORTING):
            return export(folder)


def kept_of(tokenizer: TokenizerFile) -> dict[str, Any]:
    """The entries of TextInfo that come from a tokenizer."""
    return {
        "tokenizer_sha256": hashlib.sha256(tokenizer.content).hexdigest(),
        "truncation_side": tokenizer.truncation_side,
        "token_types": bool(tokenizer.token_types),
    }


def head_of(path: Path, options: HeadOptions, folder_head: Head) -> Head:
    """What follows the encoder; an error where the user asks for normalised vectors, or not, and there are none."""
    head = options.apply(folder_head)
    if options.normalize is not None and not head.pooling and head.splade is None:
        raise BuildError(
            f"{path}: --{'' if options.normalize else 'no-'}normalize is for vectors of texts, which --pooling makes, "
            f"and here are {'scores' if head.scores else 'rows of tokens'}; pass --pooling mean, for one, or leave it "
            "out"
        )
    return head


def _check_file(model: ModelProto, folder: Folder) -> None:
    """Refuses a quantised file, and one that is not the model of config.json."""
    file, rows = folder.onnx.choice, _table_rows(model)
    operator = quantized_operator(model)
    if operator is not None:
        raise BuildError(
            f"{file}: is quantised ({operator}), and padfree does not pack integer GEMMs; download "
            "model.safetensors or the float onnx/model.onnx of the model, too"
        )
    vocab_size = folder.config.vocab_size
    if rows is not None and vocab_size is not None and rows != vocab_size:
        raise BuildError(
            f"{folder.config.file}: says vocab_size {vocab_size}, the table in {file} has {rows} rows: they belong to "
            "different models; download the folder again"
        )


def _table_rows(model: ModelProto) -> int | None:
    """Rows of the table that input_ids choose from; None where that is not plain to see."""
    sizes = {item.name: list(item.dims) for item in model.graph.initializer}
    ids = {"input_ids"}
    for node in model.graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in ids:
            ids.add(node.output[0])
        if node.op_type == "Gather" and len(node.input) > 1 and node.input[1] in ids and node.input[0] in sizes:
            return int(sizes[node.input[0]][0])
    return None
