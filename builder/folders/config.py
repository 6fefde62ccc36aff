# SPDX-License-Identifier: Apache-2.0
"""config.json: what kind of model a folder holds, and for which task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.contract.names import is_onnx
from padfree.contract.texts import ANSWERS, CLASSES, FEATURES, LATE, MASKED, PAIRS, PROBLEMS, TOKENS

from ..errors import BuildError
from .objects import Entries

CONFIG = "config.json"
_HEADS: Mapping[str, str] = {
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": ANSWERS,
    "ForMaskedLM": MASKED,
    "HF_ColBERT": LATE,
}
_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForSpeechSeq2Seq")
MOST_LABELS = 1 << 20
"""The most classes where config.json does not name them."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length")


@dataclass(frozen=True)
class ModelConfig:
    """What config.json says; None and empty where it does not.

    Attributes:
        model_type: transformers' name of the architecture.
        architectures: names of classes.
        task: what the head is for.
        vocab_size: rows of the table of ids.
        hidden_size: width of the token's rows.
        max_positions: tokens that the model has positions for.
        pad_id: the id that it pads with.
        labels: names of classes, in their order.
        problem: what these are, one of padfree.contract.texts.PROBLEMS.
        generates: whether the model is a decoder, or has one.
        code: files of Python that the model would need, which padfree does not run.
        activation: the class of what a cross-encoder's scores go through; "" where the file does not say.
    """

    file: Path
    model_type: str
    architectures: tuple[str, ...]
    task: str
    vocab_size: int | None
    hidden_size: int | None
    max_positions: int | None
    pad_id: int | None
    labels: tuple[str, ...]
    problem: str
    generates: bool
    code: tuple[str, ...]
    activation: str


def read_config(folder: Path) -> ModelConfig:
    """Reads a folder's config.json.

    Raises:
        BuildError: it is not there, is no JSON, or names no model.
    """
    file = folder / CONFIG
    if not file.is_file():
        onnx_files = sorted(path for pattern in ("*", "onnx/*") for path in folder.glob(pattern) if is_onnx(path))
        files_text = f", such as {onnx_files[0]}" if onnx_files else ""
        raise BuildError(
            f"{folder}: has no {CONFIG}, so it is not a model's folder as Hugging Face's repositories are; name the "
            f"folder that save_pretrained wrote, or an .onnx file{files_text}"
        )
    entries = Entries(file)
    model_type, architectures = entries.text("model_type"), entries.texts("architectures")
    if model_type is None and not (architectures and "auto_map" in entries.raw):  # code of its own may leave it out
        raise BuildError(f"{file}: has no 'model_type', so it describes no model of transformers; download it again")
    task = next((task for name, task in _HEADS.items() if any(item.endswith(name) for item in architectures)), FEATURES)
    labels = _labels(entries) if task in (CLASSES, TOKENS) else ()
    theirs = entries.object("sentence_transformers")
    activation = str(theirs.get("activation_fn") or entries.text("sbert_ce_default_activation_function") or "")
    if task == CLASSES and (len(labels) == 1 or activation):
        task = PAIRS
    generates = any(item.endswith(_GENERATORS) for item in architectures)
    generates = generates or entries.boolean("is_encoder_decoder") or entries.boolean("is_decoder")
    generates = generates and not any(item.endswith("EncoderModel") for item in architectures)
    positions = (entries.integer(name) for name in _POSITIONS if entries.raw.get(name) != -1)
    return ModelConfig(
        file=file,
        model_type=model_type or "",
        architectures=architectures,
        task=task,
        vocab_size=entries.integer("vocab_size"),
        hidden_size=_first(entries, "hidden_size", "d_model", "dim", "emb_dim"),
        max_positions=next((position for position in positions if position is not None), None),
        pad_id=_pad_id(entries),
        labels=labels,
        problem=_problem(entries) if task in (CLASSES, PAIRS) else "",
        generates=generates,
        code=tuple(sorted({str(item).split(".")[0] + ".py" for item in _values(entries.object("auto_map"))})),
        activation=activation,
    )


def _first(entries: Entries, *names: str) -> int | None:
    return next((entries.integer(name) for name in names if name in entries.raw), None)


def _pad_id(entries: Entries) -> int | None:
    value = entries.raw.get("pad_token_id")
    return value if isinstance(value, int) and value >= 0 else None  # -1 and lists mean nothing


def _problem(entries: Entries) -> str:
    """What a classifier's classes are; "" where config.json has nothing known."""
    problem_type = entries.text("problem_type") or ""
    return problem_type if problem_type in PROBLEMS else ""


def _labels(entries: Entries) -> tuple[str, ...]:
    """Names of classes; two where config.json has none, as in transformers."""
    names = entries.object("id2label")
    if not names:
        count = entries.integer("num_labels")
        if count is not None and not 0 <= count <= MOST_LABELS:
            raise entries.wrong("num_labels", f"0 to {MOST_LABELS}")
        return tuple(f"LABEL_{number}" for number in range(2 if count is None else count))
    if any(not str(key).isdecimal() for key in names):
        raise entries.wrong("id2label", "an object of numbers and names")
    return tuple(str(names[key]) for key in sorted(names, key=int))


def _values(mapping: Mapping[str, Any]) -> list[str]:
    """The names in `auto_map`, some of which are lists."""
    lists = [item if isinstance(item, list) else [item] for item in mapping.values()]
    return [str(item) for items in lists for item in items if item]
