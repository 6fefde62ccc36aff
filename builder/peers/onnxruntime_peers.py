# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's contenders: the original on CPU and GPU, and the rewritten file on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx
import onnxruntime as ort
from padfree.onnx_tools import save_model
from padfree.runtime import Session, split_outputs

from .contender import Answers, Contender, UnavailableError, wall_ms
from .padded_engine import to_fp16
from .setup import Setup

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ERRORS_ONLY = 3


def original_on_cpu(setup: Setup) -> Contender:
    """The exported model, padded to S."""
    session = _session(setup, setup.model.original, CPU)
    feeds, names = setup.batch.pad(setup.model.original_metadata), _names(setup)
    answers = _answers(setup, session.run(names, feeds))
    return Contender(answers, {"plain": partial(wall_ms, partial(session.run, names, feeds))})


def packed_on_cpu(setup: Setup) -> Contender:
    """The rewritten file."""
    path = setup.folder / "packed.onnx"
    save_model(setup.ours, path)
    session = Session(path)
    feeds, ragged = session.feeds(setup.batch.ragged), setup.batch.ragged
    answers = split_outputs(session.backend.run(feeds), ragged, session.metadata)

    def close() -> None:
        session.close()
        path.unlink(missing_ok=True)

    return Contender(answers, {"plain": partial(wall_ms, partial(session.backend.run, feeds))}, close)


def original_on_gpu(setup: Setup) -> Contender:
    """The exported model in fp16 or fp32 through onnxruntime's CUDA provider, inputs and outputs on the GPU."""
    if CUDA not in ort.get_available_providers():
        raise UnavailableError(f"this onnxruntime ({ort.__version__}) has no {CUDA}; install onnxruntime-gpu")
    if setup.model.half == "bf16":
        raise UnavailableError("runs fp32 and fp16, this is a comparison in bf16")
    model = setup.model.original if setup.model.half == "fp32" else to_fp16(setup.model.original)
    session = _session(setup, model, CUDA)
    if CUDA not in session.get_providers():
        raise UnavailableError(f"onnxruntime could not start its {CUDA} and fell back to the CPU")
    names, binding = _names(setup), session.io_binding()
    for name, array in setup.batch.pad(setup.model.original_metadata).items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", setup.device))
    for name in names:
        binding.bind_output(name, "cuda", setup.device)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    run()
    answers = _answers(setup, binding.copy_outputs_to_cpu())
    return Contender(answers, {"plain": partial(wall_ms, run)})


def _session(setup: Setup, model: onnx.ModelProto, provider: str) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    providers: list[Any] = [(CUDA, {"device_id": setup.device})] if provider == CUDA else []
    path = setup.folder / "original.onnx"
    save_model(model, path)  # from a file, for models beyond protobuf's 2 GB
    return ort.InferenceSession(str(path), options, providers=[*providers, CPU])


def _names(setup: Setup) -> list[str]:
    return [item.name for item in setup.model.original_metadata.outputs]


def _answers(setup: Setup, outputs: list[Any]) -> Answers:
    outputs_by_name = dict(zip(_names(setup), outputs, strict=True))
    return split_outputs(outputs_by_name, setup.batch.ragged, setup.model.original_metadata)
