# SPDX-License-Identifier: Apache-2.0
"""A plan or a rewritten .onnx file in Triton's Python backend, run by padfree.runtime.triton."""

from __future__ import annotations

from pathlib import Path

from padfree.builder.errors import BuildError
from padfree.contract.text_inputs import ZERO_WHEN_MISSING
from padfree.onnx_tools import load_model, save_model
from padfree.runtime.batching import read_costs
from padfree.runtime.triton import EncoderParameters

from . import config as configs
from .folder import PLAN_FILE, Files, ModelFolder, plan_files
from .serving import ServedModel
from .tensors import VARIABLE
from .warmup import encoder_folder

MODEL_FILE = "model.py"
COSTS_FILE = "costs.json"
MODEL = '''"""Served by padfree; config.pbtxt configures it."""

from padfree.runtime.triton.{module} import {name} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def model_folder(served_model: ServedModel) -> ModelFolder:
    """The model's folder: configuration, model.py, the model file (a plan with its metadata), warm-up data.

    Raises:
        BuildError: an output whose type or shape cannot be served, or costs of another kind of model.
        padfree.runtime.SessionError: no table of costs.
    """
    file = PLAN_FILE if served_model.is_plan else "model.onnx"
    config = configs.new_config(served_model.options.name, served_model.max_batch, "python", MODEL_FILE)
    for item in served_model.metadata.token_inputs():
        optional = item.name in ZERO_WHEN_MISSING
        configs.add_input(config, item.name, "TYPE_INT32", [VARIABLE], ragged=True, optional=optional)
    configs.add_sequence_inputs(config, served_model.metadata)
    configs.add_seq_lens(config)
    configs.add_outputs(config, served_model)
    configs.add_serving(config, served_model)
    costs = served_model.options.costs
    parameters = EncoderParameters(
        model=file, costs=COSTS_FILE if costs else "", fair_share=served_model.options.fair_share
    )
    configs.add_parameters(config, parameters.to_strings())
    files: Files = {MODEL_FILE: MODEL.format(module="encoder", name="EncoderModel").encode()}
    if costs is not None:
        files[COSTS_FILE] = _cost_table(costs, served_model)
    if served_model.is_plan:
        files |= plan_files(served_model.path)
    else:
        model = load_model(served_model.path)  # brings weights along that lie in files of their own
        files[file] = lambda path: save_model(model, path)
    return encoder_folder(config, served_model, files)


def _cost_table(file: Path, served_model: ServedModel) -> bytes:
    table, interface = read_costs(file), served_model.metadata.interface
    if table.interface != interface:
        raise BuildError(
            f"{file}: costs of a {table.interface} model, this one is {interface}; measure its own: padfree costs "
            f"{served_model.path} -o {file}"
        )
    return table.to_json().encode()
