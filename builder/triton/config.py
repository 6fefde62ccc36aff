# SPDX-License-Identifier: Apache-2.0
"""What the configurations of all models of a repository share (docs/reference/triton-repositories.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError
from padfree.contract.installation import install_command
from padfree.contract.metadata import Metadata
from padfree.runtime.triton.items import SEQ_LENS

from .serving import ServedModel
from .tensors import SHOWN_TYPES, output_dims, type_name, type_of

CONFIG_FILE = "config.pbtxt"
HEADER = "# Written by `padfree triton`; docs/reference/triton-repositories.md of padfree explains every field.\n"


def protobuf() -> Any:
    """tritonclient's module of model configurations.

    Raises:
        BuildError: it is not installed, or cannot be loaded.
    """
    try:
        from tritonclient.grpc import model_config_pb2
    except (ImportError, TypeError) as error:  # protobuf refuses older generated code with a TypeError
        raise BuildError(
            f"padfree triton needs tritonclient, which cannot be loaded ({error}): {install_command('triton')}"
        ) from error
    return model_config_pb2


def to_text(config: Any) -> bytes:
    """A configuration as config.pbtxt."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    text: str = text_format.MessageToString(config)
    return (HEADER + text).encode()


def read_text(path: Path) -> Any:
    """The configuration in a config.pbtxt."""
    from google.protobuf import text_format

    return text_format.Parse(path.read_text("utf-8"), protobuf().ModelConfig())


def new_config(name: str, max_batch: int, backend: str = "", file: str = "") -> Any:
    """A configuration with name and batch size, which is explicit because the server fills in what is missing.

    `backend` runs the model, from `file` in the version's folder; an ensemble has neither.
    """
    config = protobuf().ModelConfig()
    config.name, config.max_batch_size = name, max_batch
    config.backend, config.default_model_filename = backend, file
    return config


def add_input(
    config: Any, name: str, kind: str, dims: list[int], *, ragged: bool = False, optional: bool = False
) -> None:
    """Adds an input of requests; `kind` is a name such as "TYPE_INT32", and `dims` leave the batch out."""
    item = config.input.add()
    item.name, item.data_type = name, protobuf().DataType.Value(kind)
    item.dims.extend(dims)
    item.allow_ragged_batch, item.optional = ragged, optional


def add_sequence_inputs(
    config: Any, metadata: Metadata, names: Collection[str] | None = None, *, as_the_engine: bool = False
) -> None:
    """Adds the inputs with one row per sequence: [n, N], and [n, 1] for those of a single number.

    `names`: which of them; None: all. `as_the_engine`: the server drops the axis of 1 again for engines whose input is
    [B].
    """
    for item in metadata.sequence_inputs():
        if names is not None and item.name not in names:
            continue
        add_input(config, item.name, type_of(item), [item.width or 1])
        if as_the_engine and item.width is None:
            config.input[-1].reshape.SetInParent()


def add_seq_lens(config: Any) -> None:
    """Adds the input that says how many tokens of each row count, where rows differ."""
    add_input(config, SEQ_LENS, "TYPE_INT32", [1], optional=True)


def add_outputs(config: Any, served_model: ServedModel) -> list[str]:
    """Adds the model's outputs as its backend gives them; returns their names."""
    for output in served_model.metadata.outputs:
        dtype = SHOWN_TYPES.get(output.dtype, output.dtype) if served_model.backend == "python" else output.dtype
        add_output(config, output.name, type_name(dtype), output_dims(output))
    return [output.name for output in served_model.metadata.outputs]


def add_output(config: Any, name: str, kind: str, dims: list[int]) -> None:
    """Adds an output; `kind` is a name such as "TYPE_INT32", and `dims` leave the batch out.

    No dims, one number per sequence, are a 1 that the server reshapes away, as dims must not be empty.
    """
    item = config.output.add()
    item.name, item.data_type = name, protobuf().DataType.Value(kind)
    item.dims.extend(dims or [1])
    if not dims:
        item.reshape.SetInParent()


def add_batching(config: Any, served_model: ServedModel, *, delays: bool = True) -> None:
    """Adds the dynamic batcher with the limit of its queue.

    `delays`: whether requests wait for others; not if they wait in another model of the same ensemble.
    """
    batching = config.dynamic_batching
    batching.SetInParent()
    batching.max_queue_delay_microseconds = served_model.options.max_queue_delay_us if delays else 0
    if served_model.options.max_queue_size:
        batching.default_queue_policy.max_queue_size = served_model.options.max_queue_size


def add_serving(config: Any, served_model: ServedModel) -> None:
    """Adds the dynamic batcher, and the instances: those of plans on the user's GPUs, others on the CPU."""
    add_batching(config, served_model)
    options = served_model.options
    add_instances(config, options.instances, on_gpu=served_model.is_plan, gpus=options.gpus)


def add_instances(config: Any, count: int, *, on_gpu: bool, gpus: Sequence[int] | None = None) -> None:
    """Adds one group: `count` instances on each of these GPUs (None: all of the server's), or on the CPU."""
    kinds = protobuf().ModelInstanceGroup
    config.instance_group.add(count=count, kind=kinds.KIND_GPU if on_gpu else kinds.KIND_CPU, gpus=gpus or ())


def add_parameters(config: Any, values: Mapping[str, str]) -> None:
    """Adds parameters, as strings."""
    for name, value in values.items():
        config.parameters[name].string_value = value
