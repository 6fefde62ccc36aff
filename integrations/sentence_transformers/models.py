# SPDX-License-Identifier: Apache-2.0
"""Models of sentence-transformers whose encoder is a plan.

The classes keep everything that theirs do. Plain texts go from the tokenizer to the plan without padding, many at a
time; whatever else a model takes goes the way of sentence-transformers, and the plan's module packs and pads around
the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentence_transformers
import torch
from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import OUTPUTS
from padfree.runtime import SessionError, bounds_of
from padfree.runtime.text import Text
from padfree.torch import Module

from .tokens import PackedTexts, TextTokens

TEXTS = "padfree_texts"
"""The feature that holds texts which are not yet tokens."""
_ONLY = "sentence_embedding"


class _Attachment:
    """What the three classes share; stands before a class of sentence-transformers."""

    TASKS: tuple[str, ...] = ()
    MOST_TEXTS = 1 << 14
    """Texts of one call of `forward`, which runs them in parts."""

    padfree_tokens: TextTokens | None
    padfree_output: str | None
    """The output that is the answer; None: the plan gives rows of tokens, or logits, for the modules that follow."""
    padfree_activation: str

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Plain texts are left for `forward`; see sentence-transformers for everything else."""
        leaves_out = bool(prompt) and self.padfree_output is not None and self._leaves_out_prompts()
        texts = self._texts(inputs, prompt or "") if self._reads_texts(kwargs) else None
        if leaves_out and (texts is None or not self._plan_leaves_out_prompts()):
            raise SessionError(
                "the model's pooling leaves out prompts, and the plan's takes all tokens; build the plan from a folder "
                "whose Pooling says include_prompt false, or with --pooling none"
            )
        if texts is None:
            return super().preprocess(inputs, prompt=prompt, **kwargs)  # type: ignore[misc,no-any-return]
        features: dict[str, Any] = {TEXTS: texts, "modality": "text"}
        if prompt and (self.padfree_output is None or leaves_out):
            length = super().preprocess(["a"], prompt=prompt, **kwargs).get("prompt_length")  # type: ignore[misc]
            if length is not None:
                features["prompt_length"] = length
        return features

    def forward(self, input: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: A002 - the name is theirs
        """The chain of modules, or the plan alone where it holds the whole chain."""
        if TEXTS not in input:
            if self.padfree_output is None:
                return super().forward(input, **kwargs)  # type: ignore[misc,no-any-return]
            module: Module = self[0].model  # type: ignore[index]
            token_inputs = {name: input[name] for name in ("token_type_ids",) if name in input}
            results = module(input["input_ids"], input.get("attention_mask"), **token_inputs)
            return {**input, self.padfree_output: results[self.padfree_output]}
        most = self.max_seq_length  # type: ignore[attr-defined]
        tokens = self.padfree_tokens
        assert tokens is not None  # preprocess asked
        parts = [self._answer(part, input, kwargs) for part in tokens.parts(input[TEXTS], most)]
        name = next(name for name in (_ONLY, "scores") if name in parts[0])
        return {**input, name: torch.cat([part[name] for part in parts])}

    def save(self, *_: Any, **__: Any) -> None:
        """Raises SessionError: the encoder's weights are not there any more."""
        raise SessionError("the encoder is a plan, and its weights were dropped; save the model before attach")

    def _answer(
        self, packed: PackedTexts, shared_values: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        module: Module = self[0].model  # type: ignore[index]
        if self.padfree_output is not None:
            length = shared_values.get("prompt_length") if self._plan_leaves_out_prompts() else None
            inputs: dict[str, Any] = dict(packed.inputs)
            if length is not None:
                inputs[PROMPT_LENGTH] = np.full(len(packed.seq_lens), int(length), np.int32)
            return {self.padfree_output: module.run(inputs, packed.seq_lens)[self.padfree_output]}
        starts = bounds_of(packed.seq_lens)
        features = {name: torch.from_numpy(value)[None] for name, value in packed.inputs.items()}
        features |= {name: value for name, value in shared_values.items() if name != TEXTS}
        features |= {"seq_lens": packed.seq_lens, "cu_seq_lens_q": torch.from_numpy(starts).to(module.device)}
        return super().forward(features, **kwargs)  # type: ignore[misc,no-any-return]

    def _leaves_out_prompts(self) -> bool:
        modules: Any = self
        return any(getattr(module, "include_prompt", True) is False for module in modules)

    def _plan_leaves_out_prompts(self) -> bool:
        module: Module = self[0].model  # type: ignore[index]
        return any(item.original_name == PROMPT_LENGTH for item in module.metadata.sequence_inputs())

    def _reads_texts(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether the plan's own way is right for plain texts: nothing changes how they become tokens."""
        transformer = self[0]  # type: ignore[index]
        task_changes = any(
            getattr(transformer, name, None) is not None
            for name in ("query_length", "document_length", "query_expansion")
        )
        return (
            self.padfree_tokens is not None
            and not getattr(transformer, "processing_kwargs", None)
            and all(name == "task" and not task_changes for name, value in kwargs.items() if value is not None)
        )

    def _texts(self, inputs: Sequence[Any], prompt: str) -> list[Text] | None:
        """The inputs with the prompt in front; None where one is no text."""
        if not len(inputs) or not all(isinstance(text, str) for text in inputs):
            return None
        return [prompt + text for text in inputs]

    def _many(self, args: Sequence[Any], options: dict[str, Any]) -> None:
        """Takes more texts at a time than the default, which is made for padding."""
        if self._reads_texts({"processing_kwargs": options.get("processing_kwargs")}) and len(args) < 4:
            options["batch_size"] = max(options.get("batch_size", 1), self.MOST_TEXTS)


class _Encoding(_Attachment):
    """Models whose `encode` gives vectors."""

    def encode(self, *args: Any, output_value: str | None = _ONLY, **kwargs: Any) -> Any:
        """As sentence-transformers' own.

        Raises:
            SessionError: rows of tokens are asked for, of a plan that gives vectors of texts.
        """
        if output_value != _ONLY:
            if self.padfree_output is not None:
                raise SessionError(
                    f"output_value={output_value!r}, and the plan gives only vectors of texts; build it with "
                    "--pooling none"
                )
            # If these are set, texts go the way of sentence-transformers, in the processes of a pool too.
            kwargs.setdefault("processing_kwargs", {})
            return super().encode(*args, output_value=output_value, **kwargs)  # type: ignore[misc]
        self._many(args, kwargs)
        return super().encode(*args, **kwargs)  # type: ignore[misc]


class AttachedSentenceTransformer(_Encoding, sentence_transformers.SentenceTransformer):  # type: ignore[misc]
    """A SentenceTransformer whose encoder is a plan."""

    TASKS = ("feature-extraction", "sentence-embedding")


class AttachedSparseEncoder(_Encoding, sentence_transformers.SparseEncoder):  # type: ignore[misc]
    """A SparseEncoder whose encoder is a plan."""

    TASKS = ("fill-mask", "sparse-embedding")
    MOST_TEXTS = 1 << 8  # vectors are as wide as the vocabulary


class AttachedCrossEncoder(_Attachment, sentence_transformers.CrossEncoder):  # type: ignore[misc]
    """A CrossEncoder whose encoder is a plan."""

    TASKS = ("text-classification", "cross-encoder")

    def predict(self, *args: Any, activation_fn: Any = None, **kwargs: Any) -> Any:
        """As sentence-transformers' own.

        Raises:
            SessionError: an activation that is not the one which the plan's scores went through.
        """
        if self.padfree_output is not None:
            activation = self.activation_fn if activation_fn is None else activation_fn
            if activation_name(activation) != self.padfree_activation:
                raise SessionError(
                    f"activation {activation_name(activation)}, but the plan's scores went through "
                    f"{self.padfree_activation}; build it with --outputs logits for others"
                )
            activation_fn = torch.nn.Identity()
        self._many(args, kwargs)
        return super().predict(*args, activation_fn=activation_fn, **kwargs)

    def _texts(self, inputs: Sequence[Any], prompt: str) -> list[Text] | None:
        for pair in inputs:
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
                return None
        return [(prompt + first, second) for first, second in inputs] if len(inputs) else None


def activation_name(function: Any) -> str:
    """How metadata names an activation: the class in small letters."""
    return type(function).__name__.lower()


def answer_of(names: Sequence[str]) -> str | None:
    """The output, among those of a plan, that answers a text."""
    return next((name for name in OUTPUTS.values() if name in names), None)
