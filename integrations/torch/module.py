# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module around a plan: the original model's call, without its padding."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from padfree.contract.metadata import Metadata
from padfree.contract.names import is_onnx
from padfree.runtime import Session, SessionError, bounds_of, check_no_folder, cut
from padfree.runtime.texts import IDS, TYPES

LAYOUTS = ("packed", "per_sequence")
_WITHOUT_USE = {"use_cache": (None, False), "output_attentions": (None, False), "output_hidden_states": (None, False)}
_WITHOUT_USE["return_dict"] = (None, True)
"""Arguments of transformers' models, with the values that ask for nothing beyond what a plan gives."""


class Module(torch.nn.Module):  # type: ignore[misc]
    """Takes the call of the model that a plan was made of: `model(input_ids, attention_mask)`. Inference alone.

    The engine is opened at the first call, on the device that the module is on, and again where the module has moved.
    Pickles hold the path, so that the processes of a pool open the file themselves.

    Args:
        plan: model.plan, or an .onnx file made by `padfree optimize`, which runs on the CPU; of the packed interface.
        dtype: of the results' floating numbers; `module.half()` and the like change it.
        device: where results go; a plan runs there too.
        options: those of `Session`, such as `allow_other_gpu`.
    """

    def __init__(
        self,
        plan: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__()
        self.path = Path(plan).absolute()
        self.options = options
        self.register_buffer("_place", torch.empty(0, dtype=dtype, device=device), persistent=False)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._session_device: torch.device | None = None

    @property
    def device(self) -> torch.device:
        """Where results go."""
        return self._place.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the results' floating numbers."""
        return self._place.dtype

    @property
    def session(self) -> Session:
        """The session for the module's device.

        Raises:
            SessionError: the file cannot be run, or not where the module is.
        """
        with self._lock:
            if self._session is None or self._session_device != self.device:
                if self._session is not None:
                    self._session.close()
                self._session, self._session_device = self._open(), self.device
            return self._session

    @property
    def metadata(self) -> Metadata:
        """What the plan says about itself."""
        return self.session.metadata

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seq_lens: Sequence[int] | None = None,
        **inputs: Any,
    ) -> Any:
        """Runs a batch.

        Args:
            input_ids: [B, S]; with `seq_lens` [1, T], the tokens of all sequences one after the other.
            attention_mask: [B, S], not 0 where there is a token, wherever that is; None: everywhere.
            seq_lens: tokens of every sequence.
            inputs: the model's other token inputs, in the shape of the ids.

        Returns:
            transformers' ModelOutput with the plan's outputs: [B, S, ...] where tokens have rows, zeros in padding
            ([1, T, ...] with `seq_lens`), and [B, ...] where sequences have one.
        """
        from transformers.utils import ModelOutput

        columns = {IDS: input_ids, **_token_inputs(inputs)}
        is_token: Any = None
        if seq_lens is None:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            if mask.shape != input_ids.shape:
                raise SessionError(
                    f"attention_mask has shape {list(mask.shape)}, input_ids {list(input_ids.shape)}; pass a mask of "
                    "the ids' shape: other masks are not the padding that plans leave out"
                )
            is_token = mask != 0
            seq_lens = is_token.sum(dim=1).tolist()
            columns = {name: value[is_token] for name, value in columns.items()}
        results = self.run({name: value.reshape(-1) for name, value in columns.items()}, seq_lens)
        layouts = {item.name: item.layout for item in self.metadata.outputs}
        for name, value in results.items():
            if layouts[name] == "packed" and is_token is None:
                results[name] = value[None]
            elif layouts[name] == "packed":
                padded = value.new_zeros(*input_ids.shape, *value.shape[1:])
                padded[is_token.to(value.device)] = value
                results[name] = padded
        return ModelOutput(**results)

    def run(self, inputs: Mapping[str, Any], seq_lens: Sequence[int]) -> dict[str, torch.Tensor]:
        """Runs packed tokens, in as many runs as the plan's profile asks for.

        Args:
            inputs: name -> tensors or NumPy arrays [T], on the host or on the GPU; [B, ...] of inputs with a row per
                sequence. Token types may be called token_type_ids, whatever the plan calls them.
            seq_lens: tokens of every sequence, on the host.

        Returns:
            Output name -> [T, ...] or [B, ...], on the module's device. On a GPU it is there in the order of the
            current stream: nothing waits for it.
        """
        session = self.session
        starts = bounds_of(seq_lens)
        columns = {name: self._prepare(value) for name, value in inputs.items()}
        types = session.metadata.types_input()
        if TYPES in columns and types is not None:
            columns[types.name] = columns.pop(TYPES)
        elif TYPES in columns:
            if bool((columns[TYPES] != 0).any()):
                raise SessionError(f"{self.path}: the plan takes no {TYPES}, and some are not 0; leave them out")
            del columns[TYPES]
        of_sequences = {name for item in session.metadata.sequence_inputs() for name in (item.name, item.original_name)}
        runs = []
        for part in cut(seq_lens, session.budget) if len(seq_lens) else [slice(0, 0)]:
            tokens = slice(starts[part.start], starts[part.stop])
            part_columns = {name: value[part if name in of_sequences else tokens] for name, value in columns.items()}
            runs.append(self._run(part_columns, seq_lens[part]))
        names = {item.name for item in session.metadata.outputs if item.layout in LAYOUTS}
        return {name: runs[0][name] if len(runs) == 1 else torch.cat([run[name] for run in runs]) for name in names}

    def _run(self, inputs: dict[str, Any], seq_lens: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = {"packed": sum(seq_lens), "per_sequence": len(seq_lens)}
        lens = np.asarray(seq_lens, dtype=np.int32)
        if self._on_gpu:
            stream = torch.cuda.current_stream(self.device)
            results = self.session.run_packed(inputs, lens, outputs="device", stream=stream)
            tensors = {name: torch.from_dlpack(value) for name, value in results.items()}
        else:
            tensors = {name: torch.from_numpy(value) for name, value in self.session.run_packed(inputs, lens).items()}
        return {
            item.name: self._finish(tensors[item.name][: rows[item.layout]])
            for item in self.metadata.outputs
            if item.layout in LAYOUTS
        }

    @property
    def _on_gpu(self) -> bool:
        return not is_onnx(self.path)

    def _prepare(self, value: Any) -> Any:
        """What run_packed takes: tensors on the GPU are read there by plans, all others become NumPy arrays."""
        if not isinstance(value, torch.Tensor):
            return value
        if self._on_gpu and value.is_cuda:
            return value.to(torch.int32).contiguous()
        return value.cpu().numpy()

    def _finish(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.device, self.dtype if value.is_floating_point() else None)

    def _open(self) -> Session:
        options = dict(self.options)
        check_no_folder(self.path)
        if self._on_gpu:
            if self.device.type != "cuda":
                raise SessionError(
                    f"{self.path}: a plan runs on a GPU, the module is on '{self.device}'; call .to('cuda'), or take "
                    "an .onnx file made by padfree optimize"
                )
            options["device"] = self.device.index or 0
        session = Session(self.path, **options)
        if session.metadata.interface != "packed":
            interface = session.metadata.interface
            session.close()
            raise SessionError(
                f"{self.path}: a model of the {interface} interface, allowed: packed; make it with --interface packed"
            )
        return session

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_session", "_session_device")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock, self._session, self._session_device = threading.Lock(), None, None

    def extra_repr(self) -> str:
        """The path, for print(module)."""
        return str(self.path)


def _token_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The token inputs among the keywords of a model's call.

    Raises:
        SessionError: one asks for what a plan does not do.
    """
    columns = {}
    for name, value in inputs.items():
        if name in _WITHOUT_USE:
            if value not in _WITHOUT_USE[name]:
                raise SessionError(f"{name}={value!r}: plans give the outputs that they were built with; leave it out")
        elif value is not None:
            columns[name] = value
    return columns
