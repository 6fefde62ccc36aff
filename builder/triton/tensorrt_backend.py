# SPDX-License-Identifier: Apache-2.0
"""A packed plan in Triton's tensorrt backend; docs/reference/triton-repositories.md cites the source of each choice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from padfree.runtime import Profile

from . import config as configs
from . import libraries
from .folder import PLAN_FILE, ModelFolder, plan_files
from .serving import ServedModel
from .tensors import VARIABLE
from .warmup import encoder_folder

BATCHING_FILE = "batchstrategy.so"
"""The name that the core looks for in a model's folder (core/src/backend_model.cc, TritonModel::Create). The parameter
TRITON_BATCH_STRATEGY_PATH is not used: servers since May 2026 refuse a path outside of the model's folder, and one
inside is not known before the repository is mounted."""
MAX_TOKENS_PARAMETER = "padfree_max_tokens"
BATCH_INPUTS: Mapping[str, str] = MappingProxyType(
    {"seq_lens": "BATCH_ITEM_SHAPE_FLATTEN", "max_seqlen": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"}
)
"""Role of an engine's input -> how the server makes it from the requests of a batch."""


def model_folder(served_model: ServedModel, profile: Profile) -> ModelFolder:
    """The model's folder: configuration, plan with metadata, warm-up data, the library that keeps the token budget.

    Raises:
        BuildError: an output that Triton cannot cut, or the library is missing.
    """
    pb = configs.protobuf()
    config = configs.new_config(served_model.options.name, served_model.max_batch, "tensorrt", PLAN_FILE)
    ids = served_model.metadata.ids_input().name
    for item in served_model.metadata.inputs:
        if item.role == "tokens":
            configs.add_input(config, item.name, "TYPE_INT32", [VARIABLE], ragged=True)
        elif item.role in BATCH_INPUTS:
            kind = pb.BatchInput.Kind.Value(BATCH_INPUTS[item.role])
            config.batch_input.add(
                kind=kind, target_name=[item.name], data_type=pb.DataType.TYPE_INT32, source_input=[ids]
            )
    configs.add_sequence_inputs(config, served_model.metadata, as_the_engine=True)
    configs.add_outputs(config, served_model)
    for output in served_model.metadata.outputs:
        if output.layout == "packed":
            # One entry per tensor: the backends read the first target's shape alone.
            scatter = pb.BatchOutput.BATCH_SCATTER_WITH_INPUT_SHAPE
            config.batch_output.add(kind=scatter, target_name=[output.name], source_input=[ids])
    configs.add_serving(config, served_model)
    configs.add_parameters(config, {MAX_TOKENS_PARAMETER: str(profile.max_tokens)})
    library = {BATCHING_FILE: libraries.find(libraries.BATCHING).read_bytes()}
    return encoder_folder(config, served_model, plan_files(served_model.path), library)
