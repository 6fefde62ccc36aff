# SPDX-License-Identifier: Apache-2.0
"""Moves the boundary outward: what works on packed tokens is computed packed, whatever is left stays padded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import (
    STANDARD_DOMAINS,
    Editor,
    NoRule,
    PackedForm,
    dtype_name,
    find_padfree,
    is_number,
    is_output,
    is_padfree,
    is_standard,
    made_by,
    node_name,
    packed_form,
    tidy,
    token_axis,
)
from ..analysis.symbolic import Analysis, Facts, analyse
from ..match import Miss
from ..match.values import Mask, mask_of
from .base import Boundary, PassResult, boundary_of, pack_tokens, unpack_tokens
from .positions.position_chains import lift_positions
from .positions.positions import Positions, offset_of, spread_positions

NAME = "layout"


# Which nodes that apply the mask stay padded, so that padded nodes find in masked slots what the mask made there. They
# are tried in this order: most padded nodes need none of it, some need what is made right before them.
KEPT_MASKING = ("none", "near", "all")


def layout(keep: str) -> Callable[[gs.Graph, Analysis], PassResult]:
    """The pass that computes every node that a layout rule knows on packed tokens; the others stay, with a reason."""

    def run(graph: gs.Graph, analysis: Analysis) -> PassResult:
        boundary = boundary_of(graph)
        if lift_positions(graph, analysis):
            tidy(graph)
            analysis = analyse(graph, analysis)
        if spread_positions(graph, analysis, boundary):
            tidy(graph)
            analysis = analyse(graph, analysis)
        editor = Editor(graph)
        positions = Positions(editor, boundary)
        forms, misses = dict[int, PackedForm](), list[Miss]()
        for node in _candidates(graph, analysis):
            facts = [analysis[tensor] for tensor in node.inputs]
            try:
                for tensor in node.outputs:
                    forms[id(node)] = packed_form(node, facts, analysis[tensor])
            except NoRule as reason:
                misses.append(Miss(node_name(node), f"'{node_name(node)}' ({node.op}) stays padded: {reason}"))
        forms |= _leading(graph, analysis, forms)
        mask = mask_of(analysis[boundary.mask])
        staying = set() if mask.source is None else _kept_for_padded_nodes(graph, forms, mask.source, keep)
        for node in [item for item in graph.nodes if id(item) in forms]:
            if id(node) in staying:
                name = node_name(node)
                misses.append(Miss(name, f"'{name}' ({node.op}) stays padded: it masks tokens that padded nodes read"))
            else:
                _replace(editor, analysis, boundary, positions, mask, node, forms[id(node)])
        _join(editor)
        return PassResult(NAME, len(forms) - len(staying), tuple(misses))

    return run


def _candidates(graph: gs.Graph, analysis: Analysis) -> list[gs.Node]:
    """The nodes of `_below_unpack`, except padfree operators, that have an operand or result [B,...,S,...]."""
    dirty = _below_unpack(graph, analysis)
    candidates = []
    for node in graph.nodes:
        tokens = any(token_axis(analysis[tensor].shape) for tensor in [*node.inputs, *node.outputs])
        if id(node) in dirty and tokens and not is_padfree(node, node.op):
            candidates.append(node)
    return candidates


def _leading(graph: gs.Graph, analysis: Analysis, forms: dict[int, PackedForm]) -> dict[int, PackedForm]:
    """The forms of nodes that read inputs alone, and make floats for packed nodes, or what look-ups of floats read.

    Weights of tokens by their ids are an example: with the padded interface they may be computed padded or packed; with
    the packed one, ids would be padded for nothing.
    """
    leading = dict[int, PackedForm]()
    for node in reversed(graph.nodes):
        if id(node) in forms or node.domain not in STANDARD_DOMAINS or not node.outputs:
            continue
        readers = [item for tensor in node.outputs for item in tensor.outputs]
        packed = [id(item) in forms or id(item) in leading or is_padfree(item, "PadfreePack") for item in readers]
        facts = analysis[node.outputs[0]]
        number = (facts.dtype or "").startswith("float")
        number = number or any(id(item) in leading or _is_look_up(item) for item in readers)
        if not (readers and all(packed) and number) or any(is_output(graph, item) for item in node.outputs):
            continue
        input_facts = [analysis[tensor] for tensor in node.inputs]
        with contextlib.suppress(NoRule):
            form = packed_form(node, input_facts, facts)
            if form.tokens:
                leading[id(node)] = form
    return leading


def _kept_for_padded_nodes(graph: gs.Graph, forms: dict[int, PackedForm], mask: str, keep: str) -> set[int]:
    """Nodes whose values in masked slots padded nodes may rely on: those that apply the mask, and what follows them.

    Unpacking gives zeros there, where the original has what the mask made (such as -1e9 before a maximum).
    """
    if keep == "none":
        return set()
    leaking: set[int] = set()
    for node in reversed(graph.nodes):
        if keep == "near" and is_standard(node, "MatMul"):
            continue
        for reader in [item for tensor in node.outputs for item in tensor.outputs]:
            inside = is_padfree(reader, reader.op) or is_standard(reader, "Shape")
            if not inside and (id(reader) not in forms or id(reader) in leaking):
                leaking.add(id(node))
    staying: set[int] = set()
    masked = _computed_from(graph, mask)  # below, also what such nodes, and the padded ones between them, make
    for node in graph.nodes:
        if (id(node) in forms and id(node) not in leaking) or is_padfree(node, node.op) or is_standard(node, "Shape"):
            continue
        if any(tensor.name in masked for tensor in node.inputs):
            masked.update(tensor.name for tensor in node.outputs)
            if id(node) in forms:
                staying.add(id(node))
    return staying


def _computed_from(graph: gs.Graph, mask: str) -> set[str]:
    """The mask, and the tensors whose values depend on it and not on what was unpacked."""
    mask_names, unpacked = {mask}, set[str]()
    for node in graph.nodes:
        names = {tensor.name for tensor in node.inputs}
        if is_padfree(node, "PadfreeUnpack") or names & unpacked:
            unpacked.update(tensor.name for tensor in node.outputs)
        elif names & mask_names and not is_padfree(node, node.op) and not is_standard(node, "Shape"):
            mask_names.update(tensor.name for tensor in node.outputs)
    return mask_names


def _join(editor: Editor) -> None:
    """Replaces what packs a tensor that was just unpacked by the packed tensor, in its own type."""
    for node in list(editor.graph.nodes):
        source = node.inputs[0].inputs if is_padfree(node, "PadfreePack") else []
        if source and is_padfree(source[0], "PadfreeUnpack"):
            editor.redirect(node.outputs[0], source[0].inputs[0])
    for node in list(editor.graph.nodes):
        there = made_by(node.inputs[0], "Cast") if is_standard(node, "Cast") else None
        if there is not None and _is_there_and_back(there.inputs[0].dtype, node):
            editor.redirect(node.outputs[0], there.inputs[0])


def _is_there_and_back(dtype: np.dtype | None, node: gs.Node) -> bool:
    """Whether a Cast brings numbers of this type back from the int32 that they were packed as."""
    through = node.inputs[0].dtype
    if dtype is None or through is None or np.dtype(through) != np.int32 or np.dtype(dtype).kind not in "biu":
        return False
    return dtype_name(int(node.attrs["to"])) == str(np.dtype(dtype).name)


def _below_unpack(graph: gs.Graph, analysis: Analysis) -> set[int]:
    """The nodes that read, however indirectly, what was unpacked, or embeddings. Others see ids and masks alone."""
    nodes: set[int] = set()
    names = {tensor.name for node in find_padfree(graph, "PadfreeUnpack") for tensor in node.outputs}
    names |= {tensor.name for tensor in graph.inputs if _holds_embeddings(tensor)}
    for node in graph.nodes:
        if (
            _is_look_up(node)
            or _reads_positions(analysis, node)
            or (any(item.name in names for item in node.inputs) and not is_standard(node, "Shape"))
        ):
            nodes.add(id(node))
            names.update(tensor.name for tensor in node.outputs)
    return nodes


def _holds_embeddings(tensor: gs.Tensor) -> bool:
    """Whether an input holds floats for every token: what is computed from them is worth packing."""
    return len(tensor.shape) > 2 and np.issubdtype(np.dtype(tensor.dtype), np.floating)


def _reads_positions(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node computes floats from the positions of a whole batch."""
    if not any((analysis[tensor].dtype or "").startswith(("float", "bfloat")) for tensor in node.outputs):
        return False
    facts = [analysis[tensor] for tensor in node.inputs]
    return any(offset_of(item, token_axis(item.shape) or 0) is not None for item in facts if token_axis(item.shape))


def _is_look_up(node: gs.Node) -> bool:
    """Whether a node takes rows of a table of floats: worth packing wherever the indices come from."""
    table = node.inputs[0] if is_standard(node, "Gather") else None
    return isinstance(table, gs.Constant) and np.issubdtype(table.dtype, np.floating)


def _replace(
    editor: Editor,
    analysis: Analysis,
    boundary: Boundary,
    positions: Positions,
    mask: Mask,
    node: gs.Node,
    form: PackedForm,
) -> None:
    inputs: list[gs.Tensor] = []
    for position, tensor in enumerate(node.inputs):
        if position in form.constants:
            inputs.append(editor.constant("packed_argument", form.constants[position]))
        elif position in form.rows:
            sequence = token_axis(analysis[node.outputs[0]].shape) or 1
            inputs.append(positions.row(tensor, analysis[tensor], sequence))
        elif position in form.of_slots:
            result = analysis[node.outputs[0]]
            sequence = token_axis(result.shape) or 1
            inputs.append(positions.index_of(tensor, analysis[tensor], result.rank or 0, sequence))
        elif position in form.tokens:
            value = _kept_number(analysis[tensor], mask) if len(form.tokens) > 1 else None
            if value is not None:
                inputs.append(editor.constant("kept", value))
            else:
                inputs.append(_token_operand(editor, analysis, boundary, positions, tensor))
        else:
            inputs.append(tensor)
    same = inputs[0] if form.is_same else _unchanged_operand(analysis, node, inputs)
    if same is not None:
        unpack_tokens(editor, same, boundary, analysis[node.outputs[0]], node.outputs[0])
        return
    outputs = [editor.variable(f"{tensor.name}_packed", _dtype(analysis[tensor])) for tensor in node.outputs]
    packed = gs.Node(
        node.op, editor.fresh(f"{node.name or node.op}_packed"), {**node.attrs, **form.attrs}, inputs, outputs,
        domain=node.domain,
    )  # fmt: skip
    editor.graph.nodes.append(packed)
    for tensor, result in zip(list(node.outputs), outputs, strict=True):
        unpack_tokens(editor, result, boundary, analysis[tensor], tensor)


def _unchanged_operand(analysis: Analysis, node: gs.Node, inputs: list[gs.Tensor]) -> gs.Tensor | None:
    """The operand that a packed node leaves as it is, as where the mask is applied to tokens; None without one."""
    if len(node.inputs) < 2 or node.domain not in STANDARD_DOMAINS:
        return None
    numbers = [item.values.reshape(-1) if is_number(item) else None for item in inputs]
    index: int | None = None
    if node.op == "Where" and numbers[0] is not None:
        index = 1 if numbers[0][0] else 2
    elif node.op in ("Mul", "Div") and numbers[1] is not None and numbers[1][0] == 1:
        index = 0
    elif node.op == "Mul" and numbers[0] is not None and numbers[0][0] == 1:
        index = 1
    if index is None or isinstance(inputs[index], gs.Constant):
        return None
    return inputs[index] if analysis[node.inputs[index]].shape == analysis[node.outputs[0]].shape else None


def _kept_number(facts: Facts, mask: Mask) -> np.ndarray | None:
    """The number that a tensor is at every kept slot, where the mask alone makes it."""
    outcomes = mask.outcomes(facts.expr, ("i0", "i1"))
    return None if outcomes is None else np.asarray(outcomes[0], dtype=facts.dtype)


def _token_operand(
    editor: Editor, analysis: Analysis, boundary: Boundary, positions: Positions, tensor: gs.Tensor
) -> gs.Tensor:
    """An operand [B,...,S,...] as [T,...]."""
    facts = analysis[tensor]
    row = positions.pack(facts)
    return row if row is not None else pack_tokens(editor, tensor, boundary, facts)


def _dtype(facts: Facts) -> np.dtype | None:
    return None if facts.dtype is None else np.dtype(facts.dtype)
