# SPDX-License-Identifier: Apache-2.0
"""The packed interface with the input names of NVIDIA's variable-length BERT engines, so that callers need not change.

These engines take input_ids and segment_ids [T], cu_seqlens [B+1] and max_seqlen [S], all of them int32; only the shape
of max_seqlen is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from padfree.contract.names import PER_SEQUENCE

from .analysis import Editor
from .errors import RewriteError
from .passes.interface import MAX_SEQLEN, SEQ_LENS

VARSEQLEN = "varseqlen"
IDS, SEGMENTS, SUMS = "input_ids", "segment_ids", "cu_seqlens"
INPUTS = (IDS, SEGMENTS, SUMS, MAX_SEQLEN)
_SEGMENT_NAMES = ("token_type_ids", SEGMENTS)


def take_varseqlen(graph: gs.Graph, metadata: dict[str, Any]) -> None:
    """Gives a graph of the packed interface, and its metadata, these inputs, in place.

    Lengths are differences of cu_seqlens. A model without token types does not read segment_ids.

    Raises:
        RewriteError: the model has further inputs, or outputs with one of these names.
    """
    names = _new_names(metadata)
    clash = next((tensor.name for tensor in graph.outputs if tensor.name in INPUTS), None)
    if clash is not None:
        raise RewriteError(
            f"the model's output '{clash}' has the name of an input of the interface {VARSEQLEN}; give it another name "
            "when exporting, or choose the packed interface"
        )
    editor, given_ids = Editor(graph), {id(tensor) for tensor in graph.inputs}
    for tensor in [item for item in graph.tensors().values() if item.name in INPUTS and id(item) not in given_ids]:
        tensor.name = editor.fresh(f"{tensor.name}_inside")
    inputs = {names.get(tensor.name, tensor.name): tensor for tensor in graph.inputs}
    for name, tensor in inputs.items():
        tensor.name = name
    lengths = inputs.pop(SEQ_LENS)
    for name, size in ((SEGMENTS, "T"), (SUMS, "B+1"), (MAX_SEQLEN, "S")):
        inputs.setdefault(name, gs.Variable(name, np.int32, [size]))
    graph.inputs = [inputs[name] for name in INPUTS]
    _add_lengths(editor, inputs[SUMS], lengths)
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


def _add_lengths(editor: Editor, sums: gs.Tensor, lengths: gs.Tensor) -> None:
    """seq_lens = cu_seqlens[1:] - cu_seqlens[:-1], as the first nodes of the graph."""
    graph, count, stem = editor.graph, len(editor.graph.nodes), f"padfree_{SUMS}"
    new = editor.with_stem(stem)
    begins = new.op("Slice", sums, [0], [-1])
    ends = new.op("Slice", sums, [1], [2**31 - 1])
    new.op("Sub", ends, begins, output=lengths)
    graph.nodes = [*graph.nodes[count:], *graph.nodes[:count]]


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
