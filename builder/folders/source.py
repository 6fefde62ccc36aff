# SPDX-License-Identifier: Apache-2.0
"""What commands are given, as the one file that they work on: folders and repositories become an ONNX file."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto
from padfree.contract.names import ONNX_SUFFIX, TEXT_METADATA_KEY
from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import SENTENCES
from padfree.onnx_tools.files.metadata import is_rewritten
from padfree.onnx_tools.files.model_file import load_model, save_model
from padfree.onnx_tools.importing.bound_inputs import bind_inputs
from padfree.runtime.texts import tokenizer_path

from ..errors import BuildError
from .export import check_packages, export
from .folder import Folder, described, read_folder
from .given import located
from .graph import add_head
from .head import AS_THE_FOLDER_SAYS, Head, HeadOptions
from .onnx_files import quantized_operator
from .tokenizer import folder_tokenizer, tokenizer_advice

Say = Callable[[str], object]


@dataclass(frozen=True)
class Source:
    """The file to work on: what was given, or one in a temporary folder; `folder` is what it was made of."""

    path: Path
    folder: Folder | None = None


@contextmanager
def opened(
    given: str | Path,
    options: HeadOptions = AS_THE_FOLDER_SAYS,
    *,
    mask: str | None = None,
    fixed: Mapping[str, int | float] | None = None,
    say: Say = lambda _: None,
    before_export: Callable[[], object] = lambda: None,
) -> Iterator[Source]:
    """The model file that was given, or made of a folder; what is made is removed with the context.

    The file of a folder carries what the folder says of texts, and its tokenizer lies beside it (`tokenizer_path`).

    Args:
        given: an .onnx file or a plan, a model's folder, or a repository of the Hugging Face Hub.
        options: pooling, normalisation and outputs, where the user asks for others than the folder's.
        mask: the input that is the padding mask, for pooling, where it is not attention_mask.
        fixed: inputs that are bound to numbers.
        say: gets what was chosen and what is being done, a line each.
        before_export: is called before weights are exported, which takes a minute; raises where that would be in vain.

    Raises:
        BuildError: the folder cannot be used, or the options do not fit the file; the message says why.
        RewriteError: an input cannot be bound.
    """
    path, numbers = located(given, say), fixed or {}
    if not path.is_dir() and options.is_empty and not numbers:
        yield Source(path)
        return
    with tempfile.TemporaryDirectory(prefix="padfree-folder-") as scratch:
        if path.is_dir():
            source = _of_folder(path, options, mask, numbers, say, before_export, Path(scratch))
        else:
            source = Source(_of_file(path, options, mask, numbers, Path(scratch)))
        try:
            yield source
        except Exception as error:
            _name_what_was_given(error, path, source)
            raise


def _name_what_was_given(error: Exception, path: Path, source: Source) -> None:
    """Puts what the user gave into a message in the place of the temporary file that was made of it."""
    if not error.args or not isinstance(error.args[0], str):
        return
    tokenizer = source.folder.tokenizer if source.folder is not None else None
    text = error.args[0].replace(str(tokenizer_path(source.path)), str(tokenizer or path))
    error.args = (text.replace(str(source.path), str(path)), *error.args[1:])


def _of_folder(
    path: Path,
    options: HeadOptions,
    mask: str | None,
    fixed: Mapping[str, int | float],
    say: Say,
    before_export: Callable[[], object],
    scratch: Path,
) -> Source:
    folder = read_folder(path)
    if folder.onnx.chosen is None:
        before_export()
        check_packages(folder)
    for note in folder.notes:
        say(f"{path}: {note}")
    tokenizer = folder_tokenizer(folder)
    for note in () if tokenizer is None else tokenizer.notes:
        say(f"{path}: {note}")
    if tokenizer is None:
        say(f"{path}: has no tokenizer.json{tokenizer_advice(folder)}; texts will need --tokenizer")
    head = _head(path, options, folder.head)
    source = folder.onnx.chosen
    if source is None:
        say(f"{path}: exporting its weights with torch")
        source = scratch / "exported.onnx"
        # What is pooled by hand is the encoder's rows, whatever head the weights have.
        export(replace(folder, task=SENTENCES) if options.pooling and head.pooling else folder, source)
    model = load_model(source)
    if folder.onnx.chosen is not None:
        _check_file(model, folder)
    model = bind_inputs(model, fixed) if fixed else model
    add_head(model, head, options.outputs, mask=mask)
    text = described(folder.text, folder.task, head)
    if not head.pools_prompt and not any(item.name == PROMPT_LENGTH for item in model.graph.input):
        say(f"{path}: its pooling leaves out the tokens of prompts, and the ONNX file's takes all: no prompts are kept")
        text = replace(text, prompts={}, default_prompt=None)
    if tokenizer is not None:
        text = replace(
            text,
            tokenizer_sha256=hashlib.sha256(tokenizer.content).hexdigest(),
            truncation_side=tokenizer.truncation_side,
            token_types=bool(tokenizer.token_types),
        )
    model.metadata_props.add(key=TEXT_METADATA_KEY, value=json.dumps(text.to_dict()))
    made = scratch / f"{path.resolve().name or 'model'}{ONNX_SUFFIX}"
    save_model(model, made)
    if tokenizer is not None:
        tokenizer_path(made).write_bytes(tokenizer.content)
    return Source(made, folder)


def _head(path: Path, options: HeadOptions, said: Head) -> Head:
    """What follows the encoder; an error where vectors are to be normalised, or not, and there are none."""
    head = options.applied(said)
    if options.normalize is not None and not head.pooling and head.splade is None:
        raise BuildError(
            f"{path}: --{'' if options.normalize else 'no-'}normalize is for vectors of texts, which --pooling makes, "
            f"and here are {'scores' if head.scores else 'rows of tokens'}; pass --pooling mean, for one, or leave it "
            "out"
        )
    return head


def _of_file(
    path: Path, options: HeadOptions, mask: str | None, fixed: Mapping[str, int | float], scratch: Path
) -> Path:
    if path.suffix != ONNX_SUFFIX:
        raise BuildError(
            f"{path}: --pooling, --normalize, --outputs and --fix are for folders and exported models; leave them out"
        )
    model = load_model(path)
    if is_rewritten(model):
        raise BuildError(
            f"{path}: is rewritten already; --pooling, --normalize, --outputs and --fix are for folders and exported "
            "models: give the exported one"
        )
    model = bind_inputs(model, fixed) if fixed else model
    if not options.is_empty:
        add_head(model, _head(path, options, Head()), options.outputs, mask=mask)
    made = scratch / path.name
    save_model(model, made)
    return made


def _check_file(model: ModelProto, folder: Folder) -> None:
    """Refuses a quantised file, and one that is not the model of config.json."""
    file, rows = folder.onnx.chosen, _table_rows(model)
    operator = quantized_operator(model)
    if operator is not None:
        raise BuildError(
            f"{file}: is quantised ({operator}), and padfree does not pack integer products; download "
            "model.safetensors or the float onnx/model.onnx of the model, too"
        )
    said = folder.config.vocab_size
    if rows is not None and said is not None and rows != said:
        raise BuildError(
            f"{folder.config.file}: says vocab_size {said}, the table in {file} has {rows} rows: they belong to "
            "different models; download the folder again"
        )


def _table_rows(model: ModelProto) -> int | None:
    """Rows of the table that input_ids choose from; None where that is not seen at once."""
    sizes = {item.name: list(item.dims) for item in model.graph.initializer}
    ids = {"input_ids"}
    for node in model.graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in ids:
            ids.add(node.output[0])
        if node.op_type == "Gather" and len(node.input) > 1 and node.input[1] in ids and node.input[0] in sizes:
            return int(sizes[node.input[0]][0])
    return None
