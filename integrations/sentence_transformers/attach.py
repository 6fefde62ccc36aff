# SPDX-License-Identifier: Apache-2.0
"""Replaces a model's encoder by a plan, once it is certain that the plan is of that model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import sentence_transformers
import torch
from padfree.contract.installation import install_command
from padfree.contract.metadata import Metadata
from padfree.contract.names import EIGHT_BITS, FP8, INT8
from padfree.runtime import SessionError
from padfree.runtime.texts import IDS, TYPES
from padfree.torch import Module
from sentence_transformers.base.modules import Transformer

from .models import (
    AttachedCrossEncoder,
    AttachedSentenceTransformer,
    AttachedSparseEncoder,
    activation_name,
    answer_of,
)
from .tokens import TextTokens

MAJOR = 6
"""The version of sentence-transformers whose modules this knows."""
KINDS: Mapping[type, type[Any]] = {
    sentence_transformers.SentenceTransformer: AttachedSentenceTransformer,
    sentence_transformers.SparseEncoder: AttachedSparseEncoder,
    sentence_transformers.CrossEncoder: AttachedCrossEncoder,
}
PROBES = (
    "A cat sat on the mat.",
    "Tokens of padding take time, and give nothing!",
    "  Two\tspaces,  Capitals & na\u00efve caf\u00e9s \u2013 3.5 % of 1,200 ",
    "one two three four five six seven eight nine ten " * 40,
)
CLOSE = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.05, FP8: 0.2, INT8: 0.2}
"""How far answers may lie from the original's, as a fraction of its largest, by the plan's arithmetic."""
LEAST_COSINE = 0.97
"""The least cosine of a vector to the original's in fp8, which rounds too much for CLOSE; as in `padfree compare`."""
FEW_NUMBERS = 16
"""A row with fewer numbers holds scores, whose cosine says nothing."""
SMALL = 0.05
"""Answers are taken to be at least so large: scores of pairs that do not fit may all be near 0."""

Model = TypeVar("Model")


def attach(model: Model, plan: str | Path, **options: Any) -> Model:
    """Lets a model of sentence-transformers run its encoder as a plan, in place; its weights are dropped.

    Texts of PROBES go through the original and the plan first, and the answers are compared: within CLOSE, and vectors
    of fp8 plans by their cosines.

    Args:
        model: a SentenceTransformer, CrossEncoder or SparseEncoder, on the device where results are wanted.
        plan: what was built of the same model: model.plan, or an .onnx file made by `padfree optimize`, which runs on
            the CPU. It gives rows of tokens (or logits), or vectors of texts (or scores).
        options: those of `Session`, such as `allow_other_gpu`.

    Returns:
        The model.

    Raises:
        SessionError: a version, a model or a plan that does not fit; the model is as it was.
    """
    check_version(sentence_transformers.__version__)
    kind: Any = KINDS.get(type(model))
    chain: Any = model
    if kind is None or not isinstance(chain[0], Transformer):
        if type(model) in KINDS.values():
            raise SessionError(
                f"{plan}: the model runs a plan already, and its own weights are gone; load the model again, and "
                "attach this plan to that one"
            )
        kind_of_model = type(model).__name__ if kind is None else f"{type(model).__name__} of {type(chain[0]).__name__}"
        raise SessionError(
            f"the model is a {kind_of_model}, allowed: SentenceTransformer, CrossEncoder and SparseEncoder that begin "
            "with a Transformer; for others use padfree.runtime.Session"
        )
    transformer = chain[0]
    module = Module(plan, dtype=chain.dtype, device=chain.device, **options)
    metadata = module.metadata
    output = answer_of([item.name for item in metadata.outputs if item.layout == "per_sequence"])
    _check(chain, metadata, output, str(plan))
    texts = PROBES if kind is not AttachedCrossEncoder else tuple(zip(PROBES, reversed(PROBES), strict=True))
    expected = _answers(chain, texts)
    original, own_class, own_names = transformer.model, type(model), transformer.model_forward_params
    # The configuration has what the other modules and users ask of the encoder.
    module.config = original.config
    transformer.model = module
    transformer.model_forward_params = {IDS, TYPES, "attention_mask", "seq_lens"}
    chain.__class__ = kind
    chain.padfree_output = output
    chain.padfree_activation = (metadata.text.activation if metadata.text else "") or "identity"
    chain.padfree_tokens = None
    try:
        _compare(_answers(chain, texts), expected, metadata, str(plan))
        chain.padfree_tokens = _text_tokens(chain, texts)
        _compare(_answers(chain, texts), expected, metadata, str(plan))
    except BaseException:
        transformer.model, transformer.model_forward_params = original, own_names
        chain.__class__ = own_class
        raise
    return model


def check_version(version: str) -> None:
    """Raises SessionError for versions of sentence-transformers that are not known."""
    if version.split(".")[0] != str(MAJOR):
        raise SessionError(
            f"sentence-transformers {version}, allowed: {MAJOR}.x; {install_command('sentence-transformers')}"
        )


def _check(chain: Any, metadata: Metadata, output: str | None, plan: str) -> None:
    """What can be told without running: vocabulary, widths, lengths, outputs and activation."""
    config = chain[0].config
    limit = metadata.ids_input().limit
    if limit is not None and limit != config.vocab_size:
        raise _other_model(plan, f"a vocabulary of {limit} ids", f"has one of {config.vocab_size}")
    longest, cap = metadata.longest, chain.max_seq_length
    if longest is not None and cap is not None and longest < cap:
        raise SessionError(
            f"{plan}: takes {longest} tokens per text, the model {cap}; build it with --max-seq-len {cap}, or first "
            f"set model.max_seq_length = {longest}"
        )
    if output is None:
        output_name = chain[0].modality_config["text"]["method_output_name"]
        if output_name not in {item.name for item in metadata.outputs}:
            outputs = ", ".join(item.name for item in metadata.outputs)
            raise SessionError(
                f"{plan}: gives {outputs}, the model's modules read {output_name}; build it from this model's folder"
            )
        width = config.hidden_size if output_name == "last_hidden_state" else None
    else:
        is_vector = isinstance(chain, (sentence_transformers.SentenceTransformer, sentence_transformers.SparseEncoder))
        if is_vector != (output == "sentence_embedding"):
            raise _other_model(plan, f"the output '{output}'", f"is a {type(chain).__name__}")
        width = None if is_vector else chain.num_labels
        if isinstance(chain, sentence_transformers.SentenceTransformer):
            width = chain.get_embedding_dimension()
        if not is_vector and metadata.text is not None:
            theirs, ours = activation_name(chain.activation_fn), metadata.text.activation or "identity"
            if theirs != ours:
                raise SessionError(
                    f"{plan}: has scores that went through {ours}, and the model's activation is {theirs}; build it "
                    "from this model's folder, or with --outputs logits, which leaves the activation to the model"
                )
        output_name = output
    dims = next(item.dims for item in metadata.outputs if item.name == output_name)
    if width is not None and dims and isinstance(dims[-1], int) and dims[-1] != width:
        raise _other_model(plan, f"'{output_name}' of {dims[-1]} numbers", f"gives {width}")


def _other_model(plan: str, actual: str, expectation: str) -> SessionError:
    return SessionError(
        f"{plan}: has {actual}, and the model {expectation}: it is another model's plan; build one from this model's "
        "folder"
    )


def _answers(chain: Any, texts: Any) -> torch.Tensor:
    if isinstance(chain, sentence_transformers.CrossEncoder):
        return chain.predict(list(texts), convert_to_tensor=True, show_progress_bar=False).float().cpu()
    options = {"convert_to_tensor": True, "show_progress_bar": False, "prompt": ""}
    return chain.encode(list(texts), **options).to_dense().float().cpu()


def _compare(actual: torch.Tensor, expected: torch.Tensor, metadata: Metadata, plan: str) -> None:
    """Compares answers: by their differences, and vectors of fp8 plans by their cosines.

    Raises:
        SessionError: they are too far apart.
    """
    what = f"answers of shape {list(actual.shape)} instead of {list(expected.shape)}"
    if actual.shape == expected.shape:
        what = _difference(actual, expected, metadata.arithmetic)
        if not what:
            return
    raise SessionError(f"{plan}: gives {what}: other weights, or another pooling; build it from this model's folder")


def _difference(actual: torch.Tensor, expected: torch.Tensor, arithmetic: str) -> str:
    """How answers differ, for a message; "" if they are close."""
    if arithmetic in EIGHT_BITS and expected.ndim > 1 and expected.shape[-1] >= FEW_NUMBERS:
        cosine = float(torch.nn.functional.cosine_similarity(actual.double(), expected.double(), dim=-1).min())
        return (
            ""
            if cosine >= LEAST_COSINE
            else f"vectors with a cosine of {cosine:.2g} to the model's (fp8: {LEAST_COSINE})"
        )
    largest, scale = float((actual - expected).abs().max()), float(expected.abs().max())
    close = largest <= CLOSE[arithmetic] * max(scale, SMALL)
    return "" if close else f"answers that differ by {largest:.2g} of {scale:.2g} ({arithmetic})"


def _text_tokens(chain: Any, texts: Any) -> TextTokens | None:
    """The fast way from texts to tokens; None where it would not give what sentence-transformers gives."""
    tokenizer = chain.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    metadata = chain[0].model.metadata
    types = metadata.types_input()
    known_names = {IDS, *([types.original_name] if types is not None else [])}
    if backend is None or not {item.original_name for item in metadata.token_inputs()} <= known_names:
        return None
    # Without the settings that the library leaves there from the previous call.
    with_types = TYPES in tokenizer.model_input_names
    tokens = TextTokens(backend.to_str(), tokenizer.truncation_side, with_types)
    packed = tokens.read(texts, chain.max_seq_length)
    theirs = chain.preprocess(list(texts))
    is_token = theirs["attention_mask"] != 0
    same = is_token.sum(1).tolist() == packed.seq_lens and all(
        name in theirs and np.array_equal(theirs[name][is_token].numpy(), values)
        for name, values in packed.inputs.items()
    )
    return tokens if same else None
