# SPDX-License-Identifier: Apache-2.0
"""Models for texts: NAME_tokenizer makes token ids of them, the ensemble NAME_text gives the encoder's outputs.

Where the encoder NAME takes texts itself, the ensemble hands them on; otherwise it chains the tokenizer with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError
from padfree.builder.tokenization import as_build_errors, load_tokenizer
from padfree.runtime import SessionError
from padfree.runtime.text import TextInputs, TokenizerFile, text_source, tokenizer_path
from padfree.runtime.triton import TokenizerParameters
from padfree.runtime.triton.items import SEQ_LENS
from padfree.runtime.triton.texts import TEXT, TEXT_PAIR, TRUNCATE, TRUNCATED

from . import config as configs
from .compiled_tokenizer import COMPILED_FILE, NotCompiledError, compile_tokenizer
from .folder import ENSEMBLE, TOKENIZER, ModelFolder
from .python_backend import MODEL, MODEL_FILE
from .serving import NATIVE, ServedModel
from .tensors import VARIABLE

TOKENIZER_FILE = "tokenizer.json"
LATEST = -1
EMPTY_FILE = ".keep"  # an ensemble needs a version folder, with nothing in it


def tokenizer_name(model: str) -> str:
    """The name in the server of a model's tokenizer."""
    return f"{model}_tokenizer"


def ensemble_name(served_model: ServedModel) -> str:
    """The ensemble's name in the server."""
    return f"{served_model.options.name}_text"


@dataclass(frozen=True)
class TokenizerChoice:
    """How a model's texts become tokens.

    Attributes:
        source: the tokenizer.
        max_length: tokens of a text or pair.
        compiled: the file for the native backend; None: they do in Python.
        why: why in Python; "" where the encoder runs there too, or in Triton's own backend.
    """

    source: TokenizerFile
    max_length: int
    compiled: bytes | None = None
    why: str = ""


def choose_tokenizer(served_model: ServedModel, tokenizer: Path) -> TokenizerChoice:
    """Reads a tokenizer, and finds out whether the native backend can do its work.

    Raises:
        BuildError: no tokenizer there, an input that texts do not give, or a length that the model does not take.
    """
    source = _source(served_model, tokenizer / TOKENIZER_FILE if tokenizer.is_dir() else tokenizer)
    if source.late is not None:
        raise BuildError(
            "the model reads queries and documents, each in its own way, and a repository's tokenizer reads texts in "
            "one; leave --tokenizer out, and the repository takes token ids"
        )
    max_length = _max_length(served_model, source)
    text_inputs(served_model)
    if served_model.backend != NATIVE:
        return TokenizerChoice(source, max_length)
    try:
        return TokenizerChoice(source, max_length, compile_tokenizer(source, max_length))
    except NotCompiledError as error:
        return TokenizerChoice(source, max_length, why=f"the tokenizer {error}")


def tokenizer_folder(served_model: ServedModel, choice: TokenizerChoice) -> ModelFolder:
    """The tokenizer's folder: configuration, and model.py with tokenizer.json, or the compiled tokenizer."""
    inputs = text_inputs(served_model)
    name = tokenizer_name(served_model.options.name)
    if choice.compiled is None:
        config = configs.new_config(name, served_model.max_batch, "python", MODEL_FILE)
        file, files = TOKENIZER_FILE, {TOKENIZER_FILE: choice.source.content}
        files[MODEL_FILE] = MODEL.format(module="tokenizer", name="TokenizerModel").encode()
    else:
        config = configs.new_config(name, served_model.max_batch, NATIVE, COMPILED_FILE)
        file, files = COMPILED_FILE, {COMPILED_FILE: choice.compiled}
    add_text_inputs(config)
    of_tokens = {item.name for item in served_model.metadata.token_inputs()}
    for input_name in inputs.own_names:
        configs.add_output(config, input_name, "TYPE_INT32", [VARIABLE if input_name in of_tokens else 1])
    configs.add_output(config, SEQ_LENS, "TYPE_INT32", [1])
    configs.add_output(config, TRUNCATED, "TYPE_BOOL", [1])
    configs.add_batching(config, served_model, delays=False)
    configs.add_instances(config, served_model.options.instances, on_gpu=False)
    configs.add_parameters(config, tokenizer_parameters(served_model, choice, file).to_strings())
    return ModelFolder(dict(files), {}, configs.to_text(config), TOKENIZER, served_model.options.name)


def tokenizer_parameters(served_model: ServedModel, choice: TokenizerChoice, file: str) -> TokenizerParameters:
    """The parameters of a model that turns texts into tokens with this file of its version's folder."""
    metadata, text, source = served_model.metadata, served_model.metadata.text, choice.source
    types, positions = metadata.types_input(), metadata.positions_input()
    usual = TokenizerParameters(choice.max_length)
    return TokenizerParameters(
        max_length=choice.max_length,
        tokenizer=file,
        long_texts=served_model.options.long_texts,
        vocabulary=metadata.ids_input().limit or 0,
        truncation_side=source.truncation_side,
        token_types=bool(source.token_types),
        prompt="" if text is None or text.default_prompt is None else text.prompts[text.default_prompt],
        ids=metadata.ids_input().name,
        types=usual.types if types is None else types.name,
        positions=usual.positions if positions is None else positions.name,
        pairs=text is not None and text.takes_pairs,
        template="" if source.template is None else json.dumps(source.template.to_dict()),
    )


def ensemble_folder(served_model: ServedModel, choice: TokenizerChoice) -> ModelFolder:
    """The ensemble's folder: text in, the encoder's outputs out."""
    # The tokenizer pads the texts of one request to its longest and gives their lengths. The tensorrt backend takes no
    # lengths, so every row of a request is a sequence: one text per request, and the encoder batches many requests.
    rows_differ = served_model.backend != "tensorrt"
    config = configs.new_config(ensemble_name(served_model), served_model.max_batch if rows_differ else 1)
    config.platform = "ensemble"
    add_text_inputs(config)
    inputs = text_inputs(served_model)
    configs.add_sequence_inputs(config, served_model.metadata, inputs.unfilled)
    outputs = configs.add_outputs(config, served_model)
    of_texts = add_text_outputs(config, served_model)
    between = [*inputs.own_names, *([SEQ_LENS] if rows_differ else [])]
    steps, name, texts = config.ensemble_scheduling.step, served_model.options.name, (TEXT, TEXT_PAIR, TRUNCATE)
    if choice.compiled is not None:
        _add_step(steps, name, [*texts, *inputs.unfilled], [*outputs, *of_texts])
    else:
        _add_step(steps, tokenizer_name(name), texts, [*between, TRUNCATED])
        _add_step(steps, name, [*between, *inputs.unfilled], outputs)
    return ModelFolder({EMPTY_FILE: b""}, {}, configs.to_text(config), ENSEMBLE, served_model.options.name)


def add_text_inputs(config: Any) -> None:
    """Adds the inputs of a model that takes texts."""
    configs.add_input(config, TEXT, "TYPE_STRING", [1], optional=True)  # its absence gets a better error
    configs.add_input(config, TEXT_PAIR, "TYPE_STRING", [1], optional=True)
    configs.add_input(config, TRUNCATE, "TYPE_BOOL", [1], optional=True)


def add_text_outputs(config: Any, served_model: ServedModel) -> list[str]:
    """Adds what answers say about the texts themselves; returns the names."""
    names = [TRUNCATED]
    has_rows = any(output.layout != "per_sequence" for output in served_model.metadata.outputs)
    if has_rows and served_model.backend != "tensorrt":
        configs.add_output(config, SEQ_LENS, "TYPE_INT32", [1])  # which rows of an answer are a text's
        names.insert(0, SEQ_LENS)
    configs.add_output(config, TRUNCATED, "TYPE_BOOL", [1])
    return names


def _add_step(steps: Any, model: str, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """A step whose tensors have the same names in the ensemble as in the model."""
    step = steps.add(model_name=model, model_version=LATEST)
    step.input_map.update({name: name for name in inputs})
    step.output_map.update({name: name for name in outputs})


def _source(served_model: ServedModel, file: Path) -> TokenizerFile:
    """The tokenizer, checked: the one that the model keeps, with what its folder said, or another one."""
    if file != tokenizer_path(served_model.path):
        return load_tokenizer(file, served_model.metadata, pairs=True)
    with as_build_errors():
        return text_source(served_model.path, served_model.metadata)


def text_inputs(served_model: ServedModel) -> TextInputs:
    """What texts give the model."""
    try:
        return TextInputs(served_model.metadata, "--tokenizer")
    except SessionError as error:
        raise BuildError(f"{error}, and leave --tokenizer out") from error


def _max_length(served_model: ServedModel, source: TokenizerFile) -> int:
    asked_length, longest = served_model.options.max_length, served_model.metadata.longest
    if longest is not None and (asked_length or longest) > longest:
        raise BuildError(
            f"--max-length {asked_length}, the model takes {longest} tokens; pass --max-length {longest} or less"
        )
    length = asked_length or longest
    if length is None:
        raise BuildError("--tokenizer: the model sets no limit to a text's length; pass --max-length 512")
    specials = source.least_tokens()
    if length <= specials:
        raise BuildError(
            f"--max-length {length}: the tokenizer puts {specials} tokens of its own around a text; pass "
            f"--max-length {specials + 1} or more"
        )
    return length
