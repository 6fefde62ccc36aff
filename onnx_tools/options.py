# SPDX-License-Identifier: Apache-2.0
"""How a model is rewritten, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from padfree.contract.names import HALF, INTERFACES, MASKS, PRECISIONS, WHOLE

from .errors import RewriteError


@dataclass(frozen=True)
class RewriteOptions:
    """How a model is rewritten.

    Attributes:
        interface: "packed" (tokens [T] and lengths), "padded" (the original inputs and outputs), or "varseqlen"
            (packed, with the inputs of NVIDIA's variable-length BERT engines).
        precision: type of weights and activations in the result: "fp32", "fp16", "bf16", or "half", which is fp16, or
            bf16 where GEMMs would lose their kernels in fp16.
        strict: whether anything that stays padded is an error.
        verify: whether original and rewritten model are run in onnxruntime on ragged batches and compared; for long
            sequences, layers that repeat others are left out, unless it is "whole".
        seed: of the batches that `verify` draws.
        mask_input: the padding mask's input, where attention does not prove which one it is (keyword `mask`).
        mask_form: what masks of the padded interface look like: "any", or "contiguous" where no padding lies between
            the tokens of a row (keyword `masks`).
        padding_id: what padded slots hold, for models that read them; without it 0, 1 and ids whose rows are zeros are
            tried, and the report has a note on it.
        shared_prefixes: whether sequences of a batch may compute tokens once that they begin with, by an input that the
            packed interface gets; an error where causal attention is not all that mixes tokens.
    """

    interface: str = "packed"
    precision: str = "fp32"
    strict: bool = False
    verify: bool | str = True
    seed: int = 0
    mask_input: str | None = None
    mask_form: str = "any"
    padding_id: int | None = None
    shared_prefixes: bool = False

    @classmethod
    def of_keywords(cls, *, mask: str | None = None, masks: str = "any", **others: Any) -> RewriteOptions:
        """The options that the keywords of `rewrite` stand for."""
        return cls(mask_input=mask, mask_form=masks, **others)

    @property
    def whole(self) -> bool:
        """Whether long sequences are verified through all layers."""
        return self.verify == WHOLE

    def check(self) -> None:
        """Raises RewriteError for a value that is not allowed."""
        if self.interface not in INTERFACES:
            raise RewriteError(
                f"interface is '{self.interface}', allowed are {', '.join(INTERFACES)}; choose one of them"
            )
        if isinstance(self.verify, str) and not self.whole:
            raise RewriteError(f"verify is '{self.verify}', allowed are True, False and '{WHOLE}'; choose one of them")
        if self.mask_form not in MASKS:
            raise RewriteError(f"masks is '{self.mask_form}', allowed are {', '.join(MASKS)}; choose one of them")
        if self.shared_prefixes and self.interface != "packed":
            raise RewriteError(
                f"shared prefixes are for the packed interface, and this is '{self.interface}'; leave them out, or "
                "choose packed"
            )
        precisions = (*PRECISIONS, HALF)
        if self.precision not in precisions:
            raise RewriteError(
                f"precision is '{self.precision}', allowed are {', '.join(precisions)}; choose one of them"
            )
