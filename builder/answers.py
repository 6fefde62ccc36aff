# SPDX-License-Identifier: Apache-2.0
"""A model's answers to texts, one line of JSON each: vectors, scores, labels, or words with labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from padfree.contract.texts import SEVERAL_LABELS
from padfree.runtime.answers import CLASSIFY, ENCODE, SCORE, TAG, TextModel
from padfree.runtime.text import Text

from .errors import BuildError
from .files import write_with

Answer = dict[str, Any]


def answers_of(
    model: TextModel, texts: Sequence[Text], inputs: Mapping[str, Any], prompt_name: str | None
) -> list[Answer]:
    """The model's answer to every text or pair, as JSON objects.

    Args:
        model: the opened model.
        texts: texts, or pairs.
        inputs: other inputs of the model with a row per text, by name.
        prompt_name: for models of vectors: the prompt to prepend.

    Raises:
        SessionError: a text that the model does not take; BuildError: a pair for a model that reads texts alone.
    """
    kind, is_multiple = model.kind, model.info.problem == SEVERAL_LABELS
    if prompt_name is not None and kind != ENCODE:
        raise BuildError(f"--prompt {prompt_name}: is for models of vectors, and this one makes none; leave it out")
    if kind == SCORE:
        return [{"score": score} for score in model.scores(texts, inputs=inputs).tolist()]
    if kind == CLASSIFY:
        return [
            {
                "label": one.label,
                "score": one.score,
                **({"labels": one.labels} if is_multiple else {}),
                "scores": one.scores,
            }
            for one in model.classify(texts, inputs=inputs)
        ]
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise BuildError("the model reads texts by themselves, and a pair was given; leave the second text out")
    if kind == TAG:
        return [{"words": [asdict(word) for word in words]} for words in model.tag(single, inputs=inputs)]
    if kind == ENCODE:
        vectors = model.encode(single, prompt_name=prompt_name, inputs=inputs)
        return [{"embedding": vector} for vector in vectors.tolist()]
    return [
        {"tokens": one.tokens, "embeddings": None if one.vectors is None else one.vectors.tolist()}
        for one in model.tokens(single, inputs=inputs)
    ]


def write_answers(path: Path, texts: Sequence[Text], answers: Sequence[Answer]) -> None:
    """Writes every text with its answer, one per line.

    Raises:
        BuildError: the disk is full or the folder cannot be written; no file is left behind.
    """

    def save(file: IO[bytes]) -> None:
        for text, answer in zip(texts, answers, strict=True):
            entry = {"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True))
            file.write(json.dumps({**entry, **answer}, ensure_ascii=False).encode() + b"\n")

    write_with(path, save)
