# SPDX-License-Identifier: Apache-2.0
"""What callers have to know about a rewritten model's inputs and outputs that their names do not tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .analysis import BATCH, SLOTS, IdRule, limit_of
from .pipeline import PassedGraph

_ID_NAMES = ("input_ids", "input_word_ids", "ids")
_TYPE_NAMES = ("token_type_ids", "segment_ids", "input_type_ids", "type_ids")
NOTE_ON_LEFT_PADDING = (
    "where padding lies before the tokens, so that the last slot holds one, sequences do not get what they get alone, "
    "either, as where positions are numbers of slots; take the last token by its index, hidden[arange(batch), "
    "attention_mask.sum(1) - 1], and export it again"
)
_EXPORT = "torch.onnx.export gives input_names to the model's arguments in their order"


def every_slot_counts(result: PassedGraph, interface: str) -> bool:
    """Whether the padded interface computes all slots as tokens, because no input tells what is padding."""
    return interface == "padded" and result.mask.source is None


def unread_inputs_of(result: PassedGraph) -> tuple[str, ...]:
    """The inputs that nothing reads, in the original and in the result."""
    return tuple(name for name in result.unread_inputs if name != result.mask.source)


def notes_on(result: PassedGraph, interface: str) -> tuple[str, ...]:
    """The notes, a sentence each; inputs that nothing reads come first."""
    return (*_unread_notes(result, interface), *_exchange_notes(result), *_zeros(result, interface))


def note_on_definition(entry: Mapping[str, Any]) -> str:
    """The note on an original whose definition was not compared with anybody else's code; "" for others."""
    definition = entry.get("definition") or {}
    if not definition.get("own"):
        return ""
    return (
        f"{definition['name']} is padfree's own definition: no library that can be run knows this type, so it was only "
        "compared with a second reading of its paper; compare some vectors with the model's own code"
    )


def note_on_padding(rules: Mapping[str, IdRule]) -> str:
    """What was assumed about padded slots, where the original reads them."""
    rules_text = ", ".join(f"{rule.padding} in '{name}'" for name, rule in rules.items())
    return (
        f"the original reads padding, which was taken to hold {rules_text}, as tokenizers fill it: then every sequence "
        "gets what it gets alone (--padding-id)"
    )


def notes_on_rows(axes: Mapping[str, str]) -> tuple[str, ...]:
    """What was assumed about inputs whose axis has a name of its own; `axes` has these names by input."""
    return tuple(
        f"input '{name}' [batch, {axis}] is taken to hold one number per sequence; where it holds N, fix that in the "
        f"original and rewrite it again: python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param {axis} "
        "--dim_value N model.onnx fixed.onnx"
        for name, axis in axes.items()
    )


def note_on_refuted_padding(ids: Sequence[int], *, was_named: bool) -> str:
    """The note on a model that gives sequences other results than alone, whichever of these ids all padding holds."""
    why = "--padding-id" if was_named else "what tokenizers fill it with, and ids whose rows are zeros"
    return (
        f"where padding holds {' or '.join(map(str, ids))} alone ({why}), the model does not give every sequence what "
        "it gets alone, either"
    )


def _unread_notes(result: PassedGraph, interface: str) -> Iterator[str]:
    names, tables = unread_inputs_of(result), _tables(result)
    sentence = f"nothing reads the input{'s' * (len(names) > 1)} {_list(names)}" if names else ""
    if result.mask.source is None:
        beside = "and no other tells" if names else "no input tells"
        if interface == "padded":
            follows = "every slot counts as a token, and padding changes results, as it does in the original"
        else:
            follows = "every sequence gets what the original gives it alone, not what it gives beside padding"
        sentence = (
            f"{sentence}, {beside} what is padding: {follows}" if sentence else f"{beside} what is padding: {follows}"
        )
        if not names and interface != "padded":
            sentence = ""
    if sentence:
        yield sentence
    for name, rows in tables.items():
        if names and "mask" in name.lower():
            yield (
                f"ids are read from '{name}', which chooses from a table of {rows} rows: a tensor that is given for "
                "two arguments is one input to torch.onnx.export; export with a tensor for each argument"
            )


def _exchange_notes(result: PassedGraph) -> Iterator[str]:
    """Notes on inputs that may have each other's names."""
    tables, mask = _tables(result), result.mask.source
    ids = max((name for name in tables if name in _ID_NAMES), key=lambda name: tables[name], default=None)
    types = max((name for name in tables if name in _TYPE_NAMES), key=lambda name: tables[name], default=None)
    if ids is not None and types is not None and tables[types] > tables[ids]:
        yield (
            f"'{types}' chooses from a table of {tables[types]} rows, '{ids}' from one of {tables[ids]}: their names "
            f"may be exchanged ({_EXPORT})"
        )
    mask_name = next((name for name in tables if "mask" in name.lower()), None)
    if mask is not None and "mask" not in mask.lower() and mask_name is not None and mask_name != mask:
        yield (
            f"'{mask}' is the padding mask, and '{mask_name}' chooses from a table of {tables[mask_name]} rows: their "
            f"names may be exchanged ({_EXPORT})"
        )


def _zeros(result: PassedGraph, interface: str) -> Iterator[str]:
    names = [
        str(tensor.name)
        for tensor, dims in zip(result.graph.outputs, result.original_dims, strict=True)
        if dims is not None and BATCH in dims and SLOTS in dims
    ]
    if interface == "padded" and result.mask.source is not None and names:
        yield (
            f"rows of masked slots are zeros in {_list(names)}, where the original has numbers: whoever reads "
            "them, as ColBERT's query expansion does, needs the original"
        )


def _tables(result: PassedGraph) -> dict[str, int]:
    """For each input that indexes a table, the number of its rows."""
    limits = ((str(tensor.name), limit_of(result.graph, tensor.name)) for tensor in result.graph.inputs)
    return {name: limit for name, limit in limits if limit is not None}


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
