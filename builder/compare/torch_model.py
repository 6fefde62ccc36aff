# SPDX-License-Identifier: Apache-2.0
"""The original as a PyTorch module, as one more runner."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padfree.contract.installation import install_command
from padfree.runtime import Array
from polygraphy import mod
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from ..errors import BuildError
from .original import Original
from .runners import PaddedRunner, input_metadata

LOADER_FUNCTION = "load_model"


class TorchRunner(BaseRunner):  # type: ignore[misc]
    """Runs a module by its arguments' names, on the device that its parameters are on.

    Polygraphy's own PytRunner passes inputs by position and wants a GPU.
    """

    def __init__(self, load: Callable[[], Any], metadata: TensorMetadata, outputs: list[str]) -> None:
        super().__init__(prefix="torch")
        self._load = load
        self._metadata = metadata
        self._outputs = outputs
        self._module: Any = None

    def activate_impl(self) -> None:
        """Loads the module."""
        self._module = self._load().eval()

    def deactivate_impl(self) -> None:
        """Drops the module."""
        self._module = None

    def get_input_metadata_impl(self) -> TensorMetadata:
        """The original's inputs."""
        return self._metadata

    def infer_impl(self, feed_dict: OrderedDict[str, Array]) -> OrderedDict[str, Array]:
        """Runs one batch; outputs by name, or by order where the module gives a tuple or one tensor."""
        import torch

        parameter = next(self._module.parameters())
        accepted = inspect.signature(self._module.forward).parameters
        feeds_by_name = {name: value for name, value in feed_dict.items() if name in accepted}
        with torch.no_grad():
            tensors = {name: torch.from_numpy(value).to(parameter.device) for name, value in feeds_by_name.items()}
            result = self._module(**tensors)
        if isinstance(result, torch.Tensor):
            result = (result,)
        by_name = result if hasattr(result, "keys") else dict(zip(self._outputs, result, strict=False))
        return OrderedDict((name, by_name[name].float().cpu().numpy()) for name in self._outputs if name in by_name)


def torch_runner(original: Original, source: Path | None) -> PaddedRunner:
    """The runner for a Hugging Face folder or for a script that defines load_model().

    Raises:
        BuildError: no source is given.
    """
    if source is None:
        raise BuildError(
            "the runner torch needs the PyTorch model; pass --torch-model DIR (a folder for transformers' "
            f"AutoModel.from_pretrained) or --torch-model script.py (which defines {LOADER_FUNCTION}())"
        )
    path = source

    def load() -> Any:
        if path.suffix == ".py":
            return mod.import_from_script(str(path), LOADER_FUNCTION)()
        try:
            from transformers import AutoModel
        except ImportError as error:
            raise BuildError(f"the runner torch needs transformers ({error}): {install_command('export')}") from error
        return AutoModel.from_pretrained(path)

    return PaddedRunner(original, "torch", TorchRunner(load, input_metadata(original), [*original.layouts]))
