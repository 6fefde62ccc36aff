# SPDX-License-Identifier: Apache-2.0
"""Coverage reports as people and scripts read them: what a rewrite recorded, and what follows at given lengths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from padfree.contract.fields import MOST_INT64, Fields
from padfree.contract.names import is_onnx
from padfree.contract.quantization import QuantizationInfo, parse_quantization
from padfree.onnx_tools import (
    DEFAULT_GPU,
    IN_BETWEEN,
    QUANTIZATION,
    GemmShape,
    Lengths,
    RewriteOptions,
    costs,
    rewrite_model,
)
from padfree.onnx_tools.files import Storage, is_rewritten, open_model
from padfree.onnx_tools.operators import check_nodes
from padfree.runtime import open_plan, parse_metadata

from .engine.preparation import metadata_of
from .errors import BuildError

QUOTED = re.compile(r"'[^']*'")


@dataclass(frozen=True)
class Inspection:
    """A file and its metadata: an "original" (that of its rewriting), a "packed" or "padded" model, or a "plan"."""

    path: Path
    kind: str
    metadata: Mapping[str, Any]

    @property
    def limit(self) -> int | None:
        """The most tokens of a sequence; None: any number."""
        engine = self.metadata.get("engine")
        longest = engine["profile"]["max_seq_len"] if engine else self.metadata.get("max_positions")
        return None if longest is None else int(longest)

    @property
    def quantization(self) -> QuantizationInfo | None:
        """Which GEMMs are quantised; None if none is."""
        raw = self.metadata.get(QUANTIZATION)
        return None if raw is None else parse_quantization(Fields(raw, str(self.path), QUANTIZATION, BuildError))


def inspect_file(path: Path, mask: str | None) -> Inspection:
    """Reads a plan's, a rewritten model's or an original model's description; the last is rewritten, unverified.

    `mask` is the padding mask's input where attention does not prove which one that is.

    Raises:
        padfree.onnx_tools.RewriteError: an original that cannot be rewritten, or a damaged model file;
        padfree.runtime.SessionError: a plan without its metadata, or damaged metadata.
    """
    if not is_onnx(path):
        kind, metadata = "plan", open_plan(path)
    else:
        model, kind = open_model(path), ""  # mapped: weights that nobody asks for are not read
        if is_rewritten(model.proto):
            check_nodes(model.proto)
        else:
            model_file, kind = open_model(path, Storage.MEMORY), "original"
            model = rewrite_model(model_file, RewriteOptions(verify=False, mask_input=mask)).model
        metadata = parse_metadata(metadata_of(model.proto), str(path))
    check_report(metadata.raw, str(path))
    return Inspection(path, kind or metadata.interface, metadata.raw)


def check_report(raw: Mapping[str, Any], source: str) -> None:
    """Checks the part of metadata that people read and no engine needs.

    Raises:
        padfree.runtime.SessionError: an entry is missing, or of another type.
    """
    fields = Fields(dict(raw), source)
    fields.string("version")
    fields.integer("num_layers")
    fields.optional_integer("hidden_size")
    if "bf16_because" in raw:
        fields.string("bf16_because")
    if "unquantized" in raw:
        unquantized = fields.object("unquantized")
        unquantized.strings("types")
        unquantized.integer("weights")
        unquantized.integer("activations")
    _check_each(fields.optional_object("kept_float32"), Fields.string)
    _check_verification(fields.optional_object("verification"))
    coverage = fields.optional_object("coverage")
    if not coverage.names():
        return
    coverage.boolean("complete")
    coverage.number("packed_gemm_share")
    for name in ("notes", "right_padded_because", "left_padded_because", "contiguous_because"):
        if name in coverage:
            coverage.strings(name)
    coverage.objects("passes", _check_pass)
    coverage.objects("islands", _check_entry)
    if "excluded_ids" in coverage:
        _check_each(coverage.object("excluded_ids"), lambda ids, name: ids.integers(name, least=-MOST_INT64))
    products = coverage.optional_object("products")
    if products.names():
        products.strings("uncounted")
        for name in ("original", "rewritten"):
            products.objects(name, lambda product: product.integer("count"))


def _check_each(fields: Fields, check: Callable[[Fields, str], object]) -> None:
    for name in fields.names():
        check(fields, name)


def _check_verification(fields: Fields) -> None:
    if not fields.names():
        return
    fields.number("allowed")
    for errors in (fields.object("errors"), fields.optional_object("typical")):
        _check_each(errors, Fields.number)
    if "half_precision" in fields:
        _check_verification(fields.object("half_precision"))


def _check_pass(fields: Fields) -> None:
    fields.string("name")
    fields.integer("replaced")
    fields.objects("missed", _check_entry)


def _check_entry(fields: Fields) -> None:
    fields.string("node")
    fields.string("reason")


def report(coverage: Mapping[str, Any], lengths: Lengths, gpu: str = DEFAULT_GPU) -> dict[str, Any]:
    """A recorded coverage with its costs at these lengths; they are null where GEMMs were not recorded.

    Raises:
        BuildError: the recorded GEMMs are damaged.
    """
    products = coverage.get("products")
    if not products:
        return {**coverage, "costs": None}
    try:
        original, rewritten = (
            [GemmShape.from_dict(item) for item in products[name]] for name in ("original", "rewritten")
        )
        if coverage.get("every_slot_counts"):  # there are as many tokens as slots
            lengths = replace(lengths, mean=float(lengths.maximum))
        return {**coverage, "costs": costs(original, rewritten, lengths, gpu)}
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise BuildError(
            f"the model's coverage report is damaged ({type(error).__name__}: {error}); rewrite the model again"
        ) from error


def require_complete(coverage: Mapping[str, Any], source: str) -> None:
    """Raises BuildError where something stayed padded."""
    if not coverage.get("complete"):
        count = len(coverage.get("islands", ()))
        raise BuildError(
            f"{source}: incomplete, {count} node{'s' * (count != 1)} stay{'s' * (count == 1)} padded; the near misses "
            "say why; leave --strict out to accept that"
        )


@dataclass(frozen=True)
class NearMiss:
    """Equal reasons of one pass: the first node, and how many nodes there are."""

    where: str
    node: str
    reason: str
    count: int


def near_misses(coverage: Mapping[str, Any]) -> list[NearMiss]:
    """What passes nearly replaced and what else stays padded for a reason of its own, equal reasons joined.

    Reasons are equal when they differ in the names of nodes alone.
    """
    by_reason: dict[tuple[str, str], NearMiss] = {}
    names: set[str] = set()
    all_misses = [(item["name"], miss) for item in coverage["passes"] for miss in item["missed"]]
    all_misses += [("", item) for item in coverage["islands"] if not item["reason"].endswith(IN_BETWEEN)]
    for where, miss in all_misses:
        if not where and miss["node"] in names:
            continue
        names.add(miss["node"])
        key = (where, QUOTED.sub("''", miss["reason"]))
        first = by_reason.setdefault(key, NearMiss(where, miss["node"], miss["reason"], 0))
        by_reason[key] = replace(first, count=first.count + 1)
    return list(by_reason.values())
