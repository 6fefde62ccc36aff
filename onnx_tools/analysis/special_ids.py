# SPDX-License-Identifier: Apache-2.0
"""Ids that a model looks for, such as that of the end of a text that it pools at, and sample ids that respect them.

Random ids contain none of what such a model looks for, or several, and padded slots with random ids hold what no
tokenizer puts there: even the original then fails, or takes padding for tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ..files import Array
from .collected_tokens import collects, numbered_tokens
from .graph import is_standard
from .onnx_operators import Movement, moving

MaskArray = npt.NDArray[np.bool_]

PADDING_IDS = (0, 1)
"""What most tokenizers pad with: BERT's kind, then RoBERTa's."""

_MOST_COMPARED = 8  # ids in one constant: more are a table, not a search for an id
_MOST_RULES = 12
_UNKNOWN_LIMIT = 2  # for inputs whose table is not known: flags are 0 and 1
_MOST_MARKERS = 3  # tokens of each marker, per sequence
_EQUAL_MARKERS = 2  # the same where all sequences have equally many
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_SAME_IDS = moving(*Movement) - {"Concat"} | {"ScatterND"}
_LOOK_FOR_LARGEST = ("ArgMax", "ReduceMax", "TopK")


@dataclass(frozen=True)
class SpecialIds:
    """What a model looks for in the ids of one input: those equal to `comparands`, or the `largest` in a sequence.

    markers: those of `comparands` whose tokens it collects, any number per sequence. numbers: the input numbers tokens
    from 1 on, and is 0 elsewhere; `count` is the input that holds how many are numbered.
    """

    comparands: tuple[int, ...]
    largest: bool = False
    markers: tuple[int, ...] = ()
    numbers: bool = False
    count: str | None = None


@dataclass(frozen=True)
class IdRule:
    """What the ids of one input must be like: every sequence ends in `last`, and has none of `avoided` before it.

    `padding` is what padded slots hold; where that is `assumed`, the model reads it, and they hold nothing else.
    Every sequence holds each of `markers` at least once, and with `equally` as often as all other sequences do.
    With `numbers`, some tokens are numbered from 1 on, the others are 0, and the input `count` has their number.
    """

    last: int | None
    padding: int
    avoided: tuple[int, ...]
    limit: int
    assumed: bool = False
    markers: tuple[int, ...] = ()
    equally: bool = False
    numbers: bool = False
    count: str | None = None

    @property
    def other_padding(self) -> int:
        """Another id that padded slots may hold and the model does not look for; `padding` where there is none.

        There is none either where the model recognises padding by its id.
        """
        if self.padding in self.avoided or self.assumed:
            return self.padding
        others = [value for value in range(self.limit) if value not in self.avoided and value != self.padding]
        return others[0] if others else self.padding

    def at_tokens(self, ids: Array, mask: MaskArray) -> Array:
        """Any ids [B,S] made to follow this rule in kept slots, with `padding` in the others."""
        if self.numbers:
            is_numbered = mask & ((ids % 2 == 1) | (mask.cumsum(1) == 1))
            return np.asarray(np.where(is_numbered, is_numbered.cumsum(1), self.padding))
        choices = np.setdiff1d(np.arange(self.limit), self.avoided)
        result = np.where(np.isin(ids, self.avoided) | (ids >= self.limit), choices[ids % choices.size], ids)
        if self.last is not None:
            slots = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
            result[np.arange(len(result)), slots] = self.last
        if self.markers:
            result = self._with_markers(result, mask)
        return np.asarray(np.where(mask, result, self.padding))

    def _with_markers(self, ids: Array, mask: MaskArray) -> Array:
        """The ids with markers at every other token, from the first one on."""
        lengths, kinds = mask.sum(1), len(self.markers)
        rounds = 1 + np.arange(len(mask)) % _MOST_MARKERS
        if self.equally:
            rounds = np.full(len(mask), np.clip((lengths.min() + 1) // 2 // kinds, 1, _EQUAL_MARKERS))
        rank = mask.cumsum(1) - 1
        is_marker = mask & (rank % 2 == 0) & (rank // 2 < rounds[:, None] * kinds)
        return np.asarray(np.where(is_marker, np.asarray(self.markers)[rank // 2 % kinds], ids))

    def __str__(self) -> str:
        if self.numbers:
            return f"numbers tokens from 1 on, is {self.padding} elsewhere"
        avoided = ", ".join(map(str, self.avoided)) or "nothing"
        if self.markers:
            often = "equally often in all sequences" if self.equally else "in every sequence"
            return f"holds {', '.join(map(str, self.markers))} {often}, padding is {self.padding}"
        end = "ends in any id" if self.last is None else f"ends in {self.last}"
        return f"{end}, has none of {avoided} before, padding is {self.padding}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the metadata."""
        entry = {"last": self.last, "padding": self.padding, "avoided": list(self.avoided), "limit": self.limit}
        others: dict[str, Any] = {"assumed": self.assumed, "equally": self.equally, "numbers": self.numbers}
        others |= {"markers": list(self.markers)}
        return entry | {name: value for name, value in (*others.items(), ("count", self.count)) if value}

    @staticmethod
    def of(entry: Mapping[str, Any]) -> IdRule:
        """The rule that the metadata holds."""
        names = ("last", "padding", "limit", "assumed", "equally", "numbers", "count")
        values = {name: entry[name] for name in names if name in entry}
        return IdRule(**values, avoided=tuple(entry["avoided"]), markers=tuple(entry.get("markers", ())))


def with_rules(feeds: Mapping[str, Array], rules: Mapping[str, IdRule], mask: MaskArray) -> dict[str, Array]:
    """Inputs of one batch, made to follow their rules; counts of numbered tokens are set to match.

    Args:
        feeds: ids [B,S] and anything else; counts [B] or [B,N].
        rules: input -> its rule; inputs without one are left as they are.
        mask: bool [B,S], True at tokens.
    """
    inputs_by_rule = {
        name: rules[name].at_tokens(values, mask).astype(values.dtype) if name in rules else values
        for name, values in feeds.items()
    }
    return with_counts(inputs_by_rule, rules, mask)


def with_counts(feeds: Mapping[str, Array], rules: Mapping[str, IdRule], mask: MaskArray) -> dict[str, Array]:
    """The same inputs with the right counts of the tokens that are numbered; the arguments are those of with_rules."""
    counts = {
        rule.count: np.broadcast_to(
            (feeds[name] * mask).max(1).reshape(-1, *[1] * (feeds[rule.count].ndim - 1)), feeds[rule.count].shape
        ).astype(feeds[rule.count].dtype)
        for name, rule in rules.items()
        if name in feeds and rule.count is not None and rule.count in feeds
    }
    return {**feeds, **counts}


def special_ids(graph: gs.Graph) -> dict[str, SpecialIds]:
    """For each input, the ids that nodes look for in it; inputs in which they look for nothing are left out."""
    source = {
        tensor.name: tensor.name
        for tensor in graph.inputs
        if tensor.dtype is not None and np.issubdtype(np.dtype(tensor.dtype), np.integer)
    }
    comparands: dict[str, set[int]] = {}
    markers: dict[str, set[int]] = {}
    largest: set[str] = set()
    for node in graph.nodes:
        names = [source[tensor.name] for tensor in node.inputs if tensor.name in source]
        if not names:
            continue
        if is_standard(node, *_COMPARISONS):
            for tensor in node.inputs:
                comparands.setdefault(names[0], set()).update(_constants(tensor))
            if is_standard(node, "Equal") and collects(node):
                ids = (value for tensor in node.inputs for value in _constants(tensor))
                markers.setdefault(names[0], set()).update(ids)
        elif is_standard(node, *_LOOK_FOR_LARGEST):
            largest.add(names[0])
        elif is_standard(node, "Where") or (is_standard(node, *_SAME_IDS) and node.inputs[0].name in source):
            source[node.outputs[0].name] = names[0]
    numbers = numbered_tokens(graph)
    return {
        name: SpecialIds(
            tuple(sorted(comparands.get(name, ()))),
            name in largest,
            tuple(sorted(markers.get(name, ()))),
            name in numbers,
            numbers.get(name),
        )
        for name in dict.fromkeys(source.values())
        if (comparands.get(name) or name in largest or name in numbers) and name not in numbers.values()
    }


def _constants(tensor: gs.Tensor) -> Iterator[int]:
    if isinstance(tensor, gs.Constant) and int(np.prod(tensor.shape, dtype=np.int64)) <= _MOST_COMPARED:
        yield from (int(value) for value in np.asarray(tensor.values).reshape(-1) if value == int(value) and value >= 0)


def rules_for(special: Mapping[str, SpecialIds], limits: Mapping[str, int | None]) -> list[dict[str, IdRule]]:
    """Sets of rules for sample ids that may suit what the model looks for, to be tried in this order.

    Args:
        special: what special_ids returned.
        limits: input -> what its ids are below; None where that is not known.
    """
    each = {name: _rules(item, limits[name]) for name, item in special.items() if name in limits}
    each = {name: rules for name, rules in each.items() if rules}
    count = min(_MOST_RULES, max((len(rules) for rules in each.values()), default=0))
    return [{name: rules[min(at, len(rules) - 1)] for name, rules in each.items()} for at in range(count)]


def _rules(special: SpecialIds, limit: int | None) -> list[IdRule]:
    below_limit = [value for value in special.comparands if limit is None or value < limit]
    bound = max([*below_limit, 1]) + 3 if limit is None else limit
    if special.numbers:
        return [IdRule(None, 0, (), bound, assumed=True, numbers=True, count=special.count)]
    lasts: list[int | None] = [*below_limit, *([bound - 1] if special.largest else []), None]
    rules = []
    for last in dict.fromkeys(lasts):
        avoided = tuple(sorted({*below_limit, *([] if last is None else [last])}))
        if len(avoided) >= bound:
            continue
        fillers = [value for value in dict.fromkeys([*below_limit, 0, 1, 2]) if value != last and value < bound]
        rules += [IdRule(last, filler, avoided, bound) for filler in fillers[:2]]
    markers = tuple(value for value in special.markers if value in below_limit)
    fillers = [value for value in PADDING_IDS if value not in markers and value < bound]
    if not markers or not fillers:
        return rules
    any_number, equal_number = (
        IdRule(None, fillers[0], markers, bound, markers=markers, equally=is_equal) for is_equal in (False, True)
    )
    return [any_number, *rules[: _MOST_RULES - 2], equal_number]


def padding_rules(limits: Mapping[str, int | None], padding: int) -> dict[str, IdRule]:
    """What padded slots hold where the model reads them: the tokenizer's padding in ids, zeros in other inputs.

    Args:
        limits: input -> what its ids are below; None where that is not known. Those with the largest table are the ids.
        padding: the id that the tokenizer pads with.
    """
    largest = max((limit for limit in limits.values() if limit is not None), default=0)
    rules = {}
    for name, limit in limits.items():
        own = padding if limit is not None and limit == largest and padding < limit else 0
        rules[name] = IdRule(None, own, (), limit or _UNKNOWN_LIMIT, assumed=True)
    return rules
