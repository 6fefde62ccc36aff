# SPDX-License-Identifier: Apache-2.0
"""TensorRT's builder, wrapped: network, configuration, timing cache, and the checks on what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from padfree.runtime.gpu import Device, import_tensorrt, shared_logger, short_version
from rich.progress import Progress

from ..errors import BuildError
from . import linear_tables, timing_cache
from .gpu_memory import check_room, weight_bytes
from .inspection import count_engine_plugins, layer_names
from .network import check_plugin_layers, needed_plugin_names, parse, plugin_node_names
from .phases import BUILDING, CHECKING, PARSING, STARTING, Phases
from .profile import ShapeRange
from .progress import PhaseBars, make_monitor, watcher_of

DEFAULT_CACHE = "default"
MAX_OPTIMIZATION_LEVEL = 5


@dataclass(frozen=True)
class TacticOptions:
    """How TensorRT searches.

    workspace_bytes limits its scratch memory, None is all of the GPU. optimization_level is 0..5, None TensorRT's own.
    timing_cache is a file, DEFAULT_CACHE for one in the user's cache folder, None for none.
    """

    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: str | Path | None = DEFAULT_CACHE


@dataclass(frozen=True)
class BuiltEngine:
    """A serialised engine and its plugin layers by operator."""

    plan: bytes | memoryview
    plugin_layers: Mapping[str, int]


class EngineBuilder:
    """TensorRT's builder for one GPU; `phases` has the seconds of every phase.

    Raises:
        SessionError: no TensorRT, no GPU, or one older than compute capability 8.0.
        BuildError: TensorRT cannot create a builder here, or an option is out of range.
    """

    def __init__(self, device: int, options: TacticOptions, progress: Progress | None) -> None:
        level = options.optimization_level
        if level is not None and not 0 <= level <= MAX_OPTIMIZATION_LEVEL:
            raise BuildError(f"optimization level {level}, allowed: 0..{MAX_OPTIMIZATION_LEVEL}; leave it out for 3")
        self._trt = import_tensorrt()
        from padfree.runtime.gpu.cuda import free_bytes_of, open_device  # here, so that a missing TensorRT comes first

        # TensorRT may end the process where CUDA does not work, so CUDA is asked first.
        self.device: Device = open_device(device)
        self._free_bytes = partial(free_bytes_of, device)
        self.tensorrt_version = short_version(self._trt.__version__)
        self._options = options
        self._logger = shared_logger(self._trt)
        self._logger.forget()
        self._bars = PhaseBars(progress) if progress else None
        self.phases = Phases(watcher_of(progress))
        try:
            with self.phases.measure(STARTING):
                self._builder = self._trt.Builder(self._logger)
        except TypeError as error:
            raise BuildError(
                f"TensorRT {self._trt.__version__} cannot create a builder ({self._reason()}); run `padfree doctor`"
            ) from error

    def begin(self, progress: Progress | None) -> None:
        """Begins another engine: its times and its bars are its own."""
        self._bars = PhaseBars(progress) if progress else None
        self.phases = Phases(watcher_of(progress))

    def build(
        self,
        model: onnx.ModelProto,
        ranges: list[ShapeRange],
        *,
        content: memoryview | None = None,
        file: Path | None = None,
        drop: Callable[[], object] = lambda: None,
        strongly_typed: bool = True,
        builder_flags: tuple[str, ...] = (),
    ) -> BuiltEngine:
        """Builds a serialised engine and checks its plugin layers.

        Args:
            model: without functions; padfree nodes named.
            ranges: shapes for the one optimisation profile.
            content: all of the model's bytes, where `model` is without weights.
            file: the model with its weights, where `model` is without and they are too many for `content`.
            drop: frees `content` or `file` once the parser has its own copy.
            strongly_typed: types come from the graph; False lets TensorRT 10 choose (11 cannot).
            builder_flags: names of trt.BuilderFlag.

        Raises:
            BuildError: the weights do not fit the GPU, parser or builder failed, or a plugin layer is missing.
        """
        trt = self._trt
        self._logger.forget()
        check_room(weight_bytes(model, content, file), self._free_bytes(), self.device)
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if strongly_typed else 0
        network = self._builder.create_network(flags)
        with self.phases.measure(PARSING):
            parser = parse(trt, self._logger, network, model, content, file)
        drop()
        check_plugin_layers(trt, network, plugin_node_names(model))
        config = self._config(ranges, builder_flags)
        if strongly_typed:
            config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means 24 bits, not TF32's 11
        monitor = make_monitor(trt, self._bars) if self._bars else None
        if monitor is not None:
            config.progress_monitor = monitor
        cache = self._cache_path()
        if cache is not None:
            is_attached = timing_cache.attach(config, cache, is_named=self._options.timing_cache != DEFAULT_CACHE)
            linear_tables.load(linear_tables.path_beside(cache), self.device)
        with self.phases.measure(BUILDING):
            serialized = self._builder.build_serialized_network(network, config)
        if self._bars is not None and self._bars.cancelled:
            raise KeyboardInterrupt
        if serialized is None:
            raise BuildError(
                f"TensorRT {trt.__version__} built no engine: {self._reason()}; with too little GPU memory lower "
                "--max-tokens or --workspace-mib, otherwise run again with PADFREE_DEBUG=1 for TensorRT's log"
            )
        if cache is not None and is_attached:
            timing_cache.save(config, cache)
            linear_tables.save(linear_tables.path_beside(cache), self.device)
        del network, parser  # the parser held the network's weights until here
        plan = memoryview(serialized)  # TensorRT's memory; a copy would be as large
        with self.phases.measure(CHECKING):
            return BuiltEngine(plan, self._check_plugins(plan, needed_plugin_names(model)))

    def has_flag(self, name: str) -> bool:
        """Whether this TensorRT has a builder flag of this name."""
        return hasattr(self._trt.BuilderFlag, name)

    def _config(self, ranges: list[ShapeRange], builder_flags: tuple[str, ...]) -> Any:
        trt = self._trt
        config = self._builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if self._options.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self._options.workspace_bytes)
        if self._options.optimization_level is not None:
            config.builder_optimization_level = self._options.optimization_level
        for name in builder_flags:
            config.set_flag(getattr(trt.BuilderFlag, name))
        profile = self._builder.create_optimization_profile()
        for item in ranges:
            if item.minimum:  # a scalar has one shape alone
                profile.set_shape(item.name, item.minimum, item.optimum, item.maximum)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"TensorRT refused the optimisation profile {ranges}: {self._reason()}")
        return config

    def _cache_path(self) -> Path | None:
        if self._options.timing_cache is None:
            return None
        if self._options.timing_cache != DEFAULT_CACHE:
            return Path(self._options.timing_cache)
        return timing_cache.default_path(
            self.tensorrt_version, self.device.name, self.device.compute_capability.replace(".", "")
        )

    def _check_plugins(self, plan: bytes | memoryview, expected: dict[str, str]) -> dict[str, int]:
        if not expected:
            return {}
        runtime = self._trt.Runtime(self._logger)  # has to outlive the engine
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BuildError(f"TensorRT cannot load the engine it built ({self._reason()}); report this")
        information = engine.create_engine_inspector().get_engine_information(self._trt.LayerInformationFormat.JSON)
        return count_engine_plugins(layer_names(information), expected)

    def _reason(self) -> str:
        """TensorRT's first and last messages: where a plugin fails, the first is the plugin's reason."""
        errors = self._logger.errors
        if not errors:
            return "TensorRT gave no reason"
        return errors[-1] if len(errors) == 1 else f"{errors[0]}; then {errors[-1]}"
