# SPDX-License-Identifier: Apache-2.0
"""Exports weights to ONNX with transformers and torch, where they are installed; runs no code of the model."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx import ModelProto
from padfree.contract.installation import install_command
from padfree.contract.texts import ANSWERS, CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE, TOKENS
from padfree.onnx_tools.files import Model, open_model

from ..definitions.dispatch import HEADS
from ..errors import BuildError
from .bound_weights import bind_weights, weights_of
from .folder import TOKENIZER_CONFIG, Folder
from .objects import Entries

PACKAGES = ("torch", "transformers", "onnxscript")
_OPSET = 18
_BATCH, _LENGTH = 2, 7  # of what is traced; both stay variable
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        FEATURES: "AutoModel",
        SENTENCES: "AutoModel",
        SPARSE: "AutoModelForMaskedLM",
        MASKED: "AutoModelForMaskedLM",
        PAIRS: "AutoModelForSequenceClassification",
        CLASSES: "AutoModelForSequenceClassification",
        TOKENS: "AutoModelForTokenClassification",
        ANSWERS: "AutoModelForQuestionAnswering",
    }
)
_ENCODERS: Mapping[str, str] = MappingProxyType(
    {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
)
_WITHOUT_USE = ("pooler", "position_ids")  # of rows of tokens
_COMPUTED_TABLES = ("inv_freq", "masked_bias", "attn.bias")
"""Parts of the names of tables that old files have, though they follow from config.json."""


def check_exportable(folder: Folder, reason: str) -> None:
    """Refuses to export models that need their own code, and where packages are missing.

    Args:
        folder: has weights, and no ONNX file.
        reason: why no definition describes its model.

    Raises:
        BuildError: the message says which, and what to do.
    """
    code = folder.config.code
    if code and not is_known(folder.config.model_type):
        raise BuildError(
            f"{folder.path}: needs code of its own ({', '.join(code)}), and padfree runs no code of models and does "
            f"not know this one: {reason}; export it where you trust that code (optimum-cli export onnx "
            "--trust-remote-code), and give the folder that this writes"
        )
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"{folder.path}: has weights of a model that padfree does not know itself: {reason}; exporting them needs "
            f"{', '.join(missing)}, not installed here: {install_command('export')}, or export it elsewhere "
            "(optimum-cli export onnx) and give the .onnx file"
        )


def is_known(model_type: str) -> bool:
    """Whether transformers has the architecture itself, so that the folder's own code is not needed."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return False
    return model_type in CONFIG_MAPPING


def export(folder: Folder) -> Model:
    """The encoder of a folder, with the head that its weights have, whose weights stay where torch has them.

    Raises:
        BuildError: transformers or torch refuse the model; the message says which.
    """
    with without_prints():
        model = load_by_transformers(folder)
        try:
            return _export(model, folder)
        except Exception as error:
            raise BuildError(
                f"{folder.path}: torch cannot export this model ({_first_line(error)}); export it with optimum-cli "
                "export onnx, and give the .onnx file"
            ) from error


def load_by_transformers(folder: Folder) -> Any:
    """The model in PyTorch, in float32.

    Raises:
        BuildError: transformers refuses it, or the weights lack what config.json asks for.
    """
    import torch
    import transformers

    name = _CLASSES[folder.task]
    if folder.config.model_type in _ENCODERS and name == "AutoModel":
        name = _ENCODERS[folder.config.model_type]
    try:
        model, info = getattr(transformers, name).from_pretrained(
            str(folder.encoder),
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise BuildError(
            f"{folder.path}: transformers {transformers.__version__} cannot load it as {name} ({_first_line(error)}); "
            "check config.json against the weights, or install the release that the model was made with"
        ) from error
    absent = sorted(key for key in info["missing_keys"] if not any(part in key for part in _WITHOUT_USE))
    if absent:
        raise BuildError(
            f"{folder.path}: the weights lack {', '.join(absent[:3])} ({len(absent)} in all), which config.json asks "
            f"for ({name}): they belong to different models, or only a part was downloaded; download the folder again"
        )
    known_parts = (*_WITHOUT_USE, *_COMPUTED_TABLES, *HEADS)
    unused_weights = sorted(key for key in info["unexpected_keys"] if not any(part in key for part in known_parts))
    if unused_weights:
        raise BuildError(
            f"{folder.path}: transformers {transformers.__version__} leaves out {', '.join(unused_weights[:3])} "
            f"({len(unused_weights)} in all) of its weights as {name}, and an engine without them would be another "
            "model; export all of it with the library that it was trained with, as one ONNX file, and give that"
        )
    return model.eval()


def _export(model: Any, folder: Folder) -> Model:
    import torch

    names = inputs_of(model, folder)
    outputs = outputs_of(folder)

    class Plain(torch.nn.Module):  # type: ignore[misc]
        """The model with inputs by position, and only the outputs that are wanted."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            results = self.model(**dict(zip(names, tensors, strict=True)))
            return tuple(results[name] for name in outputs)

    ids = torch.randint(1, min(folder.config.vocab_size or 100, 100), (_BATCH, _LENGTH))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    batch["attention_mask"][1, 4:] = 0
    axes = {0: "batch", 1: "sequence"}
    inputs = tuple(batch[name] for name in names)
    export_options = {"opset_version": _OPSET, "input_names": list(names), "output_names": list(outputs)}
    plain = Plain().eval()
    with torch.no_grad():
        try:
            variable = dict.fromkeys((*names, *outputs), axes)
            graph = io.BytesIO()
            alone = {"export_params": False, "do_constant_folding": False}
            torch.onnx.export(plain, inputs, graph, dynamo=False, dynamic_axes=variable, **alone, **export_options)
            return bind_weights(ModelProto.FromString(graph.getvalue()), names, weights_of(plain))
        except Exception:  # some models have what TorchScript cannot trace
            sizes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=2)}
            shapes = ((sizes,) * len(inputs),)
            with tempfile.TemporaryDirectory(prefix="padfree-export-") as scratch:
                file = Path(scratch) / "exported.onnx"
                torch.onnx.export(plain, inputs, str(file), dynamo=True, dynamic_shapes=shapes, **export_options)
                return open_model(file)


def inputs_of(model: Any, folder: Folder) -> tuple[str, ...]:
    """Token types are an input where the model has more than one, and its tokenizer gives them."""
    accepted = inspect.signature(model.forward).parameters
    names_of_tokenizer = Entries(folder.encoder / TOKENIZER_CONFIG).raw.get("model_input_names")
    types = "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 0) > 1
    types = types and (not isinstance(names_of_tokenizer, list) or "token_type_ids" in names_of_tokenizer)
    return ("input_ids", "attention_mask", *(["token_type_ids"] if types else []))


def outputs_of(folder: Folder) -> tuple[str, ...]:
    """Names of the results of the folder's task."""
    if _CLASSES[folder.task] == "AutoModel":
        return ("last_hidden_state",)
    return ("start_logits", "end_logits") if folder.task == ANSWERS else ("logits",)


@contextlib.contextmanager
def without_prints() -> Iterator[None]:
    """Without what these libraries print beside their results."""
    out = io.StringIO()
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
