# SPDX-License-Identifier: Apache-2.0
"""Digests of what TensorRT's parser gets: `python -m tests.frozen.graph_digests` before and after a change.

For a dozen models, interfaces and precisions, as a build for Hopper lowers them. Every line has two digests: one of
the graph without names of tensors and nodes, so that a pass may call them anew, while operators, attributes, weights,
edges, inputs and outputs count; and one of its bytes. `--write FILE` keeps the lines, `--compare FILE` shows those that
have changed since and ends with 1 if a graph has. `--rewriting` measures instead how long all committed fixtures take
to rewrite, in seconds of this process on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto
from padfree.builder.engine.linear import AUTO, FOLDED, apply_linear, choose_linear
from padfree.builder.engine.lowering import for_parser
from padfree.builder.errors import BuildError
from padfree.onnx_tools import RewriteError, load_model, rewrite
from padfree.onnx_tools.eight_bits import quantize_gemms
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import rewrite_model
from padfree.runtime.gpu.device import Device

from tests.support import exports

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MODELS = (
    "bert_dynamo.onnx",
    "classifier_torchscript.onnx",
    "embedder_dynamo.onnx",
    "families/bert_pooler_torchscript.onnx",
    "families/bert_cls_l2_dynamo.onnx",
    "families/deberta_v3_dynamo_eager.onnx",
    "families/modernbert_cls_classification_dynamo.onnx",
    "families/modernbert_mean_classification_torchscript.onnx",
    "families/mpnet_torchscript_eager.onnx",
    "families/nomic_bert_dynamo_sdpa.onnx",
    "families/t5_torchscript_eager.onnx",
    "optimum/bert_O4.onnx",
    "exports/jina_v3_torchscript.onnx.gz",
    "exports/bloom_torchscript.onnx.gz",
    "exports/st_weightedmean_dn_ts.onnx.gz",
    "exports/qwen3_embedding_dynamo.onnx.gz",
    "folded/bert.onnx.gz",
    "folded/gte.onnx.gz",
)
INTERFACES = ("packed", "padded")
PRECISIONS = ("fp32", "fp16", "bf16")
IN_FP8 = ("folded/bert.onnx.gz", "folded/gte.onnx.gz")
LENGTHS = (64, 384)
"""The longest sequences of the builds: one takes attention's kernel for short sequences, the other does not."""
HOPPER = Device(0, "NVIDIA H200", 9, 0)
CALIBRATED = (5, 3, 9)
"""Lengths of the sequences whose values determine the e4m3 scales."""


def canonical(graph: GraphProto) -> str:
    """SHA-256 of a graph, whatever the order of its nodes and the names of its inner tensors."""
    known = {"": "absent"} | {value.name: f"input {value.name}" for value in graph.input}
    known |= {
        item.name: hashlib.sha256(
            item.raw_data + f"{item.data_type} {list(item.dims)}".encode() + onnx.numpy_helper.to_array(item).tobytes()
        ).hexdigest()
        for item in graph.initializer
    }
    nodes = []
    for node in graph.node:
        content = [node.op_type, node.domain, str(len(node.output)), *(known[name] for name in node.input)]
        content += sorted(str(attribute) for attribute in node.attribute)
        made_of = _sha("\n".join(content))
        nodes.append(made_of)
        known |= {name: f"{made_of} {at}" for at, name in enumerate(node.output) if name}
    ends = [f"{value.name} {known[value.name]} {_kind(value)}" for value in graph.output]
    begins = [f"{value.name} {_kind(value)}" for value in graph.input]
    return _sha("\n".join([*begins, *ends, *sorted(nodes)]))


def _kind(value: onnx.ValueInfoProto) -> str:
    """Type and shape of an input or output; sizes that vary appear without their names."""
    sizes = [dim.dim_value if dim.HasField("dim_value") else "?" for dim in value.type.tensor_type.shape.dim]
    return f"{value.type.tensor_type.elem_type} {sizes}"


def of_bytes(model: ModelProto) -> str:
    """SHA-256 of a model's bytes, without the metadata, which no parser reads."""
    plain = ModelProto()
    plain.CopyFrom(model)
    del plain.metadata_props[:]
    return hashlib.sha256(plain.SerializeToString(deterministic=True)).hexdigest()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: Path) -> ModelProto:
    """Loads a committed model; those that are compressed get weights drawn from a seed."""
    if path.suffix != ".gz":
        return load_model(path)
    return exports.load(path.name.removesuffix(".onnx.gz"), path.parent)


def lines() -> Iterator[str]:
    """A line for every model, interface, precision and length: what is built, and its two digests or the refusal."""
    for name in MODELS:
        original = load(FIXTURES / name)
        for interface, precision in itertools.product(INTERFACES, PRECISIONS):
            what = f"{name} {interface} {precision}"
            try:
                model = _rewrite(original, interface, precision)
            except RewriteError as error:
                yield f"{what} any {_refusal(error)}"
                continue
            for length in LENGTHS if precision == "fp16" else LENGTHS[-1:]:
                yield f"{what} {length} {_lower(model, precision, length)}"
    for name in IN_FP8:
        model = _rewrite(load(FIXTURES / name), "packed", "fp16")
        tokens = np.arange(3, 3 + sum(CALIBRATED), dtype=np.int32)
        batch = {value.name: tokens % 7 % 2 for value in model.proto.graph.input}
        batch |= {"input_ids": tokens, "seq_lens": np.array(CALIBRATED, np.int32)}
        narrow = quantize_gemms(model, [batch], verify=False)
        yield f"{name} packed fp8 {LENGTHS[-1]} {_lower(narrow, 'fp16', LENGTHS[-1])}"


def _rewrite(original: ModelProto, interface: str, precision: str) -> Model:
    model = Model.of(original)
    return rewrite_model(model, RewriteOptions(interface, precision, verify=False)).model


def _lower(model: Model, precision: str, length: int) -> str:
    """The digests of a rewritten model lowered as in a build with sequences up to this length, or the refusal."""
    try:
        products = apply_linear(choose_linear(AUTO, model.proto, precision, HOPPER), model, norms=FOLDED)
        lowered = for_parser(products, length).whole()
    except (BuildError, RewriteError) as error:
        return _refusal(error)
    return f"{canonical(lowered.graph)} {of_bytes(lowered)}"


def _refusal(error: Exception) -> str:
    return f"- refused: {' '.join(str(error).split())[:60]}"


def rewriting_seconds() -> tuple[int, float]:
    """The number of committed files, and the CPU seconds taken to rewrite all of them without verification."""
    models = [load(path) for path in sorted((*FIXTURES.rglob("*.onnx"), *FIXTURES.rglob("*.onnx.gz")))]
    begun = time.process_time()
    for model in models:
        with contextlib.suppress(RewriteError):
            rewrite(model, verify=False)
    return len(models), time.process_time() - begun


def _compare(before: list[str], after: list[str]) -> int:
    """Prints the lines whose graphs differ; returns 1 if there are any."""
    known = {tuple(line.split()[:4]): line.split()[4:] for line in before}
    changed = moved = 0
    for line in after:
        what, digests = tuple(line.split()[:4]), line.split()[4:]
        was = known.pop(what, [])
        changed += was[:1] != digests[:1]
        moved += was[:1] == digests[:1] and was != digests
        if was[:1] != digests[:1]:
            sys.stdout.write(f"changed: {' '.join(what)}\n")
    sys.stdout.write("".join(f"gone: {' '.join(what)}\n" for what in known))
    sys.stdout.write(f"{len(after)} graphs, {changed} changed, {moved} equal except for names or order\n")
    return int(bool(changed or known))


def main() -> int:
    """Prints a line for every graph, or writes the lines to a file or compares them with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--rewriting", action="store_true")
    options = parser.parse_args()
    if options.rewriting:
        count, seconds = rewriting_seconds()
        sys.stdout.write(f"{count} files rewritten in {seconds:.1f} s of CPU\n")
        return 0
    after = list(lines())
    if options.write is not None:
        options.write.write_text("\n".join(after) + "\n", "utf-8")
    if options.compare is not None:
        return _compare(options.compare.read_text("utf-8").splitlines(), after)
    sys.stdout.write("\n".join(after) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
