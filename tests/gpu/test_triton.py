# SPDX-License-Identifier: Apache-2.0
"""Engines with what Triton's tensorrt backend makes of a batch, and what that backend checks in an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import read_text
from padfree.runtime import Session
from padfree.runtime.gpu.trt import import_tensorrt, shared_logger

from tests.support.ragged_backend import LONGEST, RaggedBackend, make_requests

pytest.importorskip("tritonclient.grpc")
pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

MODELS = {
    "bert": DEMO_DATA / "bert_tiny.onnx",
    "mpnet": Path(__file__).parents[1] / "fixtures" / "families" / "mpnet_dynamo_eager.onnx",  # part of it stays padded
}
MAX_BATCH, MAX_TOKENS = 8, 40
TOLERANCE = 1e-3  # fp32 sums in another order; the answers of other sequences differ by 0.1 and more
LIBRARIES = ("libpadfree.so", "libpadfree_register.so", "libpadfree_triton_batching.so")


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_requests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "model.plan"
    metadata = build_engine(
        MODELS[name],
        plan,
        precision="fp32",
        verify=False,
        max_batch=MAX_BATCH,
        max_seq_len=LONGEST,
        max_tokens=MAX_TOKENS,
        timing_cache=tmp_path.parent / "timing.cache",
    )
    with Session(plan, cuda_graphs=False) as session:
        for library in LIBRARIES:  # what the image would hold; the session has the real ones
            (tmp_path / library).touch()
        monkeypatch.setenv("PADFREE_LIBRARY", str(tmp_path / LIBRARIES[0]))
        options = ServingOptions("bert", "tensorrt", server_tensorrt=metadata["engine"]["tensorrt"])
        folder = write_repository(plan, tmp_path / "models", options).folder
        config = read_text(folder / "bert" / "config.pbtxt")
        requests = make_requests(config)
        answers = RaggedBackend(config, session.backend.run).execute(requests)
        for request, answer in zip(requests, answers, strict=True):
            expected = session.run({name: list(rows) for name, rows in request.items()})
            assert answer.keys() == expected.keys()
            for output, rows in expected.items():
                np.testing.assert_allclose(answer[output], np.stack(rows), atol=TOLERANCE)

    trt = import_tensorrt()
    runtime = trt.Runtime(shared_logger(trt))
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    inputs = [*(item.name for item in config.input), *(item.target_name[0] for item in config.batch_input)]
    assert sorted(inputs) == sorted(
        engine[at]
        for at in range(engine.num_io_tensors)
        if engine.get_tensor_mode(engine[at]) == trt.TensorIOMode.INPUT
    )
    # tensorrt_backend at e2ef6d7: GetProfileMaxBatchSize, InitializeExecuteInputBinding, InitializeExecuteOutputBinding
    assert [tuple(engine.get_tensor_shape(item)) for item in inputs] == [(-1,)] * len(inputs)
    assert min(engine.get_tensor_profile_shape(item, 0)[2][0] for item in inputs) >= config.max_batch_size == MAX_BATCH
    scattered = {item.target_name[0] for item in config.batch_output}
    for item in config.output:
        sizes = list(item.dims)[1:] if item.name in scattered else list(item.dims)
        assert list(engine.get_tensor_shape(item.name)) == [-1, *sizes]
        assert engine.get_tensor_format(item.name) == trt.TensorFormat.LINEAR
