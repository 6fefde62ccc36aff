# SPDX-License-Identifier: Apache-2.0
"""A packed plan in padfree's own backend, libtriton_padfree.so: plan and metadata, and a configuration.

The backend could complete the configuration itself; written out, it can be read and changed, and it also holds with
--disable-auto-complete-config.
"""

from __future__ import annotations

from padfree.builder.errors import BuildError
from padfree.contract.metadata import OutputInfo
from padfree.runtime import sidecar_path
from padfree.runtime.request import ZERO_WHEN_MISSING

from . import config as configs
from .folder import ENCODER, ModelFolder, copy_of
from .serving import NATIVE, ServedModel
from .tensors import VARIABLE, data_type, output_dims
from .warmup import add_warmup

PLAN_FILE = "model.plan"


def model_folder(served_model: ServedModel) -> ModelFolder:
    """The model's folder.

    Raises:
        BuildError: an output that has no row of one size for every token or every sequence.
    """
    config = configs.new_config(served_model.options.name, served_model.max_batch)
    config.backend, config.default_model_filename = NATIVE, PLAN_FILE
    for item in served_model.metadata.token_inputs():
        kind = "TYPE_FP32" if item.holds_floats else "TYPE_INT32"
        dims = [VARIABLE, *item.trailing_shape]
        configs.add_input(config, item.name, kind, dims, ragged=True, optional=item.name in ZERO_WHEN_MISSING)
    configs.add_sequence_inputs(config, served_model.metadata)
    configs.add_seq_lens(config)
    for output in served_model.metadata.outputs:
        check_output(output)
        configs.add_output(config, output.name, data_type(configs.protobuf(), output.dtype), output_dims(output))
    configs.add_batching(config, served_model)
    configs.add_instances(config, served_model.options.instances, on_gpu=True, gpus=served_model.options.gpus)
    warmup = add_warmup(config, served_model)
    return ModelFolder(
        version={PLAN_FILE: copy_of(served_model.path), f"{PLAN_FILE}.json": copy_of(sidecar_path(served_model.path))},
        beside=warmup,
        config=configs.to_text(config),
        part=ENCODER,
        family=served_model.options.name,
    )


def check_output(output: OutputInfo) -> None:
    """Raises BuildError unless it has a row of one size for every token, or for every sequence."""
    if output.rows_of is None or output.shape is None or None in output.shape[1:]:
        sizes = ", ".join(str(size) for size in (output.shape or output.sizes))
        raise BuildError(
            f"output '{output.name}' [{sizes}] has no row of one size for every token or every sequence, which "
            f"--backend {NATIVE} needs; serve the plan with --backend python"
        )
