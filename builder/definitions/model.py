# SPDX-License-Identifier: Apache-2.0
"""A model that is being written: what a definition reads, and where its nodes go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from padfree.onnx_tools.files import Model, Storage

from .graph import EncoderGraph
from .keys import Keys
from .tensors import Tensors


@dataclass(frozen=True)
class Writing:
    """What a definition gets.

    Attributes:
        keys: the entries of config.json.
        tensors: all tensors of the files.
        graph: where the nodes go.
        labels: how many classes a head has.
        kinds: how many token types the model has.
        adapter: which adapter's weights are added, of a model that has several; "" for none.
    """

    keys: Keys
    tensors: Tensors
    graph: EncoderGraph
    labels: int
    kinds: int
    adapter: str = ""


@dataclass(frozen=True)
class EncoderRows:
    """Rows of tokens [B, S, E] that an encoder has written, and what its heads need to know.

    Attributes:
        rows: the last hidden state.
        width: E.
        tensors: those of the encoder, without the prefix of their names.
    """

    rows: str
    width: int
    tensors: Tensors


def of_type(*names: str) -> Callable[[Keys, frozenset[str]], bool]:
    """Whether a model is of one of these types, by config.json alone."""
    return lambda keys, _: keys.raw.get("model_type") in names


Outputs = Mapping[str, tuple[str, Sequence[int | str]]]
WriteHead = Callable[[Writing, EncoderRows], Outputs]


@dataclass(frozen=True)
class Definition:
    """One family of encoders.

    Attributes:
        name: what it is called in messages.
        matches: whether a model belongs to it, by entries of config.json and names of tensors.
        encode: writes the encoder.
        types: how many token types the model has.
        heads: functions that write the head, by task (padfree.contract.texts); other tasks are not defined.
        code: classes of models' own code that compute the same, as `auto_map` names them.
        has_adapters: whether the model may have adapters, one of which can be asked for.
        is_own: for which models the definition was compared only with a second implementation made for this project.
        hides_tokens: whether the model may have tokens that none sees, as unseen.py has them.
    """

    name: str
    matches: Callable[[Keys, frozenset[str]], bool]
    encode: Callable[[Writing], EncoderRows]
    types: Callable[[Keys], int]
    heads: Mapping[str, WriteHead]
    code: frozenset[str] = frozenset()
    has_adapters: bool = False
    is_own: Callable[[Keys], bool] = lambda _: False
    hides_tokens: bool = False


@dataclass(frozen=True)
class DefinedModel:
    """A whole model, of which no weight is read yet.

    Attributes:
        name: the definition's.
        graph: all nodes.
        outputs: its outputs, as `EncoderGraph.to_model` takes them.
        is_own: whether its definition's `is_own` holds for this model.
    """

    name: str
    graph: EncoderGraph
    outputs: Outputs
    is_own: bool = False

    def model(self, storage: Storage) -> Model:
        """The model with its weights.

        Args:
            storage: MAP: files are mapped, and weights that need no change are used in place; otherwise files are read.
        """
        return self.graph.to_model(self.outputs, storage)
