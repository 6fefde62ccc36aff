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
        adapter: which adapter's weights are added, of a model that has several; "" for none.
    """

    keys: Keys
    tensors: Tensors
    graph: EncoderGraph
    labels: int
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


Outputs = Mapping[str, tuple[str, Sequence[int | str]]]
WriteHead = Callable[[Writing, EncoderRows], Outputs]


@dataclass(frozen=True)
class Definition:
    """One family of encoders.

    Attributes:
        name: what it is called in messages.
        matches: whether a model is of it, by entries of config.json and names of tensors.
        encode: writes the encoder.
        types: how many token types the model has.
        heads: by task (padfree.contract.texts) what writes the head; tasks without one are not described.
        code: classes of models' own code that compute the same, as `auto_map` names them.
        has_adapters: whether the model may have adapters, one of which can be asked for.
        is_own: of which models nothing but a second reading, made for this project, was compared with the definition.
    """

    name: str
    matches: Callable[[Keys, frozenset[str]], bool]
    encode: Callable[[Writing], EncoderRows]
    types: Callable[[Keys], int]
    heads: Mapping[str, WriteHead]
    code: frozenset[str] = frozenset()
    has_adapters: bool = False
    is_own: Callable[[Keys], bool] = lambda _: False


@dataclass(frozen=True)
class DefinedModel:
    """A whole model, of which no weight is read yet.

    Attributes:
        name: of the definition.
        graph: all nodes.
        outputs: what its outputs are.
        is_own: as of its definition, of this model.
    """

    name: str
    graph: EncoderGraph
    outputs: Outputs
    is_own: bool = False

    def model(self, storage: Storage) -> Model:
        """The model with its weights.

        Args:
            storage: MAP: files are mapped, and what needs no change is used where it lies; otherwise read.
        """
        return self.graph.to_model(self.outputs, storage)
