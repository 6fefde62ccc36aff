# SPDX-License-Identifier: Apache-2.0
"""Ids that a model knows by itself, such as the end of a text that it pools at, and sample ids that respect them.

Random ids have none, or several, of what such a model looks for, and padded slots with random ids hold what no
tokenizer puts there: the original itself then fails, or takes padding for tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from .graph import is_standard

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

PADDING_IDS = (0, 1)
"""What most tokenizers pad with: BERT's kind, and RoBERTa's."""

_MOST_COMPARED = 8  # ids in one constant: more are a table, not a look for one
_MOST_RULES = 12
_UNKNOWN_LIMIT = 2  # of inputs whose table is not known: flags are 0 and 1
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_SAME_IDS = (
    "Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "ScatterND", "Slice", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
_LOOK_FOR_LARGEST = ("ArgMax", "ReduceMax", "TopK")


@dataclass(frozen=True)
class SpecialIds:
    """What a model asks of the ids of one input: equal to one of `comparands`, or the `largest` of its sequence."""

    comparands: tuple[int, ...]
    largest: bool = False


@dataclass(frozen=True)
class IdRule:
    """How the ids of one input are: every sequence ends in `last`, and has none of `avoided` before it.

    `padding` is what padded slots hold; where that is `assumed`, the model reads it, and they hold nothing else.
    """

    last: int | None
    padding: int
    avoided: tuple[int, ...]
    limit: int
    assumed: bool = False

    @property
    def other_padding(self) -> int:
        """Another id that padded slots may hold, the model looking for none of it; the same where there is none.

        Nor is there one where the model tells padding by this id.
        """
        if self.padding in self.avoided or self.assumed:
            return self.padding
        others = [value for value in range(self.limit) if value not in self.avoided and value != self.padding]
        return others[0] if others else self.padding

    def at_tokens(self, ids: Array, mask: Mask) -> Array:
        """Ids [B,S], any of them, as this rule has them in kept slots; `padding` in the others."""
        choices = np.setdiff1d(np.arange(self.limit), self.avoided)
        result = np.where(np.isin(ids, self.avoided) | (ids >= self.limit), choices[ids % choices.size], ids)
        if self.last is not None:
            slots = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
            result[np.arange(len(result)), slots] = self.last
        return np.asarray(np.where(mask, result, self.padding))

    def __str__(self) -> str:
        end = "ends anyhow" if self.last is None else f"ends in {self.last}"
        return f"{end}, has none of {', '.join(map(str, self.avoided)) or 'nothing'} before, padding is {self.padding}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the metadata."""
        entry = {"last": self.last, "padding": self.padding, "avoided": list(self.avoided), "limit": self.limit}
        return entry | {"assumed": True} if self.assumed else entry

    @staticmethod
    def of(entry: Mapping[str, Any]) -> IdRule:
        """The rule that the metadata holds."""
        avoided, is_assumed = tuple(entry["avoided"]), entry.get("assumed", False)
        return IdRule(entry["last"], entry["padding"], avoided, entry["limit"], is_assumed)


def special_ids(graph: gs.Graph) -> dict[str, SpecialIds]:
    """By input, the ids that nodes look for in it; inputs of which nothing is asked are left out."""
    source = {
        tensor.name: tensor.name
        for tensor in graph.inputs
        if tensor.dtype is not None and np.issubdtype(np.dtype(tensor.dtype), np.integer)
    }
    comparands: dict[str, set[int]] = {}
    largest: set[str] = set()
    for node in graph.nodes:
        names = [source[tensor.name] for tensor in node.inputs if tensor.name in source]
        if not names:
            continue
        if is_standard(node, *_COMPARISONS):
            for tensor in node.inputs:
                comparands.setdefault(names[0], set()).update(_constants(tensor))
        elif is_standard(node, *_LOOK_FOR_LARGEST):
            largest.add(names[0])
        elif is_standard(node, "Where") or (is_standard(node, *_SAME_IDS) and node.inputs[0].name in source):
            source[node.outputs[0].name] = names[0]
    return {
        name: SpecialIds(tuple(sorted(comparands.get(name, ()))), name in largest)
        for name in dict.fromkeys(source.values())
        if comparands.get(name) or name in largest
    }


def _constants(tensor: gs.Tensor) -> Iterator[int]:
    if isinstance(tensor, gs.Constant) and int(np.prod(tensor.shape, dtype=np.int64)) <= _MOST_COMPARED:
        yield from (int(value) for value in np.asarray(tensor.values).reshape(-1) if value == int(value) and value >= 0)


def rules_for(special: Mapping[str, SpecialIds], limits: Mapping[str, int | None]) -> list[dict[str, IdRule]]:
    """Ways in which sample ids may be what the model looks for, to be tried in this order.

    Args:
        special: as special_ids gives it.
        limits: input -> ids are below it; None where that is not known.
    """
    each = {name: _rules(item, limits[name]) for name, item in special.items() if name in limits}
    each = {name: rules for name, rules in each.items() if rules}
    count = min(_MOST_RULES, max((len(rules) for rules in each.values()), default=0))
    return [{name: rules[min(at, len(rules) - 1)] for name, rules in each.items()} for at in range(count)]


def _rules(special: SpecialIds, limit: int | None) -> list[IdRule]:
    below_limit = [value for value in special.comparands if limit is None or value < limit]
    bound = max([*below_limit, 1]) + 3 if limit is None else limit
    lasts: list[int | None] = [*below_limit, *([bound - 1] if special.largest else []), None]
    rules = []
    for last in dict.fromkeys(lasts):
        avoided = tuple(sorted({*below_limit, *([] if last is None else [last])}))
        if len(avoided) >= bound:
            continue
        fillers = [value for value in dict.fromkeys([*below_limit, 0, 1, 2]) if value != last and value < bound]
        rules += [IdRule(last, filler, avoided, bound) for filler in fillers[:2]]
    return rules


def padding_rules(limits: Mapping[str, int | None], padding: int) -> dict[str, IdRule]:
    """What padded slots hold where the model reads them: the tokenizer's padding in ids, zeros in other inputs.

    Args:
        limits: input -> ids are below it; None where that is not known. Those with the largest table are the ids.
        padding: the id that the tokenizer pads with.
    """
    largest = max((limit for limit in limits.values() if limit is not None), default=0)
    rules = {}
    for name, limit in limits.items():
        own = padding if limit is not None and limit == largest and padding < limit else 0
        rules[name] = IdRule(None, own, (), limit or _UNKNOWN_LIMIT, assumed=True)
    return rules
