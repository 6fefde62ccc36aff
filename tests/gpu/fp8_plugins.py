# SPDX-License-Identifier: Apache-2.0
"""TensorRT plugins in Python with e4m3 inputs and outputs, computed by PyTorch, for tests/gpu/fp8_probe.py.

| plugin | inputs | outputs |
|---|---|---|
| Fp8Narrow | x fp16 [T, E] | x in e4m3, saturated |
| Fp8NarrowBf16 | x bf16 [T, E] | x in e4m3, saturated |
| Fp8Both | x fp16 [T, E] | x in e4m3, and x |
| Fp8Widen | x e4m3 [T, E] | x in fp16 |
| Fp8Product | x e4m3 [T, K], weight e4m3 [N, K] | x weight^T in fp16 [T, N] |
| Fp8ProductBytes | x e4m3, weight int8 [N, K], e4m3's bits | the same |
| Fp8ProductWords | x e4m3, weight int32 [N, K / 4], e4m3's bits | the same |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HALF, BF16, FP8, INT8, INT32 = "HALF", "BF16", "FP8", "INT8", "INT32"
LARGEST = 448.0  # of e4m3, which has no infinities


@dataclass(frozen=True)
class Spec:
    """A plugin: the types of its inputs and outputs by TensorRT's names, and what it computes on PyTorch's tensors."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compute: Callable[..., Sequence[Any]]

    @property
    def is_gemm(self) -> bool:
        return len(self.inputs) > 1


def _narrow(x: Any) -> Sequence[Any]:
    import torch

    return (x.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn),)


def _both(x: Any) -> Sequence[Any]:
    return (*_narrow(x), x)


def _widen(x: Any) -> Sequence[Any]:
    return (x.half(),)


def _gemm(x: Any, weight: Any) -> Sequence[Any]:
    import torch

    return ((x.float() @ weight.view(torch.float8_e4m3fn).float().T).half(),)


SPECS = (
    Spec("Fp8Narrow", (HALF,), (FP8,), _narrow),
    Spec("Fp8NarrowBf16", (BF16,), (FP8,), _narrow),
    Spec("Fp8Both", (HALF,), (FP8, HALF), _both),
    Spec("Fp8Widen", (FP8,), (HALF,), _widen),
    Spec("Fp8Product", (FP8, FP8), (HALF,), _gemm),
    Spec("Fp8ProductBytes", (FP8, INT8), (HALF,), _gemm),
    Spec("Fp8ProductWords", (FP8, INT32), (HALF,), _gemm),
)


def tensor_at(address: int, shape: Sequence[int], kind: str) -> Any:
    """Device memory as a PyTorch tensor, without a copy."""
    import torch

    kinds = {
        HALF: ("<f2", None),
        BF16: ("<i2", torch.bfloat16),
        FP8: ("|u1", torch.float8_e4m3fn),
        INT8: ("|i1", None),
        INT32: ("<i4", None),
    }
    typestr, seen_as = kinds[kind]

    class Memory:
        def __init__(self) -> None:
            self.__cuda_array_interface__ = {
                "shape": tuple(shape),
                "typestr": typestr,
                "data": (address, False),
                "version": 3,
                "strides": None,
            }

    tensor = torch.as_tensor(Memory(), device="cuda")
    return tensor if seen_as is None else tensor.view(seen_as)


def plugin_class(trt: Any, spec: Spec) -> Any:
    """The plugin's class for the given TensorRT module."""

    class Plugin(  # type: ignore[misc]
        trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime
    ):
        def __init__(self) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.plugin_name = spec.name
            self.plugin_version = "1"
            self.plugin_namespace = ""
            self.num_outputs = len(spec.outputs)

        def get_capability_interface(self, _kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            return Plugin()

        def attach_to_context(self, _context: Any) -> Any:
            return Plugin()

        def get_fields_to_serialize(self) -> Any:
            return trt.PluginFieldCollection([])

        def get_output_data_types(self, _types: Any) -> Any:
            return [getattr(trt.DataType, kind) for kind in spec.outputs]

        def get_output_shapes(self, inputs: Any, _shape_inputs: Any, _expressions: Any) -> Any:
            shape = trt.DimsExprs(inputs[0])
            if spec.is_gemm:
                shape[1] = inputs[1][0]
            return [shape for _ in spec.outputs]

        def supports_format_combination(self, pos: int, in_out: Any, _num_inputs: int) -> bool:
            found = in_out[pos].desc
            wanted = (*spec.inputs, *spec.outputs)[pos]
            return bool(found.format == trt.TensorFormat.LINEAR and found.type == getattr(trt.DataType, wanted))

        def configure_plugin(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def on_shape_change(self, _inputs: Any, _outputs: Any) -> None:
            pass

        def set_tactic(self, _tactic: int) -> None:
            pass

        def enqueue(
            self, input_desc: Any, output_desc: Any, inputs: Any, outputs: Any, _workspace: Any, stream: int
        ) -> None:
            import torch

            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                given = [
                    tensor_at(address, tuple(desc.dims), kind)
                    for address, desc, kind in zip(inputs, input_desc, spec.inputs, strict=True)
                ]
                for address, desc, kind, value in zip(
                    outputs, output_desc, spec.outputs, spec.compute(*given), strict=True
                ):
                    tensor_at(address, tuple(desc.dims), kind).copy_(value)

    return Plugin


def register(trt: Any) -> list[Any]:
    """Registers the creators of all plugins with TensorRT; keep the result as long as networks are built or run."""

    def creator(spec: Spec) -> Any:
        made = plugin_class(trt, spec)

        class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.IPluginCreatorV3One.__init__(self)
                self.name = spec.name
                self.plugin_version = "1"
                self.plugin_namespace = ""
                self.field_names = trt.PluginFieldCollection([])

            def create_plugin(self, _name: str, _fields: Any, _phase: Any) -> Any:
                return made()

        return Creator()

    creators = [creator(spec) for spec in SPECS]
    for one in creators:
        trt.get_plugin_registry().register_creator(one, "")
    return creators
