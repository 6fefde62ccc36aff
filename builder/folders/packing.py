# SPDX-License-Identifier: Apache-2.0
"""Makes of a folder or an exported file a rewritten one that runs in onnxruntime, with its tokenizer beside it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from padfree.contract.names import ONNX_SUFFIX, is_onnx
from padfree.contract.phases import Phases
from padfree.onnx_tools import ModelFileError, RewriteOptions, rewrite_model, save_model, with_bodies
from padfree.onnx_tools.files import Storage, is_rewritten, open_model, write_metadata
from padfree.runtime import parse_metadata

from ..engine.preparation import metadata_of
from ..engine.progress import StageProgress
from ..files import named_as, write_files
from .companions import kept_files
from .head import AS_THE_FOLDER_SAYS, HeadOptions
from .location import locate
from .source import Say, opened


@contextlib.contextmanager
def runnable(
    model_or_folder: str | Path,
    options: HeadOptions = AS_THE_FOLDER_SAYS,
    *,
    mask: str | None = None,
    verify: bool = True,
    revision: str = "",
    say: Say = lambda _: None,
    progress: StageProgress | None = None,
) -> Iterator[Path]:
    """A plan or rewritten file as it was given, or a rewritten file made of the rest, removed with the context.

    Args:
        model_or_folder: a plan or a rewritten .onnx file; a model's folder, a repository of the hub, or an exported
            .onnx file, which are packed in fp32.
        options: as for `opened`.
        mask: as for `opened`.
        verify: whether original and rewritten model are compared in onnxruntime.
        revision: as for `locate`.
        say: as for `opened`.
        progress: shows the stages of what is done before the context begins.

    Raises:
        BuildError: as `opened`; padfree.onnx_tools.RewriteError: the model cannot be rewritten.
    """
    path = locate(model_or_folder, say, revision=revision)
    if not path.is_dir() and not _is_exported(path) and options.is_empty:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="padfree-packed-") as scratch:
        with (
            opened(path, options, mask=mask, say=say, lazily=True) as source,
            progress or contextlib.nullcontext(),
        ):
            say(f"{path}: rewriting it for onnxruntime on the CPU, in fp32")
            phases = Phases(progress)
            rewriting = rewrite_model(
                source.open(Storage.MEMORY, phases, say),
                RewriteOptions(verify=verify, mask_input=mask),
                phases=phases,
            )
            model = with_bodies(rewriting.model, rewriting.precision)
            metadata = metadata_of(model.proto)
            metadata.pop("verification", None)  # the same folder makes the same bytes: errors differ between machines
            write_metadata(model.proto, metadata)
            output = Path(scratch) / f"{source.path.stem}{ONNX_SUFFIX}"
            save_model(model, output)
            write_files(kept_files(source.path, output, parse_metadata(metadata, str(output))))
        with named_as({output: path}):
            yield output


def _is_exported(path: Path) -> bool:
    """Whether a file is an ONNX model that has not been rewritten yet; errors of others are raised elsewhere."""
    if not is_onnx(path) or not path.is_file():
        return False
    try:
        return not is_rewritten(open_model(path, Storage.MAP).proto)
    except ModelFileError:
        return False
