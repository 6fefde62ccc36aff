# SPDX-License-Identifier: Apache-2.0
"""Both models without layers that repeat others, for slow checks: what holds for one layer holds for those like it.

Two stretches of a model are alike if the same operators with the same attributes are wired in the same way, and only
weights along features differ: matrices that rows are multiplied by, biases, and the factors of norms. Everything else
(tables of positions, biases of scores, masks, windows, single numbers) is the same in both, bit by bit. A stretch is
left out of both models at once, between cuts that `origins` names in both. It must be like an earlier stretch in the
original and in the rewritten model, and must follow the same kind of stretch as that one does.

So all layers that differ in more than their weights stay. Weights are checked elsewhere: a layer whose weights were
mixed up shows in the whole models, with any tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnx import GraphProto

from ..files import Model, copy_message, replace_items
from ..importing import keep_needed
from .stretches import Cut, Form, Stretches

_LEAST_CUTS = 4
_STARTS = 8  # how many cuts are tried as the first one
_WORTHWHILE = 0.75  # at most this fraction of the nodes may stay


@dataclass(frozen=True)
class ShortenedModels:
    """Both models without repeated layers. `nodes`: how many the rewritten one still has, `of` how many it had."""

    original: Model
    rewritten: Model
    nodes: int
    of: int


def without_repeated_layers(original: Model, rewritten: Model, origins: Mapping[str, str]) -> ShortenedModels | None:
    """The models without layers that are like others; None where that would leave out little or nothing.

    Args:
        original: nodes in the order in which they compute, as in `rewritten`.
        rewritten: with function bodies.
        origins: tensor [T,...] of the rewritten model -> the tensor [B,S,...] of the original that it replaces.
    """
    sides = [Stretches.of(model) for model in (original, rewritten)]
    if sides[0] is None or sides[1] is None:
        return None
    match = _Cuts.most(sides[0], sides[1], origins)
    if match is None:
        return None
    cut = _longest_repeat(match.forms, match.shapes)
    if cut is None:
        return None
    first, last = cut
    pairs = zip((original, rewritten), (match.originals, match.packed), sides, strict=True)
    models = [_without(model, names[first], names[last], side) for model, names, side in pairs if side is not None]
    if models[0] is None or models[1] is None:
        return None
    nodes, of = (len(model.proto.graph.node) for model in (models[1], rewritten))
    return ShortenedModels(models[0], models[1], nodes, of) if nodes <= _WORTHWHILE * of else None


@dataclass(frozen=True)
class _Cuts:
    """Cuts of both models, in order: all that is computed from tokens passes through them.

    originals, packed: their tensors. shapes: those of the packed ones. forms: what both models compute from one cut to
    the next.
    """

    originals: Sequence[Cut]
    packed: Sequence[Cut]
    shapes: Sequence[object]
    forms: Sequence[tuple[Form, Form]]

    @classmethod
    def most(cls, original: Stretches, rewritten: Stretches, origins: Mapping[str, str]) -> _Cuts | None:
        """As many cuts as there are; None if they are too few for a repeat, or comparing them would take too long."""
        shapes = _shapes(rewritten.graph)
        origins_known = {name: origin for name, origin in origins.items() if name in shapes and original.makes(origin)}
        start, best = "", list[tuple[Cut, Cut]]()
        for name in rewritten.in_order(origins_known)[:_STARTS]:
            pairs = _match(rewritten.cuts(name), original.cuts(origins_known[name]), origins_known)
            if len(pairs) > len(best):
                start, best = name, pairs
        if len(best) < _LEAST_CUTS:
            return None
        packed, originals = [pair[0] for pair in best], [pair[1] for pair in best]
        before, after = original.forms(origins_known[start], originals), rewritten.forms(start, packed)
        if before is None or after is None:
            return None
        sizes = [tuple(shapes[name] for name in cut) for cut in packed]
        return cls(originals, packed, sizes, list(zip(before, after, strict=True)))


def _match(packed: Sequence[Cut], originals: Sequence[Cut], origins: Mapping[str, str]) -> list[tuple[Cut, Cut]]:
    """The cuts that correspond in both models, in the order that they have in both."""
    order = {frozenset(cut): at for at, cut in enumerate(originals)}
    pairs, last = list[tuple[Cut, Cut]](), -1
    for cut in packed:
        names = tuple(origins.get(name, "") for name in cut)
        at = order.get(frozenset(names), -1)
        if at > last:
            pairs.append((cut, names))
            last = at
    return pairs


def _longest_repeat(forms: Sequence[tuple[Form, Form]], shapes: Sequence[object]) -> tuple[int, int] | None:
    """Cuts between which both models may be left out: the longest run of stretches that all repeat earlier ones.

    Each of them follows a kind of stretch that it also follows earlier, and so does the stretch after the run.
    """
    numbers = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    kinds = [numbers[form] for form in forms]
    best: tuple[int, int] | None = None
    for first in range(2, len(kinds)):
        there = set(pairwise(kinds[:first]))
        last = first
        for at in range(first, len(kinds)):
            if (kinds[at - 1], kinds[at]) not in there:
                break
            joins = at + 1 < len(kinds) and (kinds[first - 1], kinds[at + 1]) in there
            if joins and shapes[first] == shapes[at + 1]:
                last = at + 1
        if last - first > (0 if best is None else best[1] - best[0]):
            best = first, last
    return best


def _without(model: Model, first: Cut, last: Cut, stretches: Stretches) -> Model | None:
    """A model that reads the tensors `first` instead of `last`; None if anything else needs what lies between."""
    between, new_names = stretches.between(first, last), dict(zip(last, first, strict=True))
    result = copy_message(model.proto)
    for node in result.graph.node:
        for index, name in enumerate(node.input):
            if name in new_names:
                node.input[index] = new_names[name]
    keep_needed(result)
    if any(name in between for node in result.graph.node for name in node.output):
        return None
    _drop_unread(result.graph)
    return model.with_proto(result)


def _drop_unread(graph: GraphProto) -> None:
    names_read = {name for node in graph.node for name in node.input} | {item.name for item in graph.output}
    replace_items(graph.initializer, (item for item in graph.initializer if item.name in names_read))


def _shapes(graph: GraphProto) -> dict[str, tuple[int | str, ...]]:
    """The shapes that tensors declare."""
    return {
        item.name: tuple(dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim)
        for item in graph.value_info
        if item.type.tensor_type.HasField("shape")
    }
