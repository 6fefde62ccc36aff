# SPDX-License-Identifier: Apache-2.0
"""Session: one door to engines and rewritten ONNX files, for ragged batches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.closing import Closing
from padfree.contract.metadata import Metadata
from padfree.contract.names import is_onnx

from .arrays.checked_calls import CheckedCalls
from .arrays.device_arrays import any_on_device, caller_stream
from .arrays.device_requests import device_feeds
from .backend import Backend, RunOptions, RunUnderWay
from .budget import Budget, cut
from .errors import SessionError
from .feeds import packed_feeds, padded_feeds, split_outputs
from .gpu.trt import import_tensorrt
from .plan_files import open_plan
from .prefixes import Costs, SharedRun, own_rows, read_prefix, shared_runs
from .request import OutputRows, RaggedBatch, in_order, read_packed, read_request
from .request_checks import check_one_run
from .rows import Array
from .shared_values import groups_of_shared

CPU_TOKENS_A_RUN = 16384  # keeps onnxruntime's activations in bounds when a request is large
OUTPUTS = ("host", "device")


class Session(Closing):
    """Runs a plan (TensorRT) or a rewritten .onnx file (onnxruntime, CPU) on ragged batches.

    Everything that can be checked on the host is checked before anything runs. Requests larger than the engine's
    profile are split into several runs; results come back in the caller's order. Any number of threads may use one
    session at once.

    Args:
        path: model.plan with its model.plan.json beside it, or an .onnx file made by `padfree optimize`.
        device: CUDA device number, for plans.
        allow_other_gpu: run a plan that was built on another GPU model of the same compute capability.
        cuda_graphs: capture packed engines in CUDA graphs, for sizes that recur.
        contexts: how many runs of a plan may be under way at once; more threads wait for each other.
        max_graphs: CUDA graphs that every context keeps; the least recently used goes first.
        cpu_threads: threads of a run of an .onnx file; 0: onnxruntime's choice, every core.

    Raises:
        SessionError: the file, the machine or their versions do not fit; the message says what to do.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: int = 0,
        allow_other_gpu: bool = False,
        cuda_graphs: bool = True,
        contexts: int = 2,
        max_graphs: int = 256,
        cpu_threads: int = 0,
    ) -> None:
        file = Path(path)
        if is_onnx(file):
            from .onnx_backend import OnnxBackend

            onnx_backend = OnnxBackend(file, threads=cpu_threads)
            self._use(onnx_backend, onnx_backend.metadata)
        else:
            metadata = open_plan(file)
            import_tensorrt()  # named first where both TensorRT and cuda-bindings are missing
            from .gpu.tensorrt_backend import TensorRTBackend

            options = RunOptions(cuda_graphs=cuda_graphs, contexts=contexts, max_graphs=max_graphs)
            self._use(
                TensorRTBackend(file, metadata, device=device, allow_other_gpu=allow_other_gpu, options=options),
                metadata,
            )

    def _use(self, backend: Backend, metadata: Metadata) -> None:
        self._backend = backend
        self._metadata = metadata
        self._budget = budget_of(metadata)
        self._calls = CheckedCalls(metadata)
        self._costs: Costs | None = None
        self._tokens_saved = 0
        self._counting = threading.Lock()
        # Frees GPU memory of sessions that nobody closed, at the latest when the process ends.
        self._finalizer = weakref.finalize(self, self._backend.close)

    @property
    def metadata(self) -> Metadata:
        """What the file says about itself: interface, inputs, outputs, profile."""
        return self._metadata

    @property
    def backend(self) -> Backend:
        """The execution backend; a TensorRTBackend also measures."""
        return self._backend

    @property
    def budget(self) -> Budget:
        """What one run takes; larger batches are cut into several."""
        return self._budget

    @property
    def tokens_saved(self) -> int:
        """Tokens that runs did not compute, because sequences of a batch shared what they begin with."""
        return self._tokens_saved

    def share_by(self, costs: Costs | None) -> None:
        """Lets a cost table decide in which batches shared prefixes pay; without one, the tokens that they save do."""
        self._costs = costs

    def run(
        self, request: Mapping[str, Sequence[Any]] | Sequence[Any], *, outputs: str = "host", stream: Any = None
    ) -> OutputRows:
        """Runs a ragged batch.

        Args:
            request: {"input_ids": [ids, ids, ...], "token_type_ids": [...]}, or a bare list of id arrays; any
                integer arrays or lists, one per sequence, of any lengths, empty ones too. Missing token_type_ids are
                zeros.
            outputs: "host" for NumPy arrays, "device" for DeviceArrays on the GPU (plans only).
            stream: with outputs="device", the CUDA stream in whose order the results are there: a handle, or a
                stream of cuda.core, PyTorch, CuPy or PyCUDA. Without one they are there when run returns.

        Returns:
            Output name -> one array per sequence, in the caller's order: [len, ...] for outputs with one row per token,
            [...] for outputs with one row per sequence. bfloat16 outputs come as float32 on the host.

        Raises:
            SessionError: the request does not fit the model or the profile; nothing has run.
        """
        return self.run_ragged(read_request(request, self._metadata), outputs=outputs, stream=stream)

    def run_ragged(self, ragged: RaggedBatch, *, outputs: str = "host", stream: Any = None) -> OutputRows:
        """Runs a batch that `read_request` or `read_packed` has checked for this model; otherwise as `run`."""
        options = self._run_options(outputs, stream)
        groups = groups_of_shared(ragged, self._metadata)
        if len(groups) > 1:
            parts = ((group, self._run_together(ragged.take(group), options)) for group in groups)
            return in_order(parts, ragged.seq_lens.size)
        return self._run_together(ragged, options)

    def _run_together(self, ragged: RaggedBatch, options: Mapping[str, Any]) -> OutputRows:
        """Runs sequences that may share runs, and prefixes where that pays."""
        runs = shared_runs(ragged, self._metadata, self._budget, self._costs)
        if runs:
            self._count(runs)
            results = self._run_batches([run.batch for run in runs], options)
            return own_rows(results, runs, ragged.seq_lens.size)
        runs_cut = list(cut(ragged.seq_lens.tolist(), self._budget))
        return self._run_batches(ragged.parts(runs_cut), options)

    def _run_batches(self, parts: Sequence[RaggedBatch], options: Mapping[str, Any]) -> OutputRows:
        """Runs batches that each fit; results one batch after the other."""
        if len(parts) == 1:
            started = self._start(parts[0], options)
            assert started is not None  # None only if not patient
            try:
                return split_outputs(started.outputs, parts[0], self._metadata)  # while the run goes on
            finally:
                started.wait()
        return self._run_parts(parts, options)

    def run_packed(
        self,
        inputs: Any,
        seq_lens: Any,
        *,
        filler_tokens: int = 0,
        prefix: Any = None,
        outputs: str = "host",
        stream: Any = None,
    ) -> dict[str, Any]:
        """Runs tokens that are packed already, in one run, and returns outputs as the model gives them.

        Args:
            inputs: token input name -> integers [T], or the ids [T] alone. For plans also arrays on the GPU, int32 and
                contiguous, of any library with DLPack or `__cuda_array_interface__`: read without a copy to the
                host, so their values are not checked (engines stay in bounds whatever they are).
            seq_lens: integers [B]; they and `filler_tokens` add up to T. On the GPU as the inputs.
            filler_tokens: tokens after the last sequence that belong to none; their output rows mean nothing.
            prefix: integers [B] on the host: the number of the sequence whose tokens come before those of each, or -1;
                for models made with --shared-prefixes.
            outputs: "host" for NumPy arrays, "device" for DeviceArrays on the GPU (plans only).
            stream: the CUDA stream in whose order inputs on the GPU are there, and with outputs="device" the
                results: a handle, or a stream of cuda.core, PyTorch, CuPy or PyCUDA. Without one inputs have to be
                there in the order of the legacy default stream, and results are there when this returns.

        Returns:
            Output name -> [T, ...] or [B, ...]. Without any tokens, [1, ...]: a row of filler.

        Raises:
            SessionError: a padded model, or a request that does not fit the model or the profile.
        """
        if not self._metadata.is_packed:
            raise SessionError(
                "run_packed needs a packed model, this one is padded; use run, or rewrite it with --interface packed"
            )
        options = self._run_options(outputs, stream)
        call = None if prefix is not None else self._calls.read(inputs, seq_lens)
        if call is not None and self._calls.is_known(call):
            return self._backend.run(call.feeds, **options)
        if any_on_device(inputs, seq_lens):
            if prefix is not None:
                raise SessionError("prefix needs inputs on the host, these are on the GPU; pass NumPy arrays")
            feeds = device_feeds(
                inputs, seq_lens, self._metadata, self._backend, filler_tokens=filler_tokens, stream=options["stream"]
            )
            if call is not None:
                self._calls.remember(call)
            return self._backend.run(feeds, **options)
        ragged = read_packed(inputs, seq_lens, self._metadata, filler_tokens=filler_tokens)
        check_one_run(len(next(iter(ragged.tokens.values()))), ragged.seq_lens.size, self._metadata)
        if prefix is not None:
            ragged = ragged._replace(prefix=read_prefix(prefix, ragged.seq_lens, self._metadata))
        return self._backend.run(self.feeds(ragged), **options)

    def run_fitting(self, ragged: RaggedBatch) -> dict[str, Any]:
        """Runs a checked batch that one run takes, with outputs on the host as run_packed gives them.

        Sequences share what they begin with where that pays, which may take more than one run.
        """
        runs = shared_runs(ragged, self._metadata, self._budget, self._costs)
        if not runs:
            return self._backend.run(self.feeds(ragged))
        self._count(runs)
        outputs: dict[str, Any] = {}
        for run in runs:
            for name, rows in self._backend.run(self.feeds(run.batch)).items():
                if name not in outputs:
                    outputs[name] = np.empty((ragged.seq_lens.size, *rows.shape[1:]), rows.dtype)
                outputs[name][run.callers] = rows[: len(run.callers)]
        return outputs

    def _count(self, runs: Sequence[SharedRun]) -> None:
        with self._counting:
            self._tokens_saved += sum(run.tokens_saved for run in runs)

    def _start(self, part: RaggedBatch, options: Mapping[str, Any], *, patient: bool = True) -> RunUnderWay | None:
        return self._backend.start(self.feeds(part), **options, patient=patient)

    def _run_parts(self, parts: Sequence[RaggedBatch], options: Mapping[str, Any]) -> OutputRows:
        """Several runs; each starts before the one before it has ended, unless other threads have all contexts."""
        results: OutputRows = {item.name: [] for item in self._metadata.outputs}
        before: RunUnderWay | None = None
        try:
            for part in parts:
                run = self._start(part, options, patient=before is None)
                if run is None and before is not None:  # a thread that holds a context must not wait for another one
                    last_run, before = before, None
                    last_run.wait()
                    run = self._start(part, options)
                assert run is not None  # None only if not patient
                earlier, before = before, run
                if earlier is not None:
                    earlier.wait()
                for name, rows in split_outputs(run.outputs, part, self._metadata).items():
                    results[name].extend(rows)
        finally:
            if before is not None:
                before.wait()
        return results

    def feeds(self, ragged: RaggedBatch) -> dict[str, Array]:
        """The model's input arrays for a checked batch, as its interface wants them."""
        make = packed_feeds if self._metadata.is_packed else padded_feeds
        return make(ragged, self._metadata)

    def _run_options(self, outputs: str, stream: Any) -> dict[str, Any]:
        if outputs not in OUTPUTS:
            raise SessionError(f"outputs is {outputs!r}, allowed: {', '.join(OUTPUTS)}; leave it out for NumPy arrays")
        return {"on_device": outputs == "device", "stream": caller_stream(stream)}

    def close(self) -> None:
        """Waits for runs of other threads and frees buffers and the engine; harmless when called again."""
        self._finalizer()


def budget_of(metadata: Metadata) -> Budget:
    """What one run of a model takes."""
    padded = metadata.interface == "padded"
    if metadata.engine is None:
        # Sizes that follow from the values of all sequences are a sequence's own only where it runs alone.
        alone = any(item.unknown_size is not None for item in metadata.outputs)
        return Budget(CPU_TOKENS_A_RUN, 1 if alone else None, padded)
    profile = metadata.engine.profile
    # A padded profile is a rectangle: max_batch sequences of max_seq_len fit by construction.
    return Budget(None if padded else profile.max_tokens, profile.max_batch, padded)
