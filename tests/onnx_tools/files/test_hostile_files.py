# SPDX-License-Identifier: Apache-2.0
"""Files that demand more memory or time than they could need: refused with a reason, or processed in time."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.builder.demo.demo import DEMO_DATA
from padfree.onnx_tools import ModelFileError, RewriteError, load_model, rewrite
from padfree.onnx_tools.files.model_file import open_model
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.importing.expansion import MOST_NODES

FILE = DEMO_DATA / "bert_tiny.onnx"
HUGE = 2**40
HIDDEN = 64


def export() -> ModelProto:
    return onnx.load(str(FILE))


def with_output(model: ModelProto, name: str, kind: int = TensorProto.FLOAT) -> ModelProto:
    """Adds a tensor to the model's outputs, through a node."""
    model.graph.node.append(helper.make_node("Identity", [name], ["more"]))
    model.graph.output.append(helper.make_tensor_value_info("more", kind, None))
    return model


def tensor(kind: int, dims: list[int], **data: Any) -> TensorProto:
    return TensorProto(name="planted", data_type=kind, dims=dims, **data)


NO_DATA = {
    "float": (tensor(TensorProto.FLOAT, [HUGE]), rf"FLOAT \[{HUGE}\], {HUGE} values, and has 0"),
    "product": (tensor(TensorProto.INT64, [2**20, 2**20]), f"{HUGE} values, and has 0"),
    "string": (tensor(TensorProto.STRING, [HUGE]), "values, and has 0"),
    "four bits": (tensor(TensorProto.INT4, [HUGE]), "values, and has 0"),
    "scalar": (tensor(TensorProto.FLOAT, []), "1 values, and has 0"),
    "less": (tensor(TensorProto.FLOAT, [100], raw_data=bytes(40)), r"FLOAT \[100\], 400 bytes, and has 40; export"),
    "more": (tensor(TensorProto.FLOAT16, [3], raw_data=bytes(8)), "6 bytes, and has 8"),
    "less numbers": (tensor(TensorProto.FLOAT, [3], float_data=[1.0, 2.0]), "3 values, and has 2"),
    "large": (tensor(TensorProto.FLOAT, [1 << 20], raw_data=bytes(1 << 21)), "4194304 bytes, and has 2097152"),
    "a little": (tensor(TensorProto.FLOAT, [1 << 18], raw_data=bytes((1 << 20) - 4)), "1048576 bytes, and has 1048572"),
    "negative": (tensor(TensorProto.FLOAT, [-1], raw_data=b""), r"has the sizes \[-1\], allowed are 0 and more"),
}
LOCATIONS = ("initializer", "constant", "function")


def plant(rewritten: TensorProto, index: str) -> ModelProto:
    model = export()
    if index == "initializer":
        model.graph.initializer.append(rewritten)
        return with_output(model, "planted", rewritten.data_type)
    constant = helper.make_node("Constant", [], ["planted"], value=rewritten)
    if index == "constant":
        model.graph.node.insert(0, constant)
    else:
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("own", "Planted", [], ["planted"], [constant], opsets))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node.insert(0, helper.make_node("Planted", [], ["planted"], domain="own"))
    return with_output(model, "planted", rewritten.data_type)


@pytest.mark.parametrize("place", LOCATIONS)
@pytest.mark.parametrize(("made", "message"), NO_DATA.values(), ids=NO_DATA)
def test_tensors_without_the_data_that_they_ask_for(
    tmp_path: Path, made: TensorProto, message: str, place: str
) -> None:
    model = plant(made, place)
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    for storage in Storage:
        with pytest.raises(ModelFileError, match=message):
            open_model(file, storage)
    with pytest.raises(ModelFileError, match=message):
        rewrite(model)


COMPLETE = {
    "raw": numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "empty": numpy_helper.from_array(np.zeros((0, HUGE), np.float32)),
    "numbers": helper.make_tensor("t", TensorProto.FLOAT16, [3], [1.0, 2.0, 3.0]),
    "bool": helper.make_tensor("t", TensorProto.BOOL, [2], [True, False]),
    "complex": helper.make_tensor("t", TensorProto.COMPLEX64, [2], [1j, 2 + 1j]),
    "strings": helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"]),
    "four bits": helper.make_tensor("t", TensorProto.INT4, [3], [1, 2, 3]),
    "four bits, raw": helper.make_tensor("t", TensorProto.UINT4, [3], b"\x21\x03", raw=True),
    "eight bits": helper.make_tensor("t", TensorProto.FLOAT8E4M3FN, [3], [1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("made", COMPLETE.values(), ids=COMPLETE)
def test_complete_tensors_of_all_kinds_are_read(tmp_path: Path, made: TensorProto) -> None:
    made.name = "planted"
    file = tmp_path / "model.onnx"
    file.write_bytes(plant(made, "initializer").SerializeToString())
    assert load_model(file).graph.initializer[-1] == made


TRUNCATES = """
import os, sys
from padfree.onnx_tools import ModelFileError, rewrite
module = sys.modules["padfree.onnx_tools.rewrite"]
file = sys.argv[1]
loads = module.open_model
def load(*arguments):
    loaded = loads(*arguments)
    os.truncate(file, 5000)
    return loaded
module.open_model = load
try:
    rewrite(file, verify=False)
except ModelFileError as error:
    print(error)
"""


def test_a_file_that_becomes_shorter_meanwhile_is_an_error(tmp_path: Path) -> None:
    """The process does not crash, as it would when pages of a mapped file are missing."""
    model = export()
    values = np.random.default_rng(0).standard_normal((1 << 20, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, "planted"))
    file = tmp_path / "model.onnx"
    file.write_bytes(with_output(model, "planted").SerializeToString())
    done = subprocess.run([sys.executable, "-c", TRUNCATES, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "was written to while its weights were read" in done.stdout


def test_a_file_that_ends_while_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, views, at: read(file, [views[0][:1000]], at) if at < 5000 else 0)
    with pytest.raises(ModelFileError, match=r"bert_tiny\.onnx' had \d+ bytes and has 5000 now: it was written to"):
        rewrite(FILE)


def doubling(count: int, innermost: tuple[str, str] = ("Abs", "")) -> ModelProto:
    """A model that calls the last of this many functions, each of which calls the one before it twice."""
    model = export()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for number in range(count):
        name, domain = innermost if not number else (f"F{number - 1}", "own")
        nodes = [helper.make_node(name, [one], [other], domain=domain) for one, other in (("x", "t"), ("t", "y"))]
        model.functions.append(helper.make_function("own", f"F{number}", ["x"], ["y"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    hidden = model.graph.output[0].name
    model.graph.node.append(helper.make_node(f"F{count - 1}", [hidden], ["doubled"], domain="own"))
    return with_output(model, "doubled")


def test_functions_are_written_out_within_bounds() -> None:
    with pytest.raises(RewriteError, match=rf"written out, make \d{{10}} nodes, allowed are {MOST_NODES}"):
        rewrite(doubling(30))
    with pytest.raises(RewriteError, match=r"function 'own\.F\d' calls itself"):
        rewrite(doubling(5, ("F4", "own")))
    with pytest.raises(RewriteError, match=r"function 'own\.F0' calls itself"):
        rewrite(doubling(1, ("F0", "own")))
    assert rewrite(doubling(6), verify=False).report.complete


@pytest.mark.slow
def test_functions_nested_deeper_than_python_calls() -> None:
    model = export()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for number in reversed(range(3000)):
        name, domain = ("Abs", "") if not number else (f"F{number - 1}", "own")
        nodes = [helper.make_node(name, ["x"], ["y"], domain=domain)]
        model.functions.append(helper.make_function("own", f"F{number}", ["x"], ["y"], nodes, opsets))
    nodes = [helper.make_node("F2999", ["x"], ["y"], domain="own")] * (MOST_NODES + 1)
    model.functions.append(helper.make_function("own", "Many", ["x"], ["y"], nodes, opsets))
    model.graph.node.append(helper.make_node("Many", [model.graph.output[0].name], ["doubled"], domain="own"))
    with pytest.raises(RewriteError, match=f"make {MOST_NODES + 1 + len(export().graph.node) + 1} nodes"):
        rewrite(with_output(model, "doubled"))


def test_constants_that_double_are_not_followed() -> None:
    """ONNX's shape inference follows small constants through Concat, however large they become."""
    model = export()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1000, np.float32), "c"))
    for at in range(30):
        model.graph.node.append(helper.make_node("Concat", [f"c{at - 1}" if at else "c"] * 2, [f"c{at}"], axis=0))
    begin = time.process_time()
    rewrite(with_output(model, "c29"), verify=False)
    assert time.process_time() - begin < 30


ATTEMPTS = 3


def chain(operator: str, count: int) -> ModelProto:
    model = export()
    for name, values in (("one", np.ones(HIDDEN, np.float32)), ("eye", np.eye(HIDDEN, dtype=np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    more = {"Add": ["one"], "MatMul": ["eye"]}.get(operator, [])
    last = model.graph.output[0].name
    for at in range(count):
        model.graph.node.append(helper.make_node(operator, [last, *more], [f"link{at}"]))
        last = f"link{at}"
    return with_output(model, last)


@pytest.fixture
def objects_of_before_do_not_count() -> Iterator[None]:
    """Otherwise every garbage collection would traverse the objects that earlier tests left in the process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("objects_of_before_do_not_count")
@pytest.mark.parametrize("operator", ["Relu", "Add", "MatMul", "Identity"])
def test_time_grows_as_the_graph_does(operator: str) -> None:
    """Four times the nodes take about four times as long; if time grew with the square, it would be sixteen times.

    Processor time, too, is longer beside other work on the same cores, and never shorter.
    """

    def seconds(count: int) -> float:
        model = chain(operator, count)
        begin = time.process_time()
        rewrite(model, verify=False)
        return time.process_time() - begin

    seconds(10)
    base = seconds(10)
    most = base + 8 * max(seconds(1500) - base, 0.3)
    found: list[float] = []
    while len(found) < ATTEMPTS and (not found or found[-1] >= most):
        found.append(seconds(6000))
    assert found[-1] < most, found


MEMORY = """
import resource, sys
from padfree.builder.cli import main
assert main(["inspect", sys.argv[1]]) == 0
print("MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
LARGE_MB = 128


@pytest.mark.slow
def test_a_large_data_file_is_inspected_in_its_own_size(tmp_path: Path) -> None:
    def megabytes(rows: int) -> int:
        model = export()
        table = next(item for item in model.graph.initializer if "word_embeddings" in item.name)
        values = np.zeros((rows, HIDDEN), np.float32)
        table.CopyFrom(numpy_helper.from_array(values, table.name))
        file = tmp_path / f"{rows}.onnx"
        onnx.save(model, str(file), save_as_external_data=True, location=f"{rows}.data")
        done = subprocess.run([sys.executable, "-c", MEMORY, str(file)], capture_output=True, text=True, check=True)
        return int(done.stdout.split("MB")[-1])

    assert megabytes(LARGE_MB << 20 >> 8) - megabytes(1000) < 1.5 * LARGE_MB


def test_a_location_with_a_nul_in_it_is_one_line(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="a\0b")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelFileError, match="which is no file's name"):
        open_model(file)
