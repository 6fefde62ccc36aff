# SPDX-License-Identifier: Apache-2.0
"""TensorRT's V3 plugin interfaces, called slot by slot: the bindings do not call those of C++ plugins.

Slots are those of the Itanium C++ ABI, in order of declaration; each interface starts with IVersionedInterface's four
(getAPILanguage, getInterfaceInfo, two destructors). They are the same from TensorRT 10.0 on.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELD_FLOAT32, FIELD_INT32, FIELD_CHAR = 1, 5, 6
FP32, FP16, INT8, INT32, BOOL, FP8, BF16, INT64 = 0, 1, 2, 3, 4, 6, 7, 8
LINEAR, CHW32 = 0, 5
CORE, BUILD, RUNTIME = 0, 1, 2
ERROR_SEVERITY = 1

AttributeValue = int | float | str | tuple[int, ...]


class PluginField(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("type", ctypes.c_int), ("length", ctypes.c_int)]


class FieldCollection(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("fields", ctypes.POINTER(PluginField))]


class Dims(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int32), ("d", ctypes.c_int64 * 8)]


class TensorDesc(ctypes.Structure):
    _fields_ = [("dims", Dims), ("type", ctypes.c_int), ("format", ctypes.c_int), ("scale", ctypes.c_float)]


class DynamicTensorDesc(ctypes.Structure):
    _fields_ = [("desc", TensorDesc), ("min", Dims), ("max", Dims), ("opt", Dims)]


class DimsExprs(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int32), ("d", ctypes.c_void_p * 8)]


def call(this: int, slot: int, result: Any, *arguments: Any) -> Any:
    """Calls one virtual function of the object at address `this`; arguments are ctypes values."""
    table = ctypes.c_void_p.from_address(this).value
    assert table is not None
    address = ctypes.c_void_p.from_address(table + slot * ctypes.sizeof(ctypes.c_void_p)).value
    assert address is not None
    types: list[Any] = [ctypes.c_void_p, *(type(argument) for argument in arguments)]
    return ctypes.CFUNCTYPE(result, *types)(address)(this, *arguments)


def address_of_binding(instance: object) -> int:
    """Address of the C++ object inside an object of TensorRT's Python bindings (pybind11 keeps it after the header)."""
    value = ctypes.c_void_p.from_address(id(instance) + object.__basicsize__).value
    assert value is not None
    return value


def decode_fields(address: int) -> dict[str, AttributeValue]:
    """Names and values of a PluginFieldCollection."""
    collection = FieldCollection.from_address(address)
    values: dict[str, AttributeValue] = {}
    for field in collection.fields[: collection.count]:
        if field.type == FIELD_CHAR:
            values[field.name.decode()] = ctypes.string_at(field.data, field.length).decode()
        elif field.type == FIELD_INT32 and field.length > 1:
            values[field.name.decode()] = tuple((ctypes.c_int32 * field.length).from_address(field.data))
        else:
            assert field.length == 1
            kind: Any = {FIELD_INT32: ctypes.c_int32, FIELD_FLOAT32: ctypes.c_float}[field.type]
            values[field.name.decode()] = kind.from_address(field.data).value
    return values


class Fields:
    """A PluginFieldCollection made from Python values: int, float and str become INT32, FLOAT32 and CHAR."""

    def __init__(self, values: Mapping[str, AttributeValue] | Sequence[tuple[str, AttributeValue]]) -> None:
        items = list(values.items() if isinstance(values, Mapping) else values)
        self._data: list[Any] = []
        array = (PluginField * max(len(items), 1))()
        for i, (name, value) in enumerate(items):
            array[i] = self._field(name, value)
        self.collection = FieldCollection(len(items), array)

    def _field(self, name: str, value: AttributeValue) -> PluginField:
        data: Any
        if isinstance(value, str):
            data, kind, length = ctypes.create_string_buffer(value.encode()), FIELD_CHAR, len(value.encode())
        elif isinstance(value, float):
            data, kind, length = ctypes.c_float(value), FIELD_FLOAT32, 1
        else:
            numbers = value if isinstance(value, tuple) else (value,)
            data, kind, length = (ctypes.c_int32 * len(numbers))(*numbers), FIELD_INT32, len(numbers)
        self._data.append(data)
        return PluginField(name.encode(), ctypes.cast(ctypes.byref(data), ctypes.c_void_p), kind, length)


@dataclass(frozen=True)
class Plugin:
    """One IPluginV3, given by its address."""

    address: int

    def capability(self, kind: int) -> int:
        return int(call(self.address, 4, ctypes.c_void_p, ctypes.c_int(kind)))

    def clone(self) -> Plugin:
        return Plugin(call(self.address, 5, ctypes.c_void_p))

    def attach(self) -> Plugin:
        return Plugin(call(self.capability(RUNTIME), 7, ctypes.c_void_p, ctypes.c_void_p(None)))

    def destroy(self) -> None:
        call(self.address, 3, None)

    def identity(self) -> tuple[str, str, str]:
        """Name, version and namespace."""
        core = self.capability(CORE)
        name, version, space = (call(core, slot, ctypes.c_char_p).decode() for slot in (4, 5, 6))
        return name, version, space

    def serialised_fields(self) -> dict[str, AttributeValue]:
        return decode_fields(call(self.capability(RUNTIME), 8, ctypes.c_void_p))

    def output_count(self) -> int:
        return int(call(self.capability(BUILD), 8, ctypes.c_int32))

    def timing_cache_id(self) -> str:
        return str(call(self.capability(BUILD), 12, ctypes.c_char_p).decode())

    def output_types(self, types: Sequence[int], output_count: int | None = None) -> list[int] | None:
        """Types of the outputs, None if the plugin refuses those of the inputs."""
        count = self.output_count() if output_count is None else output_count
        outputs, inputs = (ctypes.c_int * max(count, 1))(), (ctypes.c_int * len(types))(*types)
        arguments = (_void(outputs), ctypes.c_int32(count), _void(inputs), ctypes.c_int32(len(types)))
        return list(outputs[:count]) if call(self.capability(BUILD), 5, ctypes.c_int32, *arguments) == 0 else None

    def supports(self, position: int, types: Sequence[int], formats: Sequence[int] | None = None) -> bool:
        """Whether the tensor at `position` among inputs and outputs may have its type and format."""
        tensors = (DynamicTensorDesc * len(types))()
        for tensor, kind, tensor_format in zip(tensors, types, formats or [LINEAR] * len(types), strict=True):
            tensor.desc.type, tensor.desc.format = kind, tensor_format
        inputs = len(types) - self.output_count()
        arguments = (
            ctypes.c_int32(position),
            _void(tensors),
            ctypes.c_int32(inputs),
            ctypes.c_int32(self.output_count()),
        )
        return bool(call(self.capability(BUILD), 7, ctypes.c_bool, *arguments))

    def configure(self, types: Sequence[int], shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the plugin accepts inputs of these types and shapes, the same over the whole profile."""
        inputs, outputs = (DynamicTensorDesc * len(shapes))(), (DynamicTensorDesc * self.output_count())()
        for tensor, kind, shape in zip(inputs, types, shapes, strict=True):
            tensor.desc.type = kind
            for dims in (tensor.desc.dims, tensor.min, tensor.max, tensor.opt):
                dims.rank = len(shape)
                dims.d[: len(shape)] = list(shape)
        arguments = (_void(inputs), ctypes.c_int32(len(shapes)), _void(outputs), ctypes.c_int32(len(outputs)))
        return int(call(self.capability(BUILD), 4, ctypes.c_int32, *arguments)) == 0

    def on_shape_change(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the plugin accepts inputs of these shapes."""
        inputs, outputs = (TensorDesc * len(shapes))(), (TensorDesc * self.output_count())()
        for tensor, shape in zip(inputs, shapes, strict=True):
            tensor.dims.rank = len(shape)
            tensor.dims.d[: len(shape)] = list(shape)
        arguments = (_void(inputs), ctypes.c_int32(len(shapes)), _void(outputs), ctypes.c_int32(len(outputs)))
        return int(call(self.capability(RUNTIME), 5, ctypes.c_int32, *arguments)) == 0

    def enqueue(self, types: Sequence[int], shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> int:
        """The CUDA error of a launch on inputs of these types, shapes and addresses, with null pointers as outputs."""
        inputs, outputs = (TensorDesc * len(shapes))(), (TensorDesc * self.output_count())()
        for tensor, kind, shape in zip(inputs, types, shapes, strict=True):
            tensor.type, tensor.dims.rank = kind, len(shape)
            tensor.dims.d[: len(shape)] = list(shape)
        memory, results = (ctypes.c_void_p * len(shapes))(*addresses), (ctypes.c_void_p * self.output_count())()
        arguments = (*map(_void, (inputs, outputs, memory, results)), ctypes.c_void_p(None), ctypes.c_void_p(None))
        return int(call(self.capability(RUNTIME), 6, ctypes.c_int32, *arguments))


class PluginLibrary:
    """libpadfree.so, opened without TensorRT."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.getCreators.restype = ctypes.POINTER(ctypes.c_void_p)
        count = ctypes.c_int32()
        array = self._library.getCreators(ctypes.byref(count))
        addresses = [int(address) for address in array[: count.value]]
        self.creators = {call(address, 6, ctypes.c_char_p).decode(): address for address in addresses}

    def field_types(self, operator: str) -> dict[str, int]:
        """Names and TensorRT types of a creator's fields, in order."""
        collection = FieldCollection.from_address(call(self.creators[operator], 5, ctypes.c_void_p))
        return {field.name.decode(): field.type for field in collection.fields[: collection.count]}

    def create(
        self, operator: str, values: Mapping[str, AttributeValue] | Sequence[tuple[str, AttributeValue]]
    ) -> Plugin | None:
        """A plugin with these attributes, None if the creator refuses them."""
        fields = Fields(values)
        arguments = (ctypes.c_char_p(b"node_1"), ctypes.pointer(fields.collection), ctypes.c_int(0))
        address = call(self.creators[operator], 4, ctypes.c_void_p, *arguments)
        return None if address is None else Plugin(address)

    def set_logger_finder(self, finder: int | None) -> None:
        self._library.setLoggerFinder(ctypes.c_void_p(finder))


class LoggerFinder:
    """An ILoggerFinder that finds one ILogger, laid out as TensorRT of that major version lays it out."""

    def __init__(self, major: int, logger: int) -> None:
        find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _this: logger)
        self._object = virtual_object({4 if major >= 11 else 0: find})
        self.address = ctypes.addressof(self._object)


class LogCapture:
    """Collects what the library logs: through an ILogger if TensorRT is loaded in the process, else from stderr."""

    def __init__(self, library: PluginLibrary, read_stderr: Callable[[], str]) -> None:
        self._library, self._read_stderr = library, read_stderr
        self._messages: list[str] = []
        major = loaded_major()
        write = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(self._write)
        self._logger = virtual_object({4 if major >= 11 else 0: write})
        self._finder = LoggerFinder(major, ctypes.addressof(self._logger))

    def _write(self, _this: int, severity: int, message: bytes) -> None:
        assert severity == ERROR_SEVERITY
        self._messages.append(message.decode())

    def text(self) -> str:
        """Everything logged since the last call."""
        lines, self._messages = self._messages, []
        return "\n".join([*lines, self._read_stderr()])

    def __enter__(self) -> LogCapture:
        self._library.set_logger_finder(self._finder.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._library.set_logger_finder(None)


def loaded_major() -> int:
    """Major version of the TensorRT in this process, 0 if there is none."""
    for major in (11, 10):
        try:
            ctypes.CDLL(f"libnvinfer.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        return major
    return 0


def virtual_object(functions: Mapping[int, Any]) -> Any:
    """A C++ object whose table of virtual functions has these at these slots; it keeps them alive."""
    table = (ctypes.c_void_p * (max(functions) + 1))()
    for slot, function in functions.items():
        table[slot] = ctypes.cast(function, ctypes.c_void_p)
    result: Any = (ctypes.c_void_p * 2)(ctypes.cast(table, ctypes.c_void_p))  # the table, then room for mImpl
    result.keep_alive = (table, dict(functions))
    return result


def _void(array: Any) -> ctypes.c_void_p:
    return ctypes.cast(array, ctypes.c_void_p)
