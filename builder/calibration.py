# SPDX-License-Identifier: Apache-2.0
"""Calibration data from files, and models in fp8 or int8 made with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.names import HALF
from padfree.contract.phases import Phases
from padfree.onnx_tools import QUANTIZATION, GraphModel, RewriteOptions, quantize, quantize_gemms, rewrite_model
from padfree.onnx_tools.files import Model, is_rewritten, open_model
from padfree.onnx_tools.importing.quantized import stored_gemms
from padfree.onnx_tools.quantization import BeginSteps, QuantizationOptions
from padfree.runtime import Metadata, packed_feeds, padded_feeds, parse_metadata
from padfree.runtime.request import RaggedBatch, read_request

from .batches import TextOptions, read_batch
from .engine.linear import FOLDED, linear_of
from .engine.linear import PADFREE as PADFREE_GEMMS
from .engine.preparation import metadata_of
from .errors import BuildError
from .tokenization import as_build_errors

BATCH_TOKENS = 2048
"""At most per batch, so that the activations of a large model take a few hundred megabytes."""
FEW_TOKENS = 2000
"""With fewer, scales may miss numbers that the model's inputs reach."""

_log = logging.getLogger(__name__)

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Calibration:
    """What `--calibrate` and the options beside it say.

    Attributes:
        file: texts or token ids, as `padfree run --input` takes them; None only where scales are kept.
        tokenizer: for texts, where the model keeps none.
        options: margin and layers.
        keeps_scales: whether scales and weights are those of a file that is quantised already.
    """

    file: Path | None
    tokenizer: Path | None = None
    options: QuantizationOptions = field(default_factory=QuantizationOptions)
    keeps_scales: bool = False


def require_calibration(file: Path | None, precision: str) -> Path:
    """The file with the calibration data.

    Raises:
        BuildError: none was given; the message says why padfree cannot make it up.
    """
    if file is None:
        raise BuildError(
            f"--precision {precision} needs --calibrate FILE: scales follow from the largest numbers that the model's "
            "own inputs give, and made-up ids give others; pass a few hundred texts (.txt, one per line; --tokenizer "
            "where the model keeps none) or token ids (.jsonl, .npz) of the kind that the model will get"
        )
    return file


def calibration_batches(calibration: Calibration, metadata: Metadata, model: Path) -> list[Feeds]:
    """The data as inputs of a rewritten model, in batches of up to BATCH_TOKENS tokens; texts are cut to its positions.

    There are none without a file.

    Args:
        calibration: the file, and what makes tokens of texts.
        metadata: the rewritten model's.
        model: the file beside which its tokenizer lies.

    Raises:
        BuildError: the file cannot be read, is empty, or holds what the model does not take.
    """
    file = calibration.file
    if file is None:
        return []
    with as_build_errors(f"--calibrate {file}: "):
        request = read_batch(file, metadata, TextOptions(calibration.tokenizer, True, model))
        ragged = read_request(request, metadata)
    tokens = int(ragged.seq_lens.sum())
    if not tokens:
        raise BuildError(
            f"--calibrate {file}: holds {ragged.seq_lens.size} sequences and no token; pass texts or token ids of the "
            "kind that the model will get"
        )
    if tokens < FEW_TOKENS:
        _log.warning(
            "%s: %d tokens are few for scales that must hold for all inputs; a few hundred texts are usual",
            file,
            tokens,
        )
    feeds: Callable[[RaggedBatch, Metadata], Feeds] = packed_feeds if metadata.is_packed else padded_feeds
    with as_build_errors(f"--calibrate {file}: "):
        return [feeds(part, metadata) for part in _parts(ragged)]


def _parts(ragged: RaggedBatch) -> Iterator[RaggedBatch]:
    """Batches of whole sequences, without empty ones, in random order: the first batch stands for all in some steps."""
    indices, tokens = list[int](), 0
    for at in np.random.default_rng(0).permutation(ragged.seq_lens.size).tolist():
        if not (length := int(ragged.seq_lens[at])):
            continue
        if indices and tokens + length > BATCH_TOKENS:
            yield ragged.take(indices)
            indices, tokens = [], 0
        indices.append(at)
        tokens += length
    if indices:
        yield ragged.take(indices)


def quantized_model(
    model: Model,
    path: Path,
    calibration: Calibration,
    rewriting: RewriteOptions,
    *,
    norms: str = FOLDED,
    begin: BeginSteps,
    phases: Phases | None = None,
) -> Model:
    """A model in fp8 or int8, as the options of its calibration say, without function bodies.

    Args:
        model: an exported one, which is rewritten first, or a rewritten one in fp16 or bf16.
        path: its file.
        calibration: data and options.
        rewriting: how exported models are rewritten, in half precision; with `verify` the result is compared, too.
        norms: whether GEMMs compute the norms between them, where its type allows it.
        begin: for progress; the steps are calibration batches.
        phases: gets the seconds of rewriting.

    Raises:
        BuildError: the calibration data; RewriteError: the model, or options.
    """
    if calibration.keeps_scales and is_rewritten(model.proto):
        raise BuildError("a rewritten file has no scales to keep; give --keep-scales the file that was quantised")
    kept_gemms = stored_gemms(model) if calibration.keeps_scales else ()
    if is_rewritten(model.proto):
        rewritten = GraphModel.of(model)
    else:
        rewritten = rewrite_model(model, replace(rewriting, precision=HALF), phases=phases).graph
    metadata = parse_metadata(rewritten.metadata, "the rewritten model")
    batches = calibration_batches(calibration, metadata, path)
    if linear_of(rewritten.source.proto) == PADFREE_GEMMS or metadata.precision == "fp32":
        return quantize(rewritten, batches, calibration.options, begin=begin, verify=bool(rewriting.verify))
    folded, verify = norms == FOLDED, bool(rewriting.verify)
    return quantize_gemms(
        rewritten, batches, calibration.options, stored_gemms=kept_gemms, fold_norms=folded, begin=begin, verify=verify
    )


def is_quantized(path: Path) -> bool:
    """Whether an .onnx file is a rewritten model in fp8 or int8."""
    proto = open_model(path).proto
    return is_rewritten(proto) and QUANTIZATION in metadata_of(proto)
