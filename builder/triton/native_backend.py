# SPDX-License-Identifier: Apache-2.0
"""A packed plan in padfree's own backend, libtriton_padfree.so: plan and metadata, and a configuration.

With a compiled tokenizer beside the plan, the model takes texts as well as token ids.

The backend could complete the configuration itself; written out, it can be read and changed, and it also holds with
--disable-auto-complete-config.
"""

from __future__ import annotations

from padfree.builder.errors import BuildError
from padfree.contract.metadata import OutputInfo
from padfree.contract.text_inputs import ZERO_WHEN_MISSING
from padfree.runtime.triton import EncoderParameters

from . import config as configs
from .compiled_tokenizer import COMPILED_FILE
from .folder import PLAN_FILE, ModelFolder, plan_files
from .serving import NATIVE, ServedModel, has_rows
from .tensors import VARIABLE, type_of
from .text import TokenizerChoice, add_text_inputs, add_text_outputs, text_inputs, tokenizer_parameters
from .warmup import encoder_folder


def model_folder(served_model: ServedModel, tokenizer: TokenizerChoice | None) -> ModelFolder:
    """The model's folder; with a compiled tokenizer, where there is one.

    Raises:
        BuildError: an output that has no row of one size for every token or every sequence.
    """
    config = configs.new_config(served_model.options.name, served_model.max_batch, NATIVE, PLAN_FILE)
    compiled = None if tokenizer is None else tokenizer.compiled
    from_texts = () if compiled is None else text_inputs(served_model).own_names
    for item in served_model.metadata.token_inputs():
        dims, optional = [VARIABLE, *item.trailing_shape], item.name in (*ZERO_WHEN_MISSING, *from_texts)
        configs.add_input(config, item.name, type_of(item), dims, ragged=True, optional=optional)
    configs.add_sequence_inputs(config, served_model.metadata)
    configs.add_seq_lens(config)
    for output in served_model.metadata.outputs:
        check_output(output)
    configs.add_outputs(config, served_model)
    files = plan_files(served_model.path)
    if tokenizer is not None and compiled is not None:
        files[COMPILED_FILE] = compiled
        add_text_inputs(config)
        add_text_outputs(config, served_model)
        configs.add_parameters(config, EncoderParameters(PLAN_FILE).to_strings())
        configs.add_parameters(config, tokenizer_parameters(served_model, tokenizer, COMPILED_FILE).to_strings())
    configs.add_serving(config, served_model)
    return encoder_folder(config, served_model, files)


def check_output(output: OutputInfo) -> None:
    """Raises BuildError unless it has a row of one size for every token, or for every sequence."""
    if not has_rows(output):
        sizes = ", ".join(str(size) for size in (output.shape or output.sizes))
        raise BuildError(
            f"output '{output.name}' [{sizes}] has no row of one size for every token or every sequence, which "
            f"--backend {NATIVE} needs; serve the plan with --backend python"
        )
