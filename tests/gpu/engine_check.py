# SPDX-License-Identifier: Apache-2.0
"""Builds engines of the matrix, runs them, and reports for each whether it is right.

python -m tests.gpu.engine_check FOLDER '[{"source": ..., "name": ..., "interface": ..., "precision": ...}, ...]'

It prints one line per engine. An engine may come with `proved`, digests of what right engines were made of: it is not
built again if it would be made of the same. With one more argument, "onnxruntime", it checks the rewritten files in
onnxruntime instead, without a GPU and without engines.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from padfree.builder import BuildError, build_engine
from padfree.builder.engine.build import open_gpu
from padfree.builder.engine.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.profile import ProfileOptions
from padfree.onnx_tools import RewriteError, rewrite, save_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized.removal import holds_quantization, without_rounding
from padfree.runtime import Session, SessionError
from padfree.runtime.gpu.device import Device

from tests.support import exports
from tests.support.messages import widen
from tests.support.preparation import prepare_model

from .engine_cases import Entry
from .engine_matrix import MARK

MAX_BATCH, MAX_SEQ_LEN = 8, 32
BATCHES = ((2,), (9, 1, 4, 17, 6), (MAX_SEQ_LEN, 1, 1, 2, 1), (MAX_SEQ_LEN,), (1,), (1,), (1,) * 8)
"""Lengths of the sequences; one token is run twice in a row, to find what a run leaves behind."""
# fp32: the largest error relative to a column's root mean square; sums are added in another order. Half precisions: the
# norm of the error relative to that of the result, as scores with a deviation of 3 are rounded to 11 and 8 bits in two
# layers (T5, whose scores are not scaled, is the worst). A wrong mask, scale or position is far above these.
TOLERANCES = {"fp32": 1e-3, "fp16": 3e-2, "bf16": 2e-1}
FLOOR = 1e-1
# What no engine can do, in the words of the refusal: the rewritten file itself is right.
BEYOND_ENGINES = (
    "which an engine cannot give out",
    "TensorRT only supports symmetric quantization",
    "which of its numbers are a sequence's is not known",
)


def _without_node_names(model: ModelProto) -> ModelProto:
    """A copy without names of nodes: equal ones are legal, but onnxruntime refuses them."""
    result = ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        node.name = ""
    return result


def error_of(name: str, pairs: list[tuple[np.ndarray, np.ndarray]], precision: str) -> float:
    """The error of results, given as pairs with the expected ones. Raises AssertionError if it is too large."""
    exact = [(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs]
    if precision == "fp32":
        return exports.assert_close(name, exact, TOLERANCES[precision], FLOOR)
    found, wanted = (np.concatenate([pair[side].reshape(-1) for pair in exact]) for side in (0, 1))
    size = float(np.linalg.norm(wanted))
    error = float(np.linalg.norm(found - wanted)) / (size or 1.0)
    assert error <= TOLERANCES[precision], f"{name}: an error of {error:.2g} in parts of the result's norm"
    return error


class Check:
    """Compares an engine with its original."""

    def __init__(self, session: Session, model: ModelProto, inputs: list[exports.Input], precision: str) -> None:
        self._session, self._model, self._inputs, self._precision = session, model, inputs, precision
        self._original = exports.session(_without_node_names(model))
        kinds = {item.kind for item in inputs}
        self._masked = bool(kinds & {"mask", "inverted", "seg"}) or any(item.excl for item in inputs)
        self._outputs = [item.name for item in session.metadata.outputs]
        types = [item.name for item in inputs if item.kind == "types"]
        names = [item.name for item in session.metadata.inputs if item.role == "tokens"]
        self._tokens = {name: types[0] if name == "segment_ids" else name for name in names}  # varseqlen renames it
        self.worst, self.batches = 0.0, 0

    def _same(self, name: str, pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.worst = max(self.worst, error_of(name, pairs, self._precision))

    def alone(self, lengths: tuple[int, ...], seed: int) -> None:
        """Checks that every sequence's outputs are those that the original gives for it alone.

        If no input marks padding, every slot of the padded interface is a token, so all lengths have to be equal.
        """
        if not self._masked and self._session.metadata.interface == "padded" and len(set(lengths)) > 1:
            return
        layouts = {item.name: item.layout for item in self._session.metadata.outputs}
        given = exports.sequences(self._inputs, lengths, seed)
        wanted = exports.truth(self._model, given, self._outputs, self._original)
        found = self._session.run({name: [item[made] for item in given] for name, made in self._tokens.items()})
        for index, name in enumerate(self._outputs):
            pairs = []
            for row, value in enumerate(found[name]):
                constant = layouts[name] == "constant"
                expected, got = wanted[row][index], np.asarray(value) if constant else np.asarray(value)[None]
                for axis in range(2, got.ndim):  # an axis of tokens that is as long as the batch's longest sequence
                    if got.shape[axis] == max(lengths) != expected.shape[axis] == lengths[row]:
                        got = got[(slice(None),) * axis + (slice(lengths[row]),)]
                assert got.shape == expected.shape, f"{name}: {got.shape} instead of {expected.shape}"
                pairs.append((got, expected))
            self._same(f"lengths {list(lengths)}: {name}", pairs)
        self.batches += 1

    def wide_extent(self, lengths: tuple[int, ...], wide: Session) -> None:
        """Servers may give an extent larger than the longest sequence; `wide` captures no CUDA graphs."""
        roles = {item.role: item.name for item in self._session.metadata.inputs}
        if not {"max_seqlen", "seq_lens"} <= set(roles):
            return
        given = exports.sequences(self._inputs, lengths)
        types = {item.name: np.float32 if item.holds_embeddings else np.int32 for item in self._session.metadata.inputs}
        feeds: dict[str, np.ndarray] = {
            name: np.concatenate([item[made] for item in given]).astype(types[name])
            for name, made in self._tokens.items()
        }
        feeds[roles["seq_lens"]] = np.asarray(lengths, np.int32)
        results = [
            wide.backend.run({**feeds, roles["max_seqlen"]: np.zeros(extent, np.int32)})
            for extent in (max(lengths), 3 * MAX_SEQ_LEN)
        ]
        for output in self._session.metadata.outputs:
            if output.layout != "padded":
                a, b = (np.asarray(item[output.name]) for item in results)
                self._same(f"extent {3 * MAX_SEQ_LEN}: {output.name}", [(b, a)])
        self.batches += 1

    def masks(self) -> None:
        """Checks left-padded and holed masks, and rows without any token, in the padded interface."""
        metadata = self._session.metadata
        kinds = {item.kind for item in self._inputs}
        if metadata.interface != "padded" or metadata.raw["coverage"]["right_padded_only"] or "seg" in kinds:
            return
        if any(item.last is not None for item in self._inputs):  # the id that marks the last token would be masked
            return
        lengths = np.asarray([9, 1, 4, 17, 6])[:, None]
        slots = np.arange(17)
        holes = np.random.default_rng(3).random((5, 17)) < 0.6
        holes[:, 0] = True
        for kind, mask in (("left", slots >= 17 - lengths), ("holes", holes), ("one column", lengths[:, :1] > 0)):
            given = exports.sequences(self._inputs, (mask.shape[1],) * len(mask))
            types = exports.types_of(self._model)
            feeds = {
                item.name: np.stack([row[item.name] for row in given]).astype(types[item.name])
                for item in self._inputs
                if item.kind not in ("mask", "inverted")
            }
            for item in self._inputs:
                if item.kind in ("mask", "inverted"):
                    feeds[item.name] = (mask if item.kind == "mask" else ~mask).astype(types[item.name])
            wanted, found = self._original.run(self._outputs, feeds), self._session.backend.run(feeds)
            for output, expected in zip(metadata.outputs, wanted, strict=True):
                got = np.asarray(found[output.name])
                if output.layout == "per_sequence":
                    kept = mask[:, 0]  # a head that reads a masked first slot cannot be reproduced
                elif expected.shape[:2] == mask.shape:
                    kept = mask
                else:
                    continue
                self._same(f"mask '{kind}': {output.name}", [(got[kept], expected[kept])])
            self.batches += 1


class Engines:
    """Builds plans, all with one TensorRT builder."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._builder: EngineBuilder | None = None

    def __call__(self, entry: Entry, source: Path) -> Path:
        """Builds the plan of an engine."""
        if self._builder is None:
            self._builder = EngineBuilder(0, TacticOptions(timing_cache=self._cache), None)
        plan, options = source.with_suffix(".plan"), {"max_batch": MAX_BATCH, "max_seq_len": MAX_SEQ_LEN}
        kind = {"interface": entry.interface, "precision": entry.precision, "verify": False}
        build_engine(source, plan, **kind, **options, timing_cache=self._cache, builder=self._builder)
        return plan


def make_file(entry: Entry, source: Path) -> Path:
    """Writes the rewritten file, which onnxruntime runs in place of an engine."""
    path = source.with_name("rewritten.onnx")
    result = rewrite(source, interface=entry.interface, precision=entry.precision, verify=False)
    save_model(result.model, path)
    return path


def _gpu() -> Device | None:
    try:
        return open_gpu(0)
    except SessionError:
        return None


def made_of(entry: Entry, source: Path) -> str:
    """A digest of what an engine is made of: the original, which is the truth, and what TensorRT's parser gets.

    Empty if the build refuses the model, for a reason that it gives itself.
    """
    profile = ProfileOptions(MAX_BATCH, MAX_SEQ_LEN)
    try:
        options = BuildOptions(entry.interface, entry.precision, verify=False, profile=profile)
        prepared = prepare_model(source, options, _gpu)
    except (RewriteError, BuildError):
        return ""
    found = hashlib.sha256(source.read_bytes())
    found.update(prepared.SerializeToString(deterministic=True))
    return found.hexdigest()[:16]


def exact(model: ModelProto) -> ModelProto:
    """The reference for a quantised file: the file without the rounding of activations, as docs/guide/fp8.md says."""
    return without_rounding(Model(model)).model.whole() if holds_quantization(model) else model


def check(
    entry: Entry, folder: Path, make: Callable[[Entry, Path], Path], proved: Collection[str] | None = None
) -> dict[str, Any]:
    """The result for one engine: passed, refused (by the rewriter, with its reason), failed, or kept.

    `proved`: digests of what right engines were made of; None if rewritten files are checked instead of engines.
    """
    model, inputs = entry.load(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch) / "model.onnx"
        onnx.save_model(model, str(source))
        parts = {} if proved is None else {"made_of": made_of(entry, source)}
        if proved and parts["made_of"] in proved:
            return {"status": "kept", **parts}
        try:
            made = make(entry, source)
        except RewriteError as error:
            return {"status": "refused" if entry.source == "exports" else "failed", "reason": str(error)[:300]}
        with Session(made) as session:
            found = Check(session, widen(exact(model)), inputs, entry.precision)
            for seed, lengths in enumerate(BATCHES):
                found.alone(lengths, seed)
            if made.suffix == ".plan":
                with Session(made, cuda_graphs=False) as wide:
                    found.wide_extent((9, 1, 4, 17, 6), wide)
            found.masks()
    share = session.metadata.raw["coverage"]["packed_gemm_share"]
    result = {"status": "passed", "worst": float(f"{found.worst:.2g}"), "batches": found.batches, "packed": share}
    return {**result, **parts}


def main() -> None:
    """Checks the listed engines and prints each result as soon as it is known."""
    folder, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
    make = make_file if sys.argv[3:] else Engines(folder / f"timing-{wanted[0]['source']}.cache")
    for item in wanted:
        start = time.monotonic()
        try:
            result = check(Entry.of(item), folder, make, None if sys.argv[3:] else item.get("proved", ()))
        except Exception as error:
            traceback.print_exc()
            status = "refused" if any(words in str(error) for words in BEYOND_ENGINES) else "failed"
            result = {"status": status, "reason": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        result["seconds"] = round(time.monotonic() - start, 1)
        sys.stdout.write(f"{MARK}{json.dumps(result)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
