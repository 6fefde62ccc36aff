# SPDX-License-Identifier: Apache-2.0
"""Session: one door to engines and rewritten ONNX files, for ragged batches."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt

from .backend import Backend
from .errors import SessionError
from .feeds import packed_feeds, padded_feeds, split_outputs
from .metadata import Metadata, open_plan
from .request import Limits, Ragged, read_packed, read_request, split
from .trt import import_tensorrt

Array = npt.NDArray[Any]

ONNX_SUFFIX = ".onnx"
CPU_TOKENS_A_RUN = 16384  # keeps onnxruntime's activations in bounds when a request is large


class Session:
    """Runs a plan (TensorRT) or a rewritten .onnx file (onnxruntime, CPU) on ragged batches.

    Everything that can be checked on the host is checked before anything runs. Requests larger than the engine's
    profile are split into several runs; results come back in the caller's order. Not thread-safe: one session has
    one stream and one set of buffers; open one session a thread.

    Args:
        path: model.plan with its model.plan.json beside it, or an .onnx file made by `padfree optimize`.
        device: CUDA device number, for plans.
        allow_other_gpu: run a plan that was built on another GPU model of the same compute capability.

    Raises:
        SessionError: the file, the machine or their versions do not fit; the message says what to do.
    """

    def __init__(self, path: str | Path, *, device: int = 0, allow_other_gpu: bool = False) -> None:
        file = Path(path)
        self._backend: Backend
        if file.suffix == ONNX_SUFFIX:
            from .onnx_backend import OnnxBackend

            onnx_backend = OnnxBackend(file)
            self._backend, self._metadata = onnx_backend, onnx_backend.metadata
        else:
            self._metadata = open_plan(file)
            import_tensorrt()  # named first where both TensorRT and cuda-bindings are missing
            from .tensorrt_backend import TensorRTBackend

            self._backend = TensorRTBackend(file, self._metadata, device=device, allow_other_gpu=allow_other_gpu)
        self._limits = _limits(self._metadata)
        # Frees GPU memory of sessions that nobody closed, at the latest when the process ends.
        self._finalizer = weakref.finalize(self, self._backend.close)

    @property
    def metadata(self) -> Metadata:
        """What the file says about itself: interface, inputs, outputs, profile."""
        return self._metadata

    @property
    def backend(self) -> Backend:
        """The execution backend; a TensorRTBackend also captures CUDA graphs and measures."""
        return self._backend

    def run(self, request: Mapping[str, Sequence[Any]] | Sequence[Any]) -> dict[str, list[Array]]:
        """Runs a ragged batch.

        Args:
            request: {"input_ids": [ids, ids, ...], "token_type_ids": [...]}, or a bare list of id arrays; any
                integer arrays or lists, one a sequence, of any lengths, empty ones too. Missing token_type_ids are
                zeros.

        Returns:
            Output name -> one array a sequence, in the caller's order: [len, ...] for outputs with one row a token,
            [...] for outputs with one row a sequence. bfloat16 outputs come as float32.

        Raises:
            SessionError: the request does not fit the model or the profile; nothing has run.
        """
        ragged = read_request(request, self._metadata)
        results: dict[str, list[Array]] = {item.name: [] for item in self._metadata.outputs}
        for start, stop in split(ragged, self._limits):
            part = ragged.part(start, stop)
            for name, rows in split_outputs(self._backend.run(self.feeds(part)), part, self._metadata).items():
                results[name].extend(rows)
        return results

    def run_packed(
        self, inputs: Mapping[str, Any] | Sequence[int] | Array, seq_lens: Any, *, filler_tokens: int = 0
    ) -> dict[str, Array]:
        """Runs tokens that are packed already, in one run, and returns outputs as the model gives them.

        Args:
            inputs: token input name -> integers [T], or the ids [T] alone.
            seq_lens: integers [B]; they and `filler_tokens` add up to T.
            filler_tokens: tokens after the last sequence that belong to none; their output rows mean nothing.

        Returns:
            Output name -> [T, ...] or [B, ...].

        Raises:
            SessionError: a padded model, or a request that does not fit the model or the profile.
        """
        if self._metadata.interface != "packed":
            raise SessionError(
                "run_packed needs a packed model, this one is padded; use run, or rewrite it with --interface packed"
            )
        ragged = read_packed(inputs, seq_lens, self._metadata, filler_tokens=filler_tokens)
        if not ragged.seq_lens.size:
            raise SessionError("seq_lens is empty, allowed: one or more sequences; a sequence may have 0 tokens")
        self._check_one_run(ragged)
        return self._backend.run(self.feeds(ragged))

    def feeds(self, ragged: Ragged) -> dict[str, Array]:
        """The model's input arrays for a checked batch, as its interface wants them."""
        make = packed_feeds if self._metadata.interface == "packed" else padded_feeds
        return make(ragged, self._metadata)

    def _check_one_run(self, ragged: Ragged) -> None:
        if self._metadata.engine is None:
            return
        profile = self._metadata.engine.profile
        tokens = next(iter(ragged.tokens.values())).size
        for what, value, allowed, option in (
            ("sequences", ragged.seq_lens.size, profile.max_batch, "--max-batch"),
            ("tokens", tokens, profile.max_tokens, "--max-tokens"),
        ):
            if allowed is not None and value > allowed:
                raise SessionError(
                    f"{value} {what} in one run, the engine's profile takes {allowed}; split the request, or build "
                    f"the engine with {option} {value}"
                )

    def close(self) -> None:
        """Frees buffers and the engine; harmless when called again."""
        self._finalizer()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _limits(metadata: Metadata) -> Limits:
    padded = metadata.interface == "padded"
    if metadata.engine is None:
        return Limits(None, CPU_TOKENS_A_RUN, metadata.max_positions, padded)
    profile = metadata.engine.profile
    # A padded profile is a rectangle: max_batch sequences of max_seq_len fit by construction.
    return Limits(profile.max_batch, None if padded else profile.max_tokens, profile.max_seq_len, padded)
