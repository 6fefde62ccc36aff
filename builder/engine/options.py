# SPDX-License-Identifier: Apache-2.0
"""How an engine is built, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from padfree.contract.names import HALF
from padfree.onnx_tools import RewriteOptions

from .engine_builder import TacticOptions
from .linear import AUTO, FOLDED
from .profile import ProfileOptions

_FIELDS = {"mask": "mask_input", "masks": "mask_form"}
_PARTS: Mapping[str, type[Any]] = {"profile": ProfileOptions, "tactics": TacticOptions}


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built.

    For a rewritten model, `interface`, `precision` and `mask_form` must be what the model has.

    Attributes:
        interface: "packed" (also for None) or "padded".
        precision: "fp32", "fp16" or "bf16"; None for fp16, or bf16 where fp16 cannot hold what GEMMs of tokens make
            or read.
        strict: rewriting fails unless everything could be packed.
        verify: rewriting compares original and rewritten model in onnxruntime (with "whole", long sequences go through
            all layers), and the engine's answers are compared with those of the rewritten model.
        mask_input: the padding mask's input, where attention does not prove which one that is (keyword `mask`).
        mask_form: "any" (also for None), or "contiguous" where no padding lies between the tokens of a row (keyword
            `masks`).
        padding_id: what padded slots hold, for models that read them; without it 0 and 1 are tried, and noted.
        shared_prefixes: whether sequences of a batch may compute tokens once that they begin with; an error where
            causal attention is not all that mixes tokens.
        linear: whose GEMMs multiply packed tokens by weights: "padfree" (PadfreeLinear, with bias and activation),
            "tensorrt", or "auto": padfree's on Hopper in a precision that it has, elsewhere the fastest.
        norms: how layer norms between GEMMs of PadfreeLinear run: "folded" (the GEMMs compute them) or "separate".
            Where engines are measured, "folded" tries both.
        measure: whether "auto" builds engines with padfree's GEMMs and TensorRT's, and keeps the fastest; None: on GPUs
            other than Hopper, for which padfree's GEMMs are tuned.
        profile: which batches it takes (keywords `max_batch`, `max_seq_len`, `max_tokens`, `opt_tokens`).
        tactics: how TensorRT searches (keywords `timing_cache`, `workspace_bytes`, `optimization_level`).
        device: CUDA device number.
    """

    interface: str | None = None
    precision: str | None = None
    strict: bool = False
    verify: bool | str = True
    mask_input: str | None = None
    mask_form: str | None = None
    padding_id: int | None = None
    shared_prefixes: bool = False
    linear: str = AUTO
    norms: str = FOLDED
    measure: bool | None = None
    profile: ProfileOptions = field(default_factory=ProfileOptions)
    tactics: TacticOptions = field(default_factory=TacticOptions)
    device: int = 0

    @classmethod
    def of_keywords(cls, **keywords: Any) -> BuildOptions:
        """The options that keywords of `build_engine` mean. Raises TypeError for a keyword that it does not know."""
        own = {_FIELDS.get(name, name): value for name, value in keywords.items()}
        for name, part in _PARTS.items():
            own[name] = part(**{item.name: own.pop(item.name) for item in fields(part) if item.name in own})
        return cls(**own)

    @classmethod
    def keywords(cls) -> frozenset[str]:
        """The keywords of `of_keywords`; options of `padfree build` have the same names."""
        keyword_of = {name: keyword for keyword, name in _FIELDS.items()}
        own = {keyword_of.get(item.name, item.name) for item in fields(cls)} - {*_PARTS}
        return frozenset(own.union(*({item.name for item in fields(part)} for part in _PARTS.values())))

    @property
    def rewriting(self) -> RewriteOptions:
        """How an exported model is rewritten for the engine."""
        return RewriteOptions(
            self.interface or "packed",
            self.precision or HALF,
            self.strict,
            self.verify,
            mask_input=self.mask_input,
            mask_form=self.mask_form or "any",
            padding_id=self.padding_id,
            shared_prefixes=self.shared_prefixes,
        )

    def of_rewritten(self) -> BuildOptions:
        """The same options for the model that `rewriting` made, whose metadata has what `rewriting` was told."""
        return replace(
            self,
            interface=None,
            precision=None,
            strict=False,
            mask_input=None,
            mask_form=None,
            padding_id=None,
            shared_prefixes=False,
        )
