# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the parts that stayed padded read masked slots, where the rewritten graph holds zeros.

The padded parts are run alone, twice, with different values in the masked slots. A part whose results on kept tokens
change cannot be reproduced, and is refused rather than giving silently different results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort

from ..analysis import (
    B,
    IdRule,
    S,
    SpecialIds,
    T,
    copy_of,
    dims_of_shape,
    is_padfree,
    is_standard,
    limit_of,
    node_name,
    rows_before,
    rules_for,
    token_elements,
    with_counts,
)
from ..analysis.symbolic import Analysis, Poly
from ..errors import RewriteError
from ..files import Model, open_session
from ..importing.fixed_axes.sizes import join
from ..match.values import Mask, mask_of
from ..passes.base import boundary_of

_LENGTHS, _LENGTH = (7, 1, 4, 2), 7  # from a sequence without padding to one with all slots masked but the first
_MORE = 2  # further slots of padding: a result that changes with them depends on the longest sequence of the batch
_GARBAGE = 8.0  # size of numbers in masked slots, relative to those in kept ones
# What kept slots hold: numbers of both signs, or small positive ones. The first kind alone may hide what padding
# changes after a division by what should be a count, the root of a negative number, a tanh or an exponential.
_KINDS = ("normal", "positive")
_POSITIVE = (0.02, 0.06)
_TOLERANCE = 1e-4
_RECURRENT = ("GRU", "LSTM", "RNN")


class PaddingIsReadError(RewriteError):
    """Raised when a result on kept tokens depends on masked slots, or when that cannot be determined."""


class UnknownSizesError(PaddingIsReadError):
    """Raised when sizes follow from the inputs' values, so that it is unknown which numbers are padding."""


@dataclass(frozen=True)
class ProbeResult:
    """What a probe that passed found out.

    reasons: why results differ under masks that are not right-padded. rules: input -> the rule that its ids followed.
    """

    reasons: tuple[str, ...] = ()
    rules: Mapping[str, IdRule] = field(default_factory=dict)


@dataclass(frozen=True)
class _PaddedPart:
    """The padded part of a graph as a graph of its own, the names of its results in order, and what makes them."""

    graph: gs.Graph
    results: tuple[str, ...]
    final: frozenset[str]
    makers: dict[str, gs.Node]
    mask: Mask
    seq_lens: str  # the lengths' name
    inputs: frozenset[str]  # the model's inputs except for the mask
    inputs_vary: bool  # whether they may hold anything in masked slots

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The session that runs the graph for all masks and ids."""
        return open_session(Model(gs.export_onnx(self.graph, do_type_check=False)), optimize=False)


def probe(
    graph: gs.Graph, analysis: Analysis, *, right_padded_only: bool, special: Mapping[str, SpecialIds] | None = None
) -> ProbeResult:
    """Checks all padded parts of a graph of the padded interface; `special` are ids that the model looks for.

    Masks that are not right-padded are not tried where `right_padded_only`.
    Raises PaddingIsReadError where results depend on masked slots of right-padded batches.
    """
    part = _padded_part(graph, analysis, inputs_too=right_padded_only)
    if part is None or (part.mask.source is None and not right_padded_only):
        return ProbeResult()  # nothing is padded, or no slot is padding
    limits = {name: limit_of(graph, name) for name in special or {}}
    refusal: RewriteError | None = None
    for rules in [{}, *rules_for(special or {}, limits)]:
        try:
            reader = _difference(part, analysis, _masks()[0], rules)
        except RewriteError as error:
            # A failure on some ids says less than a finding with ids that the graph looks for.
            says_more = isinstance(error, PaddingIsReadError) and not isinstance(refusal, PaddingIsReadError)
            refusal = error if refusal is None or says_more else refusal
            continue
        if reader is None:
            others = () if right_padded_only else _masks()[1:]
            differing = [_difference(part, analysis, mask, rules) for mask in others]
            reasons = (f"{_text(node)} reads masked slots" for node in differing if node is not None)
            return ProbeResult(tuple(dict.fromkeys(reasons)), rules)
        refusal = refusal or PaddingIsReadError(
            f"{_text(reader)} reads masked slots: its result depends on padding, and so on the other sequences of the "
            f"batch; {_advice(reader)}"
        )
    if refusal is None:
        raise AssertionError("nothing was tried")
    raise refusal


def _masks() -> tuple[np.ndarray, ...]:
    slots, lengths = np.arange(_LENGTH), np.asarray(_LENGTHS)[:, None]
    holes = np.asarray(
        [[1, 0, 1, 1, 0, 0, 1], [0, 1, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 1]], dtype=bool
    )
    return slots < lengths, slots >= _LENGTH - lengths, holes


def _padded_part(graph: gs.Graph, analysis: Analysis, inputs_too: bool) -> _PaddedPart | None:
    """Everything from PadfreeUnpack to what padfree operators read, or to the outputs; None where there is nothing.

    With `inputs_too`, this includes what is computed from token inputs, whose masked slots the packed interface does
    not get, and from the mask, whose rows are there as long as the longest sequence.
    """
    mask = mask_of(analysis[boundary_of(graph).mask])
    names = {tensor.name for tensor in graph.inputs if inputs_too}
    makers: dict[str, gs.Node] = {}
    packed: set[str] = set()
    for node in graph.nodes:
        if is_padfree(node, "PadfreeUnpack"):
            names.add(node.outputs[0].name)
            packed.add(node.inputs[0].name)
        elif is_padfree(node, node.op):
            packed.update(tensor.name for tensor in node.inputs)
        elif any(tensor.name in names for tensor in node.inputs) and not is_standard(node, "Shape"):
            if is_standard(node, "Gather") and analysis[node.inputs[1]].shape == (T,):
                packed.add(node.inputs[0].name)  # tokens take rows of it
            for tensor in node.outputs:
                names.add(tensor.name)
                makers[tensor.name] = node
    final = {name for name in makers if name in packed or name in {tensor.name for tensor in graph.outputs}}
    if not final:
        return None
    results = [name for name in makers if analysis.facts[name].dtype is not None]
    part = _part(graph, results)
    for tensor in (*part.inputs, *part.outputs):
        tensor.dtype, tensor.shape = np.dtype(analysis[tensor].dtype or "float32"), None
    input_names = frozenset(tensor.name for tensor in graph.inputs if tensor.name != mask.source)
    seq_lens = str(boundary_of(graph).seq_lens.name)
    return _PaddedPart(part, tuple(results), frozenset(final), makers, mask, seq_lens, input_names, inputs_too)


def _part(graph: gs.Graph, results: Sequence[str]) -> gs.Graph:
    """A graph of its own that makes these results from the inputs and from the results of padfree nodes."""
    names, nodes = set(results), list[gs.Node]()
    inputs, tensors = list(graph.inputs), dict[str, gs.Tensor]()
    for node in reversed(graph.nodes):
        if not is_padfree(node, node.op) and any(tensor.name in names for tensor in node.outputs):
            nodes.append(node)
            names.update(tensor.name for tensor in node.inputs)
    for node in graph.nodes:
        tensors.update((tensor.name, tensor) for tensor in node.outputs)
        if is_padfree(node, node.op):
            inputs += node.outputs
    names_read = {tensor.name for node in nodes for tensor in node.inputs}
    part_inputs = [tensor for tensor in inputs if tensor.name in names_read]
    return copy_of(graph, nodes[::-1], part_inputs, [tensors[name] for name in results])


def _difference(part: _PaddedPart, analysis: Analysis, mask: np.ndarray, rules: Mapping[str, IdRule]) -> gs.Node | None:
    """The first node whose results on kept tokens change with the content or the number of the masked slots."""
    trials = []
    try:
        session = part.session
        for kind in _KINDS:
            feeds = _feeds(part, analysis, mask, rules, kind)
            first, second = (session.run(None, feed) for feed in feeds)
            wide = _widen(part, analysis, feeds[0], rules) if part.inputs_vary else None
            trials.append((first, second, first if wide is None else _of_more_slots(session, wide) or first))
    except Exception as error:  # onnxruntime's errors have no common base of their own
        names = ", ".join(sorted({_text(part.makers[name]) for name in part.final})[:3])
        raise RewriteError(
            f"what stays padded around {names} fails in onnxruntime on {mask.shape[0]} sequences of {mask.shape[1]} "
            f"slots ({str(error).splitlines()[0]}), so it is unknown whether it reads padding; if the original "
            "fails the same way, as files that hold traced sizes do, export it again "
            "(torch.onnx.export with dynamo=True); otherwise replace these operators by standard ones"
        ) from error
    readers = (_first_difference(part, analysis, mask, *trial) for trial in trials)
    return next((reader for reader in readers if reader is not None), None)


def _of_more_slots(session: ort.InferenceSession, feed: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Results with more padding; None for a graph whose tables end before that."""
    try:
        return list(session.run(None, feed))
    except Exception:  # onnxruntime's errors have no common base of their own
        return None


def _first_difference(
    part: _PaddedPart,
    analysis: Analysis,
    mask: np.ndarray,
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    third: Sequence[np.ndarray],
) -> gs.Node | None:
    """If a final result has changed on kept tokens: the first node whose result has."""
    changed = []
    for name, before, *others in zip(part.results, first, second, third, strict=True):
        dims = dims_of_shape(analysis.facts[name].shape)
        is_token = np.broadcast_to(True if dims is None else token_elements(dims, mask), before.shape)
        expected = before[is_token]
        for after in others:
            same = after
            if after.shape != before.shape and dims is not None and after is others[1]:
                same = join([after], dims, (mask.shape[0], mask.shape[1]), mask.shape[1] + _MORE)
            if same.shape != before.shape or not _close(expected, same[is_token]):
                changed.append(name)
                break
    if not any(name in part.final for name in changed):
        return None
    changed_names = [name for name in changed if _has_known_sizes(analysis.facts[name].shape)]
    if not any(name in part.final for name in changed_names):
        maker = part.makers[next(name for name in changed if name not in changed_names)]
        others = [node for node in part.makers.values() if node is not maker]
        rows_of_each = (rows_before(node, analysis) for node in [maker, *others])
        rows = next((name for name in rows_of_each if name is not None), None)
        advice = (
            "replace the operator by others whose sizes follow from batch and sequence"
            if rows is None
            else f"keep what comes before it, a row for every token, and do the rest outside: --outputs {rows}"
        )
        raise UnknownSizesError(
            f"{_text(maker)} makes a tensor of unknown sizes, which follow from the inputs' values, so that nobody can "
            f"tell which of its numbers are padding; {advice}"
        )
    longer = {name: _other_slots(analysis.facts[name].shape) for name in changed_names if name in part.final}
    if all(longer.values()):
        name, size = next(iter(longer.items()))
        raise PaddingIsReadError(
            f"{_text(part.makers[name])} makes {size} slots of sequences of S, and nobody can tell which of them are "
            "padding; export the model with all of its slots, and leave some out, or add some, afterwards"
        )
    return part.makers[changed_names[0]]


def _other_slots(shape: tuple[Poly, ...] | None) -> str | None:
    """The size of an axis that has a few slots more or fewer than the sequences; None where there is none."""
    sizes = [(size, (size - S).constant()) for size in shape or ()]
    return next((f"S {'-' if more < 0 else '+'} {abs(more)}" for _, more in sizes if more), None)


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether all numbers are about the same; usually they are equal, which is the faster check."""
    if np.array_equal(one, other):
        return True
    return np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _text(node: gs.Node) -> str:
    return f"'{node_name(node)}' ({node.op})"


def _advice(node: gs.Node) -> str:
    """How to keep a node from reading padding."""
    if is_standard(node, *_RECURRENT):
        return "give it the sequences' lengths (its input sequence_lens), for its backward direction starts in padding"
    return "mask the tokens before they are mixed (multiply by the attention mask)"


def _widen(
    part: _PaddedPart, analysis: Analysis, feed: Mapping[str, np.ndarray], rules: Mapping[str, IdRule]
) -> dict[str, np.ndarray] | None:
    """The same tokens with more padding after them; None where a size of an input depends on S but is not S."""
    wide = {}
    for name, values in feed.items():
        shape = analysis.facts[name].shape or ()
        if any("S" in size.atoms() and size != S for size in shape):
            return None
        filler = rules[name].padding if name in rules else part.mask.masked[0] if name == part.mask.source else 0
        pads = [(0, _MORE if size == S else 0) for size in shape]
        wide[name] = np.pad(values, pads, constant_values=filler) if pads else values
    return wide


def _has_known_sizes(shape: tuple[Poly, ...] | None) -> bool:
    return shape is not None and all(size.atoms() <= {"B", "S", "T"} for size in shape)


def _noise(generator: np.random.Generator, size: list[int], kind: str) -> np.ndarray:
    return generator.standard_normal(size) if kind == "normal" else generator.uniform(*_POSITIVE, size)


def _feeds(
    part: _PaddedPart, analysis: Analysis, mask: np.ndarray, rules: Mapping[str, IdRule], kind: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs without garbage and with it, the same in kept slots; `kind` is one of _KINDS."""
    generator = np.random.default_rng(1)
    sizes = {"B": mask.shape[0], "S": mask.shape[1], "T": int(mask.sum())}
    feeds: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    for tensor in part.graph.inputs:
        shape = analysis.facts[tensor.name].shape
        if shape is None:
            raise RewriteError(f"the shape of '{tensor.name}' is not known")
        size = [poly.evaluate(lambda name: sizes[name]) for poly in shape]
        dtype = np.dtype(tensor.dtype)
        noise = [_noise(generator, size, kind) for _ in range(2)]
        has_slots, varies = tuple(shape[:2]) == (B, S), part.inputs_vary or tensor.name not in part.inputs
        rule = rules.get(tensor.name) if tuple(shape) == (B, S) else None
        is_float = np.issubdtype(dtype, np.floating)
        ids = None
        for garbage, feed in zip((0.0, _GARBAGE), feeds, strict=True):
            if tensor.name == part.mask.source:
                values = np.where(mask, part.mask.kept_values[0], part.mask.masked[0])
            elif is_float:
                values = noise[0].copy()
                if has_slots:
                    values[~mask] = noise[1][~mask] * garbage
            elif tensor.name == part.seq_lens:
                values = mask.sum(1)
            elif rule is not None:
                ids = rule.at_tokens(generator.integers(0, rule.limit, size), mask) if ids is None else ids
                values = np.where(mask, ids, rule.other_padding if varies and garbage else rule.padding)
            else:
                values = noise[0] > 0  # all True where numbers are positive: then a search finds the first slot
                if has_slots and varies:
                    values = np.where(mask.reshape(*mask.shape, *[1] * (values.ndim - 2)), values, garbage > 0)
            feed[tensor.name] = np.asarray(values, dtype)
    first, second = (with_counts(feed, rules, mask) for feed in feeds)
    return first, second
