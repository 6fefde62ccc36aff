# SPDX-License-Identifier: Apache-2.0
"""`padfree.Model`: a model by its name, folder or file, and its answers to texts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from padfree.contract.closing import Closing
from padfree.contract.names import ONNX_SUFFIX, is_onnx
from padfree.runtime import Session
from padfree.runtime.answers import Classification, Floats, RankedDocument, TaggedSpan, TextModel, TokenRows
from padfree.runtime.text import Text
from rich.console import Console

from .engine.progress import StageProgress
from .errors import BuildError
from .folders.head import HeadOptions
from .folders.location import locate
from .folders.packing import runnable
from .kept_engines import AUTO, EngineOptions, kept_engine, runs_on_gpu

__all__ = ["Classification", "Model", "RankedDocument", "TaggedSpan", "TokenRows"]

_log = logging.getLogger("padfree")
_OWNER = "sentence-transformers"


class Model(TextModel, Closing):
    """A model that answers texts. Any number of threads may call it; `session` is what lies beneath.

    Args:
        model: a plan; a model's folder, a repository of the Hugging Face Hub, or an .onnx file, exported or rewritten.
            A name without an owner is one of sentence-transformers. On a machine with a GPU, all but plans become
            engines, which are built once and kept; elsewhere they run in onnxruntime, rewritten in fp32. On a terminal,
            stderr shows the progress.
        tokenizer: a tokenizer.json, instead of the one that the model keeps.
        pooling: one vector per text: ways of pooling, as ("mean",), instead of the folder's; for exported files, too.
        normalize: whether vectors have length 1, instead of what the folder says.
        scores: of a folder whose model generates text: the token whose score is a pair's answer, and the one that it is
            compared with, as ("yes", "no"); instead of what the folder says.
        template: what such a model is asked: a text with {query} and {document}, or a chat template in Jinja.
        verify: whether a model that is rewritten is compared with the original.
        revision: a branch, tag or commit of a repository of the hub; the newest where it is not given.
        backend: "tensorrt" for an engine on the GPU, "onnxruntime" for the CPU; "auto": an engine where this machine
            can build one. A plan always runs in TensorRT.
        precision: of an engine that is built: "fp32", "fp16" or "bf16"; None: fp16, or bf16 where fp16 cannot hold the
            numbers. On the CPU it is fp32.
        engines: where engines that are built are kept; None: padfree/engines in the user's cache folder.
        device: CUDA device.
        allow_other_gpu: run a plan that was built on another GPU model of the same compute capability.
        cpu_threads: threads of a run on the CPU; 0: every core.

    Raises:
        BuildError: no such model, or one that padfree cannot take; RewriteError: it cannot be rewritten; SessionError:
            the file, the machine or their versions do not fit, or there is no tokenizer.

    >>> import padfree
    >>> model = padfree.Model("all-MiniLM-L6-v2")
    >>> vectors = model.encode(["A cat sits on the mat.", "Rain is expected."])
    >>> vectors.shape[0], vectors.dtype
    (2, dtype('float32'))
    >>> len(model.encode("One text has one vector.")) == vectors.shape[1]
    True
    >>> model.tokens("a day").tokens
    ('[CLS]', 'a', 'day', '[SEP]')
    >>> model.close()
    """

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        pooling: str | Sequence[str] = (),
        normalize: bool | None = None,
        scores: str | Sequence[str] = (),
        template: str = "",
        verify: bool = True,
        revision: str = "",
        backend: str = AUTO,
        precision: str | None = None,
        engines: str | Path | None = None,
        device: int = 0,
        allow_other_gpu: bool = False,
        cpu_threads: int = 0,
    ) -> None:
        if not isinstance(device, int) or device < 0:
            raise BuildError(
                f"device is {device!r}, allowed: a GPU's number, 0 or more; backend='onnxruntime' runs it on the CPU"
            )
        modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
        with ExitStack() as resources:
            model_path = locate(_full_name(model), _log.info, revision=revision)
            answers = (scores,) if isinstance(scores, str) else tuple(scores)
            head = HeadOptions(modes, normalize, scores=answers, template=template)
            options = EngineOptions(head, precision, verify)
            bars = StageProgress(Console(stderr=True))  # on a terminal alone
            if _makes_engines(model_path) and runs_on_gpu(backend, device, model):
                engines_folder = None if engines is None else Path(engines)
                engine = kept_engine(model_path, options, device=device, folder=engines_folder, progress=bars)
                path = resources.enter_context(engine)
            else:
                _check_cpu(precision, model)
                packed = runnable(model_path, options.head, verify=verify, say=_log.info, progress=bars)
                path = resources.enter_context(packed)
            session = Session(path, device=device, allow_other_gpu=allow_other_gpu, cpu_threads=cpu_threads)
            self.session = resources.enter_context(session)
            super().__init__(session, path, None if tokenizer is None else Path(tokenizer), shown_path=str(model))
            self._resources = resources.pop_all()

    def __repr__(self) -> str:
        return f"<padfree.Model {self._shown_path!r}: {self.kind}>"

    def __reduce__(self) -> Any:
        """Says what helps instead of a copy, which neither a GPU's engine nor onnxruntime's session can have."""
        raise TypeError(
            f"{self!r} cannot be copied or sent to another process; open it there: padfree.Model({self._shown_path!r})"
        )

    async def encode_async(self, texts: str | Sequence[str], **options: Any) -> Floats:
        """As `encode`, in a thread."""
        return await asyncio.to_thread(lambda: self.encode(texts, **options))

    async def encode_query_async(self, texts: str | Sequence[str], **options: Any) -> Any:
        """As `encode_query`, in a thread."""
        return await asyncio.to_thread(lambda: self.encode_query(texts, **options))

    async def encode_document_async(self, texts: str | Sequence[str], **options: Any) -> Any:
        """As `encode_document`, in a thread."""
        return await asyncio.to_thread(lambda: self.encode_document(texts, **options))

    async def rerank_async(self, query: str, documents: Sequence[str], **options: Any) -> list[RankedDocument]:
        """As `rerank`, in a thread."""
        return await asyncio.to_thread(lambda: self.rerank(query, documents, **options))

    async def classify_async(self, texts: Text | Sequence[Text], **options: Any) -> Any:
        """As `classify`, in a thread."""
        return await asyncio.to_thread(lambda: self.classify(texts, **options))

    async def tag_async(self, texts: str | Sequence[str], **options: Any) -> Any:
        """As `tag`, in a thread."""
        return await asyncio.to_thread(lambda: self.tag(texts, **options))

    async def tokens_async(self, texts: str | Sequence[str], **options: Any) -> Any:
        """As `tokens`, in a thread."""
        return await asyncio.to_thread(lambda: self.tokens(texts, **options))

    def close(self) -> None:
        """Waits for runs of other threads and frees what the model holds; harmless when called again."""
        self._resources.close()


def _makes_engines(path: Path) -> bool:
    """Whether an engine can be built of it: it exists, and is no plan."""
    return path.is_dir() or (path.is_file() and is_onnx(path))


def _check_cpu(precision: str | None, model: object) -> None:
    """Raises BuildError for a precision that models on the CPU cannot have."""
    if precision not in (None, "fp32"):
        raise BuildError(
            f"{model}: precision {precision} is for engines on a GPU, and this one runs as it is, or on the CPU in "
            "fp32; leave it out"
        )


def _full_name(model: str | Path) -> str | Path:
    """What was given; a name without an owner gets sentence-transformers', as in that library."""
    path = Path(model)
    has_owner = len(path.parts) > 1 or path.exists() or path.suffix.lower() in (ONNX_SUFFIX, ".plan")
    return model if has_owner else f"{_OWNER}/{model}"
