# SPDX-License-Identifier: Apache-2.0
"""Finds a model's definition, and writes the model: exactly one definition may match, and nothing may be left over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildError
from .errors import NotDefinedError
from .families import DEFINITIONS
from .graph import TYPES, EncoderGraph, Unseen
from .heads import rows
from .keys import Keys
from .model import DefinedModel, Definition, Writing
from .tensors import Tensors

HEADS = (
    "classifier.", "qa_outputs.", "cls.", "lm_head.", "score.", "predictions.", "vocab_layer_norm.", "vocab_projector.",
    "vocab_transform.",
)  # fmt: skip
"""Parts of the names of heads' tensors, which are ignored where only the rows of tokens are asked for."""


def write(
    config: Path,
    raw: Mapping[str, Any],
    files: Sequence[Path],
    *,
    task: str,
    labels: int,
    tokenizer_inputs: Collection[str] | None = None,
    adapter: str = "",
    unseen: Unseen | None = None,
    apart: Collection[str] = (),
) -> DefinedModel:
    """Writes the model of a config.json and its weights; of the weights only names and shapes are read yet.

    Args:
        config: config.json, for messages.
        raw: what it holds.
        files: the safetensors files.
        task: one of padfree.contract.texts.TASKS.
        labels: how many classes the head has.
        tokenizer_inputs: names of inputs that the tokenizer makes; None where it does not say.
        adapter: which adapter's weights are added; "" for none.
        unseen: tokens that none sees; None: there are none.
        apart: names of tensors that somebody else reads.

    Raises:
        NotDefinedError: no definition describes this model, or not all of it.
        BuildError: config.json and weights belong to different models, or a file is damaged.
    """
    keys, tensors = Keys(config, raw), Tensors(files)
    definition = _definition(keys, tensors)
    _check_code(keys, definition)
    if adapter and not definition.has_adapters:
        raise BuildError(f"--adapter {adapter}: {definition.name} has no adapters; leave it out")
    head = definition.heads.get(task)
    if head is None:
        raise NotDefinedError(f"{definition.name} has no definition for the task {task}")
    kinds = definition.types(keys)
    takes_types = kinds > 1 and (tokenizer_inputs is None or TYPES in tokenizer_inputs)
    if unseen is not None and not definition.hides_tokens:
        raise NotDefinedError(f"{definition.name} has no definition for query expansion that is not attended to")
    graph = EncoderGraph(takes_types=takes_types, unseen=unseen)
    writing = Writing(keys, tensors, graph, labels, kinds, adapter)
    encoded = definition.encode(writing)
    outputs = head(writing, encoded)
    if head is rows:
        tensors.ignore(*HEADS)
    tensors.leave(*apart)
    keys.check_all_read()
    tensors.check_all_read()
    return DefinedModel(definition.name, graph, outputs, definition.is_own(keys))


def _definition(keys: Keys, tensors: Tensors) -> Definition:
    names = tensors.names()
    candidates = [definition for definition in DEFINITIONS if definition.matches(keys, names)]
    if not candidates:
        raise NotDefinedError(f"no definition is for the model_type {ascii(keys.raw.get('model_type'))[:60]}")
    if len(candidates) > 1:
        raise NotDefinedError(f"it could be any of {', '.join(definition.name for definition in candidates)}")
    return candidates[0]


def _check_code(keys: Keys, definition: Definition) -> None:
    """Refuses a model with code of its own, where that may compute something other than the definition."""
    classes_by_task = keys.inner("auto_map")
    code = None if classes_by_task is None else classes_by_task.raw.get("AutoModel")
    if code is not None and str(code).rpartition(".")[2] not in definition.code:
        raise NotDefinedError(f"its code is {ascii(code)[:60]}, and nothing is known of it")
