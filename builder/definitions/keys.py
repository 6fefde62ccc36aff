# SPDX-License-Identifier: Apache-2.0
"""The entries of config.json as definitions read them: each is read, known to change nothing, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import BuildError
from .errors import NotDefinedError

T = TypeVar("T")

_MOST_SIZE = 1 << 24
"""Larger than any width, vocabulary or number of layers."""
_MOST_NUMBER = 3.4e38
"""What float32 holds."""
_NEUTRAL = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels", "add_pooling_layer",
        "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_implementation", "auto_map",
        "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "custom_pipelines",
        "directionality", "dtype", "embedding_dropout", "eos_token_id", "finetuning_task", "gradient_checkpointing",
        "hidden_dropout_prob", "id2label", "initializer_factor", "initializer_range", "keys_to_ignore_at_inference",
        "label2id", "language", "mask_token_id", "matryoshka_dimensions", "max_length", "model_max_length",
        "model_type", "num_labels", "output_attentions", "output_hidden_states", "output_past", "pad_token_id",
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
        "problem_type", "return_dict", "sbert_ce_default_activation_function", "sentence_transformers", "sep_token_id",
        "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript", "transformers.js_config",
        "transformers_version", "use_cache",
    }
)  # fmt: skip
"""Entries that change nothing in what an encoder computes of tokens: dropout, training, texts, labels."""


class Keys:
    """The entries of a config.json, or of an object in one.

    Args:
        file: config.json, for messages.
        raw: its object.
        path: where in the file the object stands; "" at the top.
    """

    def __init__(self, file: Path, raw: Mapping[str, Any], path: str = "") -> None:
        self.file, self.raw = file, raw
        self._path = path
        self._read_names: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has this entry."""
        return self.raw.get(name) is not None

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first of these names that exists; without a default, one must exist."""
        return self._value(names, default, lambda value: _is_whole(value) and least <= value <= _MOST_SIZE, f"{least} "
                           f"to {_MOST_SIZE}")  # fmt: skip

    def number(self, *names: str, default: float | None = None, above: float = 0.0) -> float:
        """A number above a limit that float32 holds."""
        result = self._value(
            names,
            default,
            lambda value: _is_number(value) and above < value <= _MOST_NUMBER,
            f"above {above:g}, to {_MOST_NUMBER:g}",
        )
        return float(result)

    def boolean(self, *names: str, default: bool) -> bool:
        """True or false."""
        return self._value(names, default, lambda value: isinstance(value, bool), "true or false")

    def text(self, *names: str, default: str | None = None) -> str:
        """A text."""
        return self._value(names, default, lambda value: isinstance(value, str), "a text")

    def texts(self, name: str, default: Sequence[str]) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(self._value((name,), default, _are_texts, "a list of texts"))

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of so many numbers above 0, which must exist."""
        allowed_text = f"{count} numbers above 0"

        def fits(value: Any) -> bool:
            is_list = isinstance(value, list) and len(value) == count
            return is_list and all(_is_number(item) and item > 0 for item in value)

        return tuple(self._value((name,), None, fits, allowed_text))

    def inner(self, name: str) -> Keys | None:
        """The object under a name; None where there is none."""
        self._read_names.add(name)
        value = self.raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return None if value is None else Keys(self.file, value, f"{self._path}{name}.")

    def only(self, **choices: Any) -> None:
        """Refuses entries whose value is not the one that definitions know.

        Raises:
            NotDefinedError: naming the entry, its value and the one that is known.
        """
        for name, value in choices.items():
            self._read_names.add(name)
            entry = self.raw.get(name)
            if entry is not None and not (entry == value and isinstance(entry, bool) == isinstance(value, bool)):
                raise NotDefinedError(f"'{self._path}{name}' is {_text(entry)}, and {_text(value)} alone is known")

    def ignore(self, *names: str) -> None:
        """Entries that change nothing in this family."""
        self._read_names.update(names)

    def check_all_read(self) -> None:
        """Refuses entries whose effect is not known.

        Raises:
            NotDefinedError: naming them.
        """
        neutral = _NEUTRAL if not self._path else frozenset()
        unknown = [
            name for name, value in self.raw.items() if name not in self._read_names | neutral and value is not None
        ]
        if unknown:
            names_text = ", ".join(f"'{self._path}{name}'" for name in sorted(unknown)[:3])
            raise NotDefinedError(f"nothing is known of the {_entries(len(unknown))} {names_text}")

    def _value(self, names: Sequence[str], default: T | None, fits: Callable[[Any], bool], allowed_text: str) -> T:
        self._read_names.update(names)
        for name in names:
            if self.raw.get(name) is not None:
                if not fits(self.raw[name]):
                    raise self._wrong(name, allowed_text)
                value: T = self.raw[name]
                return value
        if default is None:
            raise NotDefinedError(f"'{self._path}{names[0]}' is missing")
        return default

    def _wrong(self, name: str, allowed_text: str) -> BuildError:
        return BuildError(
            f"{self.file}: '{self._path}{name}' is {_text(self.raw[name])}, allowed: {allowed_text}; correct the file, "
            "or download it again"
        )


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    return ascii(value)[:60]


def _entries(count: int) -> str:
    return "entry" if count == 1 else f"{count} entries, among them"
