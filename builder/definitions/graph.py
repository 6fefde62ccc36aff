# SPDX-License-Identifier: Apache-2.0
"""Collects the nodes and weights of an encoder that is being written; weights are read from files at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper
from padfree.contract.machine import share_heap
from padfree.onnx_tools.files import LARGE_BYTES, LARGE_MODEL_BYTES, MessageBuilder, Model, Storage, Weights

from .reader import MadeWeight, Reader
from .tensors import Weight

OPSET, _IR_VERSION = 17, 8
_FLOAT_BYTES = 4
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_AXES = ("batch", "sequence")
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Unseen:
    """Tokens that get rows and that no token sees (unseen.py); their id is the number of the others'.

    Attributes:
        row: the row of the word embeddings that they have.
        longest: most tokens of a sequence that has some.
    """

    row: int
    longest: int


class EncoderGraph(MessageBuilder):
    """Nodes of opset 17, and weights.

    Args:
        takes_types: whether token_type_ids are an input.
        unseen: tokens that none sees; None: there are none.
    """

    def __init__(self, *, takes_types: bool, unseen: Unseen | None = None) -> None:
        super().__init__(prefix="/", opset=OPSET)
        self.inputs = (IDS, MASK, TYPES) if takes_types else (IDS, MASK)
        self._constants: dict[tuple[str, str, tuple[int, ...], bytes], str] = {}
        self._weights: dict[str, Weight | MadeWeight] = {}
        self.unseen = unseen
        self._is_unseen = ""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names of nodes begin with this, for reports."""
        outer, self.prefix = self.prefix, f"{self.prefix}{name}/"
        yield
        self.prefix = outer

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, name: str = "") -> str:
        """Numbers; equal ones share one constant."""
        array = np.asarray(values, dtype)
        key = (name, array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = super().constant(array, dtype, name)
        return self._constants[key]

    def weight(self, weight: Weight | MadeWeight) -> str:
        """A weight; taken again, it is the same constant."""
        self._weights[weight.name] = weight
        return weight.name

    def words(self, table: Weight) -> str:
        """Rows of the table [V, E] by input_ids: [B, S, E]."""
        rows = table.shape[0]
        if self.unseen is None:
            return self.op("Gather", self.weight(table), IDS)
        row, is_unseen = self.unseen.row, self.op("Cast", self.op("Equal", IDS, rows), to=TensorProto.FLOAT)
        self._is_unseen = self.unsqueeze(is_unseen, -1)
        longer = MadeWeight(
            f"{table.name}/with row {row} again",
            (rows + 1, *table.shape[1:]),
            (table,),
            lambda arrays: np.concatenate([arrays[0], arrays[0][row : row + 1]]),
        )
        return self.op("Gather", self.weight(longer), IDS)

    def is_unseen(self) -> str:
        """1 where a token is unseen, else 0: [B, S, 1], of the ids that `words` has looked up."""
        return self._is_unseen

    def length(self) -> str:
        """S as a scalar."""
        return self.op("Squeeze", self.op("Shape", IDS, start=1, end=2), [0])

    def positions(self) -> str:
        """0 to S - 1, [S]."""
        return self.count_to(self.length())

    def to_model(self, outputs: Mapping[str, tuple[str, Sequence[int | str]]], storage: Storage) -> Model:
        """The model, with the weights read, or deferred where they are many (deferred_data.py).

        Args:
            outputs: by name of the output, its tensor and its dimensions after the batch.
            storage: where the weights are to be.
        """
        self.graph.name = "encoder"
        for name in self.inputs:
            self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, _AXES))
        for name, (result, dims) in outputs.items():
            self.op("Identity", result, output=name)
            self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (_AXES[0], *dims)))
        opsets = [helper.make_opsetid("", OPSET)]
        model = Model(
            helper.make_model(self.graph, producer_name="padfree", opset_imports=opsets, ir_version=_IR_VERSION),
            Weights(storage),
        )
        self._read_weights(model)
        return model

    def _read_weights(self, model: Model) -> None:
        reader = Reader(model.weights)
        for weight in self._weights.values():
            reader.open(weight)
        sizes = {name: _FLOAT_BYTES * math.prod(weight.shape) for name, weight in self._weights.items()}
        is_large = sum(sizes.values()) > LARGE_MODEL_BYTES
        if is_large:
            share_heap()
        now = {name: weight for name, weight in self._weights.items() if not is_large or sizes[name] < LARGE_BYTES}
        for name, weight in self._weights.items():
            if name not in now:
                tensor = model.proto.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=weight.shape)
                model.weights.hold(tensor, reader.defer(weight))
        with ThreadPoolExecutor() as pool:
            for name, values in zip(now, pool.map(reader.read, now.values()), strict=True):
                model.add_weight(name, values)
        model.weights.align()
