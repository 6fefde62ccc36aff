# SPDX-License-Identifier: Apache-2.0
"""Engines in fp8 and int8 from `padfree build --precision`, against the same file in onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from padfree.builder.cli import main
from padfree.builder.engine.linear import EIGHT_BIT_OPERATORS
from padfree.contract.names import EIGHT_BITS
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime import Session

from tests.support.quantizers import ACTIVATION_SCALE, Quantizer

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

Array = npt.NDArray[Any]
VOCABULARY, LONGEST, LAYERS = 1000, 512, 3
LENGTHS = (1, 512, 300, 77, 16, 128, 5)
# Both compute from the same numbers of 8 bits, the file in float32, the engine with results in half precision. A result
# that differs in its last bits sometimes rounds to the next such number, which later layers carry on: a sequence of one
# token had a cosine of 0.9983 on an H200. With a wrong scale or row it is below 0.9.
LEAST_COSINE = 0.99


def requests(lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]


@pytest.fixture(scope="module", params=EIGHT_BITS)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(precision: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The quantised file, an engine of that file, and one of the original, calibrated with the same data."""
    folder = tmp_path_factory.mktemp(precision)
    found = {name: folder / name for name in ("model.onnx", "packed.onnx", "file.plan", "model.plan", "ids.jsonl")}
    onnx.save_model(bert_model(LAYERS, 256, 4, 1024, VOCABULARY, LONGEST), str(found["model.onnx"]))
    found["ids.jsonl"].write_text("".join(f"{json.dumps(row)}\n" for row in requests((400, 200, 30) * 3, 0)))
    options = ["--precision", precision, "--calibrate", str(found["ids.jsonl"])]
    engine = ["--max-batch", "8", "--max-seq-len", str(LONGEST), "--timing-cache", str(folder / "cache")]
    assert main(["optimize", str(found["model.onnx"]), "-o", str(found["packed.onnx"]), *options]) == 0
    assert main(["build", str(found["packed.onnx"]), "-o", str(found["file.plan"]), *engine]) == 0
    assert main(["build", str(found["model.onnx"]), "-o", str(found["model.plan"]), *options, *engine]) == 0
    return found


def hidden_states(path: Path) -> list[Array]:
    with Session(path) as session:
        return [np.asarray(row, np.float64) for row in session.run(requests(LENGTHS, 1))["last_hidden_state"]]


@pytest.mark.parametrize("plan", ["file.plan", "model.plan"])
def test_engines_compute_what_the_file_does(files: dict[str, Path], plan: str) -> None:
    for wanted, found in zip(hidden_states(files["packed.onnx"]), hidden_states(files[plan]), strict=True):
        cosine = (wanted * found).sum() / np.linalg.norm(wanted) / np.linalg.norm(found)
        assert cosine >= LEAST_COSINE, (len(wanted), cosine)


def test_every_gemm_is_a_plugin_layer(precision: str, files: dict[str, Path]) -> None:
    engine = json.loads((files["model.plan"].with_name("model.plan.json")).read_text())["engine"]
    assert engine["plugin_layers"][EIGHT_BIT_OPERATORS[precision]] == 4 * LAYERS
    assert "PadfreeLinear" not in engine["plugin_layers"]


def test_engines_are_near_the_original(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", str(files["model.onnx"]), str(files["model.plan"]), "--data", str(files["ids.jsonl"])]
    assert main(command) == 0, capsys.readouterr().out


def test_engines_keep_the_scales_of_a_quantised_file(tmp_path: Path) -> None:
    original = bert_model(LAYERS, 256, 4, 1024, VOCABULARY, LONGEST)
    source, packed, plan = (tmp_path / name for name in ("quantized.onnx", "packed.onnx", "model.plan"))
    onnx.save_model(Quantizer("int8", "stored").apply(original), str(source))
    options = ["--precision", "int8", "--keep-scales"]
    engine = ["--max-batch", "8", "--max-seq-len", str(LONGEST), "--timing-cache", str(tmp_path / "cache")]
    assert main(["optimize", str(source), "-o", str(packed), *options]) == 0
    assert main(["build", str(source), "-o", str(plan), *options, *engine]) == 0
    metadata = json.loads(plan.with_name("model.plan.json").read_text())
    assert metadata["engine"]["plugin_layers"]["PadfreeLinearInt8"] == 4 * LAYERS
    assert {layer["scale"] for layer in metadata["quantization"]["layers"]} == {float(np.float16(ACTIVATION_SCALE))}
    for wanted, found in zip(hidden_states(packed), hidden_states(plan), strict=True):
        cosine = (wanted * found).sum() / np.linalg.norm(wanted) / np.linalg.norm(found)
        assert cosine >= LEAST_COSINE, (len(wanted), cosine)
