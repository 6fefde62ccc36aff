# SPDX-License-Identifier: Apache-2.0
"""What TensorRT lets plugins do with e4m3: one question, one small strongly typed network, one line.

    python -m tests.gpu.fp8_probe

The plugins are written in Python (tests/gpu/fp8_plugins.py), so that the answers are TensorRT's alone. A line says yes
or no, the largest difference from NumPy relative to the largest value, the plan's bytes and its layers, or TensorRT's
error. docs/internals/tried-and-rejected.md has the answers. Needs a GPU, TensorRT and PyTorch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from onnx import ModelProto
from padfree.runtime.gpu.trt import import_tensorrt, shared_logger

from .fp8_plugins import BF16, FP8, HALF, LARGEST, register, tensor_at
from .fp8_questions import QUESTIONS, TOKENS, WIDTH, Question, gemm, weight, x

MOST_TOKENS = 512


class Prober:
    """Builds and runs the questions' networks."""

    def __init__(self) -> None:
        self._trt = import_tensorrt()
        self._logger = shared_logger(self._trt)
        self._creators = register(self._trt)
        self._builder = self._trt.Builder(self._logger)
        self._runtime = self._trt.Runtime(self._logger)

    def ask(self, question: Question) -> str:
        """The question's line."""
        self._logger.forget()
        started = time.monotonic()
        try:
            plan = self._plan(question.model())
            engine = self._runtime.deserialize_cuda_engine(plan)
            found = self._run(engine, question)
        except Exception as error:
            why = self._logger.errors[0] if self._logger.errors else f"{type(error).__name__}: {error}"
            return f"no   {question.text}: {' '.join(why.split())}"
        wanted = question.wanted()
        if found.shape != wanted.shape:
            return f"no   {question.text}: shape {found.shape}, not {wanted.shape}"
        error_part = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        answer = "yes" if error_part <= question.tolerance else "no "  # NaN counts as no
        return (
            f"{answer}  {question.text}: error {error_part:.1e} (allowed {question.tolerance:.0e}), plan "
            f"{len(bytes(plan))} bytes, {time.monotonic() - started:.1f} s; {self._layers(engine)}"
        )

    def _plan(self, model: ModelProto) -> Any:
        trt = self._trt
        network = self._network()
        onnx_parser = trt.OnnxParser(network, self._logger)
        if not onnx_parser.parse(model.SerializeToString()):
            raise RuntimeError(f"parser: {onnx_parser.get_error(0).desc()}")
        return self._serialize(network)

    def _network(self) -> Any:
        return self._builder.create_network(1 << int(self._trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))

    def _serialize(self, network: Any) -> Any:
        config = self._builder.create_builder_config()
        config.profiling_verbosity = self._trt.ProfilingVerbosity.DETAILED
        profile = self._builder.create_optimization_profile()
        profile.set_shape("x", (1, WIDTH), (MOST_TOKENS, WIDTH), (MOST_TOKENS, WIDTH))
        config.add_optimization_profile(profile)
        plan = self._builder.build_serialized_network(network, config)
        if plan is None:
            raise RuntimeError("TensorRT built no engine")
        return plan

    def constant_by_network(self) -> str:
        """Passes an e4m3 constant made with add_constant to a plugin, without the ONNX parser."""
        trt, text = self._trt, "e4m3 by add_constant into a plugin"
        self._logger.forget()
        try:
            network, held = self._network(), weight()
            creators = {creator.name: creator for creator in self._creators}
            given = network.add_input("x", trt.DataType.HALF, (-1, WIDTH))
            constant = network.add_constant(
                held.shape, trt.Weights(trt.DataType.FP8, held.ctypes.data, held.size)
            ).get_output(0)
            made = given
            for name, others in (("Fp8Narrow", []), ("Fp8Product", [constant])):
                plugin = creators[name].create_plugin(name, None, trt.TensorRTPhase.BUILD)
                made = network.add_plugin_v3([made, *others], [], plugin).get_output(0)
            made.name = "y"
            network.mark_output(made)
            engine = self._runtime.deserialize_cuda_engine(self._serialize(network))
            found = self._run(engine, Question("", "", gemm))
        except Exception as error:
            return f"no   {text}: {self._logger.errors[:1] or error}"
        return f"{'yes' if np.allclose(found, gemm(), atol=1e-3 * np.abs(gemm()).max()) else 'no '}  {text}"

    def _run(self, engine: Any, question: Question) -> np.ndarray:
        """The output y in float32; its memory is full of NaN before the run."""
        import torch

        context = engine.create_execution_context()
        kinds = {HALF: torch.float16, FP8: torch.float8_e4m3fn, BF16: torch.bfloat16}
        given = torch.from_numpy(x()).cuda().float()
        if question.given == FP8:
            given = given.clamp(-LARGEST, LARGEST)
        given = given.to(kinds[question.given])
        context.set_input_shape("x", tuple(given.shape))
        result = torch.full((4 * TOKENS * WIDTH,), 0xFF, dtype=torch.uint8, device="cuda")
        context.set_tensor_address("x", given.data_ptr())
        context.set_tensor_address("y", result.data_ptr())
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise RuntimeError("TensorRT did not run the network")
        stream.synchronize()
        shape = tuple(context.get_tensor_shape("y"))
        values: np.ndarray = tensor_at(result.data_ptr(), shape, question.result).float().cpu().numpy()
        return values

    def _layers(self, engine: Any) -> str:
        found = json.loads(
            engine.create_engine_inspector().get_engine_information(self._trt.LayerInformationFormat.JSON)
        )
        return ", ".join(
            f"{layer.get('LayerType')}({layer.get('TacticName') or layer.get('Name')})" for layer in found["Layers"]
        )


def main() -> None:
    """Asks every question and prints each line as soon as it is known."""
    prober = Prober()
    for question in QUESTIONS[:2]:
        _say(prober.ask(question))
    _say(prober.constant_by_network())
    for question in QUESTIONS[2:]:
        _say(prober.ask(question))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
