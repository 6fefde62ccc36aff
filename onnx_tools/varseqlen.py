# SPDX-License-Identifier: Apache-2.0
"""The packed interface with the input names of NVIDIA's variable-length BERT engines, so that callers need not change.

These engines take input_ids and segment_ids [T], cu_seqlens [B+1] and max_seqlen [S], all of them int32; only the shape
of max_seqlen is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper
from padfree.contract.names import PER_SEQUENCE

from .errors import RewriteError
from .passes.interface import MAX_SEQLEN, SEQ_LENS

VARSEQLEN = "varseqlen"
IDS, SEGMENTS, SUMS = "input_ids", "segment_ids", "cu_seqlens"
INPUTS = (IDS, SEGMENTS, SUMS, MAX_SEQLEN)
_SEGMENT_NAMES = ("token_type_ids", SEGMENTS)


def take_varseqlen(model: ModelProto, metadata: dict[str, Any]) -> None:
    """Gives a model of the packed interface, and its metadata, these inputs, in place.

    Lengths are differences of cu_seqlens. A model without token types does not read segment_ids.

    Raises:
        RewriteError: the model has further inputs, or outputs with one of these names.
    """
    graph = model.graph
    names = _new_names(metadata)
    outputs = {value.name for value in graph.output}
    clash = next((name for name in INPUTS if name in outputs), None)
    if clash is not None:
        raise RewriteError(
            f"the model's output '{clash}' has the name of an input of the interface {VARSEQLEN}; give it another name "
            "when exporting, or choose the packed interface"
        )
    _rename(graph, _with_free_names(graph, names))
    input_names = {value.name for value in graph.input}
    for value in [item for item in graph.input if item.name == SEQ_LENS]:
        graph.input.remove(value)
    for name, size in ((SEGMENTS, "T"), (SUMS, "B+1"), (MAX_SEQLEN, "S")):
        if name not in input_names:
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT32, [size]))
    ordered_inputs = sorted(graph.input, key=lambda value: INPUTS.index(value.name))
    del graph.input[:]
    graph.input.extend(ordered_inputs)
    _add_lengths(graph)
    _describe(metadata, names)


def _new_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The engines' names by those of the packed inputs. Raises RewriteError where an input has none."""
    tokens = [item["name"] for item in metadata["inputs"] if item["role"] == "tokens" and item.get("width") is None]
    if not tokens:
        other = next(item["name"] for item in metadata["inputs"] if item["role"] == "tokens")
        raise RewriteError(
            f"the model takes embeddings ('{other}') and no ids, for which the interface {VARSEQLEN} has no place: its "
            f"inputs are {', '.join(INPUTS)}; choose the packed interface"
        )
    ids = IDS if IDS in tokens else next((name for name in tokens if name not in _SEGMENT_NAMES), tokens[0])
    names = {ids: IDS}
    for item in metadata["inputs"]:
        if item["role"] not in ("tokens", PER_SEQUENCE) or item["name"] == ids:
            continue
        if item["name"] not in _SEGMENT_NAMES or SEGMENTS in names.values():
            raise RewriteError(
                f"the model has an input '{item['name']}', for which the interface {VARSEQLEN} has no place: its "
                f"inputs are {', '.join(INPUTS)}; choose the packed interface"
            )
        names[item["name"]] = SEGMENTS
    return names


def _with_free_names(graph: GraphProto, names: Mapping[str, str]) -> dict[str, str]:
    """The names and, for tensors inside the graph that have the name of an engine's input, new ones."""
    names_in_use = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    result = dict(names)
    for name in INPUTS:
        if name in names_in_use:
            number = next(n for n in range(len(names_in_use) + 1) if f"{name}_{n}" not in names_in_use)
            result[name] = f"{name}_{number}"
    return result


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames tensors of a graph, also where graphs inside it read them."""
    changed = {old: new for old, new in names.items() if old != new}
    for value in (*graph.input, *graph.value_info, *graph.initializer):
        value.name = changed.get(value.name, value.name)
    for node in graph.node:
        for names_of in (node.input, node.output):
            for position, name in enumerate(names_of):
                names_of[position] = changed.get(name, name)
        for inner in _graphs(node.attribute):
            _rename(inner, changed)


def _graphs(attributes: Any) -> Iterator[GraphProto]:
    for attribute in attributes:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _add_lengths(graph: GraphProto) -> None:
    """seq_lens = cu_seqlens[1:] - cu_seqlens[:-1], as the first nodes of the graph."""
    stem = f"padfree_{SUMS}"
    for name, number in {"first": 0, "second": 1, "last": -1, "end": 2**31 - 1}.items():
        graph.initializer.append(helper.make_tensor(f"{stem}_{name}", TensorProto.INT64, [1], [number]))
    parts = (("begins", "first", "last"), ("ends", "second", "end"))
    nodes = [
        helper.make_node("Slice", [SUMS, f"{stem}_{start}", f"{stem}_{end}"], [f"{stem}_{part}"], f"{stem}_{part}")
        for part, start, end in parts
    ]
    nodes.append(helper.make_node("Sub", [f"{stem}_ends", f"{stem}_begins"], [SEQ_LENS], f"{stem}_lengths"))
    for node in reversed(nodes):
        graph.node.insert(0, node)
    graph.value_info.append(helper.make_tensor_value_info(SEQ_LENS, TensorProto.INT32, ["B"]))


def _describe(metadata: dict[str, Any], names: Mapping[str, str]) -> None:
    """Writes the metadata's interface and inputs."""
    tokens = {names[item["name"]]: item for item in metadata["inputs"] if item["role"] == "tokens"}
    unread_entry = {"role": "unread", "limit": None, "dtype": "int32"}
    inputs = []
    for name in (IDS, SEGMENTS):
        item = dict(tokens.get(name, unread_entry))
        if item.get("name", name) != name:
            item["original"] = item["name"]
        inputs.append({**item, "name": name})
    inputs += [{"name": name, "role": name, "limit": None, "dtype": "int32"} for name in (SUMS, MAX_SEQLEN)]
    metadata |= {"interface": VARSEQLEN, "inputs": inputs}
