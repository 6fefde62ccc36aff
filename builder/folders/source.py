# SPDX-License-Identifier: Apache-2.0
"""The one file that a command works on: folders and repositories become an ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from padfree.contract.late_interaction import LateInteraction
from padfree.contract.names import ONNX_SUFFIX, is_onnx
from padfree.contract.os_errors import errors_of
from padfree.contract.phases import Phases
from padfree.onnx_tools.files import Model, Storage, is_rewritten, load_model, open_model, save_model, write_model
from padfree.onnx_tools.importing import bind_inputs
from padfree.runtime.text import TokenizerFile
from padfree.runtime.texts import tokenizer_path

from ..definitions.graph import Unseen
from ..errors import BuildError
from ..files import named_as
from .definition import reason_without
from .export import check_exportable
from .folder import TOKENIZER_CONFIG, Folder, read_folder
from .folder_model import FolderModel, head_of, kept_of
from .graph import add_head
from .head import AS_THE_FOLDER_SAYS, Head, HeadOptions
from .late_interaction import LateSettings, resolve
from .location import locate
from .objects import Entries
from .second_opinion import compare_with_transformers
from .tokenizer import folder_tokenizer, tokenizer_advice, tokenizer_notes

Say = Callable[[str], object]


@dataclass(frozen=True)
class Source:
    """The file to work on: the one that was given, or one in a temporary folder, made from `folder`.

    If the model is `unmade`, `path` does not exist yet; only the tokenizer lies there.
    """

    path: Path
    folder: Folder | None = None
    unmade: FolderModel | None = None

    def open(self, storage: Storage, phases: Phases, say: Say) -> Model:
        """The model; `phases` gets the seconds of imports and export, `say` what the user should know."""
        if self.unmade is not None:
            return self.unmade.make(storage, phases, say)
        return open_model(self.path, storage)


@contextmanager
def opened(
    model_or_folder: str | Path,
    options: HeadOptions = AS_THE_FOLDER_SAYS,
    *,
    mask: str | None = None,
    bindings: Mapping[str, int | float] | None = None,
    revision: str = "",
    say: Say = lambda _: None,
    before_export: Callable[[], object] = lambda: None,
    lazily: bool = False,
    with_second_opinion: bool = False,
) -> Iterator[Source]:
    """Gives the model file, or one made from a folder or with a head, which is removed at the end of the context.

    A file made from a folder holds the folder's TextInfo, and its tokenizer lies beside it (`tokenizer_path`).

    Args:
        model_or_folder: an .onnx file or a plan, a model's folder, or a repository of the Hugging Face Hub.
        options: pooling, normalisation and outputs that the user asks for instead of the folder's.
        mask: the padding mask's input, for pooling; None: attention_mask.
        bindings: inputs that are bound to numbers.
        revision: as for `locate`.
        say: gets what was chosen and what is being done, line by line.
        before_export: called before weights are exported, which takes a minute; may raise if that would be in vain.
        lazily: leave a folder's model `unmade`, so that no file is written.
        with_second_opinion: compare a definition with transformers if that is installed.

    Raises:
        BuildError: the folder cannot be used, or the options do not fit the file; the message says why.
        RewriteError: an input cannot be bound.
    """
    path, numbers = locate(model_or_folder, say, revision=revision), bindings or {}
    if not path.is_dir() and options.is_empty and not numbers:
        yield Source(path)
        return
    with tempfile.TemporaryDirectory(prefix="padfree-folder-") as scratch:
        if path.is_dir():
            source_model = _read(path, options, mask, numbers, say, before_export, Path(scratch))
            if (
                with_second_opinion
                and not source_model[0].exports
                and source_model[1].onnx.choice is None
                and not options.adapter
                and source_model[1].late is None
            ):
                compare_with_transformers(source_model[1], say)
            source = _of_folder(*source_model, say, lazily=lazily)
        else:
            source = Source(_of_file(path, options, mask, numbers, Path(scratch)))
        tokenizer = source.folder.tokenizer if source.folder is not None else None
        with named_as({tokenizer_path(source.path): tokenizer or path, source.path: path}):
            yield source


def _of_folder(unmade: FolderModel, folder: Folder, content: bytes | None, say: Say, *, lazily: bool) -> Source:
    if content is not None:
        with errors_of(file := tokenizer_path(unmade.path)):
            file.write_bytes(content)
    if lazily:
        return Source(unmade.path, folder, unmade)
    write_model(unmade.make(Storage.MAP, Phases(), say), unmade.path)
    return Source(unmade.path, folder)


def _read(
    path: Path,
    options: HeadOptions,
    mask: str | None,
    bindings: Mapping[str, int | float],
    say: Say,
    before_export: Callable[[], object],
    scratch: Path,
) -> tuple[FolderModel, Folder, bytes | None]:
    """The model of a folder, and its tokenizer's content; errors are raised before anything takes time."""
    folder = read_folder(path, options)
    adapter, has_onnx = options.adapter, folder.onnx.choice is not None
    reason = "" if has_onnx else reason_without(folder, adapter)
    if adapter and (has_onnx or reason):
        why = f"the model is taken from {folder.onnx.choice}" if has_onnx else reason
        raise BuildError(f"--adapter {adapter}: is for weights that padfree reads itself, and {why}; leave it out")
    if reason and folder.late is not None:
        raise BuildError(f"{path}: has a vector for every token, and padfree has to know such models itself: {reason}")
    if reason:
        before_export()
        check_exportable(folder, reason)
    for note in folder.notes:
        say(f"{path}: {note}")
    tokenizer = folder_tokenizer(folder)
    for note in () if tokenizer is None else tokenizer_notes(tokenizer, folder):
        say(f"{path}: {note}")
    if tokenizer is None:
        say(f"{path}: has no tokenizer.json{tokenizer_advice(folder)}; texts will need --tokenizer")
    head_of(path, options, folder.head)
    file = scratch / f"{path.resolve().name or 'model'}{ONNX_SUFFIX}"
    entries, unseen = {} if tokenizer is None else kept_of(tokenizer), None
    if folder.late is not None:
        entries["late"], unseen = _late(folder, folder.late, tokenizer)
    unmade = FolderModel(path, file, options, mask, bindings, entries, exports=bool(reason), unseen=unseen)
    return unmade, folder, None if tokenizer is None else tokenizer.content


def _late(folder: Folder, late: LateSettings, tokenizer: TokenizerFile | None) -> tuple[LateInteraction, Unseen | None]:
    """How queries and documents are read, in ids of the folder's tokenizer."""
    if tokenizer is None:
        raise BuildError(
            f"{folder.path}: has a vector for every token, and no tokenizer.json to tell the ids of markers; download "
            "the whole folder"
        )
    return resolve(late, tokenizer, folder.config, Entries(folder.encoder / TOKENIZER_CONFIG))


def _of_file(
    path: Path, options: HeadOptions, mask: str | None, bindings: Mapping[str, int | float], scratch: Path
) -> Path:
    if not is_onnx(path):
        raise BuildError(
            f"{path}: --pooling, --normalize, --outputs and --fix are for folders and exported models; leave them out"
        )
    if options.scores or options.template:
        option = "--scores" if options.scores else "--template"
        raise BuildError(f"{path}: {option} is for folders, whose tokenizer tells tokens of answers; give the folder")
    if options.adapter:
        raise BuildError(f"{path}: --adapter is for folders whose weights have adapters; leave it out")
    model = load_model(path)
    if is_rewritten(model):
        raise BuildError(
            f"{path}: is rewritten already; --pooling, --normalize, --outputs and --fix are for folders and exported "
            "models: give the exported one"
        )
    model = bind_inputs(model, bindings) if bindings else model
    if not options.is_empty:
        add_head(model, head_of(path, options, Head()), options.outputs, mask=mask)
    file = scratch / path.name
    save_model(model, file)
    return file
