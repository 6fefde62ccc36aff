# SPDX-License-Identifier: Apache-2.0
"""What all contenders are made from: the model in all its forms, and one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from padfree.contract.metadata import Metadata
from padfree.contract.names import EIGHT_BITS
from padfree.onnx_tools import GemmShape, Lengths, finish, load_model, quantize_gemms, rewrite
from padfree.onnx_tools.files import Model as OnnxModel
from padfree.onnx_tools.files import is_rewritten
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.runtime import packed_feeds, parse_metadata

from ..engine.engine_builder import DEFAULT_CACHE
from ..engine.preparation import metadata_of
from ..engine.profile import ProfileOptions
from ..errors import BuildError
from .batch import MeasuredBatch
from .padded_engine import padded_metadata


@dataclass(frozen=True)
class PeerModel:
    """An exported model and its rewriting.

    torch_folder: the same model as transformers saves it, for PyTorch's peers.
    mask: the input that the user calls the padding mask.
    """

    path: Path
    precision: str
    torch_folder: Path | None = None
    mask: str | None = None

    @property
    def half(self) -> str:
        """The precision of everything but our GEMMs: peers of fp8 compute in fp16."""
        return "fp16" if self.precision in EIGHT_BITS else self.precision

    @cached_property
    def original(self) -> onnx.ModelProto:
        """The exported model. Raises BuildError for one that is rewritten already: its peers need the original."""
        model = load_model(self.path)
        if is_rewritten(model):
            raise BuildError(
                f"{self.path}: is rewritten already, and its peers need the original; pass the exported model"
            )
        return model

    @cached_property
    def packed(self) -> onnx.ModelProto:
        """The rewritten model, packed interface, not verified: the answers are compared before anything is timed.

        In fp8, its GEMMs are not in e4m3 yet.
        """
        return rewrite(self.original, precision=self.half, verify=False, mask=self.mask).model

    @cached_property
    def metadata(self) -> Metadata:
        """The rewritten model's."""
        return parse_metadata(metadata_of(self.packed), str(self.path))

    @cached_property
    def original_metadata(self) -> Metadata:
        """The original's, as far as its inputs and outputs tell."""
        return parse_metadata(padded_metadata(self.original, self.metadata.raw["mask"]), str(self.path))

    @cached_property
    def gemms(self) -> list[GemmShape]:
        """The rewritten model's GEMMs."""
        return [GemmShape.from_dict(item) for item in self.metadata.raw["coverage"]["products"]["rewritten"]]


@dataclass(frozen=True)
class Setup:
    """One measurement: a model, a batch, and the folder where engines go (for this model's precision alone).

    profile: of our packed engine, which then stays in the folder for other batches that it takes; None: an engine for
        this batch alone.
    """

    model: PeerModel
    batch: MeasuredBatch
    folder: Path
    timing_cache: str | Path | None = DEFAULT_CACHE
    device: int = 0
    say: Callable[[str], None] = field(default=lambda _: None)
    profile: ProfileOptions | None = None

    @cached_property
    def ours(self) -> onnx.ModelProto:
        """The rewritten model; in fp8 and int8 its scales are those of this batch."""
        if self.model.precision not in EIGHT_BITS:
            return self.model.packed
        feeds = packed_feeds(self.batch.ragged, self.model.metadata)
        options = QuantizationOptions(number_format=FORMATS[self.model.precision])
        quantized = quantize_gemms(OnnxModel.of(self.model.packed), [feeds], options, verify=False)
        return finish(quantized, self.model.half)

    @property
    def lengths(self) -> Lengths:
        """The batch as formulas see it."""
        count = len(self.batch.seq_lens)
        return Lengths(count, self.batch.tokens / count, self.batch.seq_len)

    @property
    def shape(self) -> dict[str, Any]:
        """The profile's options that all engines share."""
        return {
            "max_batch": len(self.batch.seq_lens),
            "max_seq_len": self.batch.seq_len,
            "timing_cache": self.timing_cache,
            "device": self.device,
        }
