# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json read with the settings of its folder; imported where there are some, as it needs tokenizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from padfree.contract.texts import RIGHT, SIDES
from tokenizers import Tokenizer

from ..errors import SessionError
from .added_tokens import EXTRA, AddedTokens
from .families.classes import BERT_FRAME, LIBRARY_FOLLOWED, PLAIN, class_of
from .families.components import NO_FRAME, Family, Frame, Settings, TokenizerJson
from .families.rebuilding import FAMILIES, rebuild
from .families.word_pieces import bert_frame
from .json_files import read_object, saved_object
from .tokenizer_file import NAME, SETTINGS, TYPES, TokenizerFile, parse, plain

_SPECIALS, _ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
_BY_BYTES = "LlamaTokenizer"
"""A class that does not count where tokenizer.json cuts texts into bytes, as Llama 3's does."""


class Reading:
    """One tokenizer and its settings."""

    def __init__(
        self,
        path: Path,
        content: bytes,
        folder: Path,
        config: dict[str, Any],
        model: Mapping[str, Any],
        rows: int | None,
    ) -> None:
        self._path, self._content, self._folder, self._rows = path, content, folder, rows
        self._tokenizer_json = TokenizerJson(saved_object(content, path))
        self._adds_extra = False
        if "added_tokens_decoder" not in config:  # what older versions wrote in files of their own
            older = read_object(folder / _SPECIALS)
            if any(isinstance(config.get(name), list) for name in EXTRA):
                older.pop(EXTRA[1], None)
            self._adds_extra = EXTRA[1] in older
            config |= older
        self._config = config
        class_name = config.get("tokenizer_class") or model.get("tokenizer_class")
        model_type = model.get("model_type")
        kind = class_of(
            model_type if isinstance(model_type, str) else None, class_name if isinstance(class_name, str) else None
        )
        self._kind = PLAIN if kind.name == _BY_BYTES and class_name and b'"ByteLevel"' in content else kind
        self._settings = Settings(config, self._kind.defaults, self._kind.constants, self._wrong)

    def result(self) -> TokenizerFile:
        """The tokenizer as its class makes it, with notes."""
        if self._settings.truth("split_special_tokens", False):
            raise SessionError(
                f"{self._folder / SETTINGS}: 'split_special_tokens' is true, and padfree makes one token of a special "
                "token in a text; set it to false where that is right for the model"
            )
        tokenizer, notes = self._build(), list[str]()
        notes += self._ends(tokenizer)
        types, of_types = self._types(), list[str]()
        if not types and "model_input_names" not in self._config and any(tokenizer.encode("", "").type_ids):
            of_types.append(
                f"its tokenizer ({self._kind.name}) gives no token types, as in {LIBRARY_FOLLOWED} (4 gave them): a "
                "model that reads them gets zeros; for types, name token_type_ids in model_input_names of "
                "tokenizer_config.json"
            )
        if self._config.get("padding_side") == "left":
            notes.append(
                f"{SETTINGS} pads on the left, where transformers counts positions over padding: padfree pads nothing, "
                "and gives what the model gives for each text alone"
            )
        text = plain(tokenizer).to_str()
        changed = text != plain(parse(self._content, self._path)).to_str()
        content = text.encode() if changed else self._content
        return TokenizerFile(self._path, content, self._side(), types, tuple(notes), tuple(of_types))

    def _build(self) -> Tokenizer:
        """The tokenizer as its class makes it, with added tokens."""
        tokenizer = parse(self._content, self._path)
        family = self._family()
        saved_frame, frame = tokenizer.post_processor, None
        if family is not None:
            tokenizer, frame = rebuild(family, self._settings, self._tokenizer_json)
        elif self._kind.family == BERT_FRAME:
            frame = self._bert_frame()
        AddedTokens(
            self._config,
            self._tokenizer_json.content,
            read_object(self._folder / _ADDED_TOKENS),
            defaults=self._kind.defaults,
            extra=lambda tokens: family.extra(self._settings, tokens) if family else tokens,
            adds=self._adds_extra,
            plain="" if family is None else family.plain,
            wrong=self._wrong,
        ).add_to(tokenizer, self._rows)
        keeps = frame is None or (family is not None and family.keeps_frame)
        if keeps and saved_frame is not None:
            tokenizer.post_processor = saved_frame
        else:
            tokenizer.post_processor = (frame or NO_FRAME).processor(tokenizer)
        return tokenizer

    def _family(self) -> Family | None:
        """How the tokenizer is built anew; None: it is what tokenizer.json says.

        Raises:
            SessionError: the class builds it in a way that is not followed, or of another vocabulary.
        """
        name = self._kind.name
        if difference := self._kind.difference():
            raise self._other_ids(
                f"{name}, which {difference} in {LIBRARY_FOLLOWED}, and which padfree does not follow"
            )
        family = FAMILIES.get(self._kind.family)
        if family is not None and not family.fits(self._settings, self._tokenizer_json):
            files_text = " and ".join(
                [f"a {family.vocabulary} vocabulary", *map(ascii, map(self._settings.token, family.around))]
            )
            raise self._other_ids(
                f"{name}, which {LIBRARY_FOLLOWED} builds of {files_text}, and {NAME} does not hold that"
            )
        return family

    def _bert_frame(self) -> Frame:
        """What stands around texts, where that alone is the class's own."""
        for name in ("cls_token", "sep_token"):
            if self._settings.token(name) not in self._tokenizer_json.known_tokens:
                token_text = ascii(self._settings.token(name))
                raise self._other_ids(f"{self._kind.name}, which puts {token_text} around texts, and {NAME} has none")
        return bert_frame(self._settings)

    def _other_ids(self, what: str) -> SessionError:
        return SessionError(
            f"{self._folder}: its tokenizer is a {what}: ids would differ from transformers'; where {self._path.name} "
            f'is right as it is, set "tokenizer_class": "PreTrainedTokenizerFast" in {SETTINGS}, and both follow it; '
            "otherwise run the model on token ids"
        )

    def _side(self) -> str:
        direction = str((self._tokenizer_json.content.get("truncation") or {}).get("direction", RIGHT)).lower()
        side = self._config.get("truncation_side", direction)
        if side not in SIDES:
            raise self._wrong("truncation_side", ", ".join(SIDES))
        return str(side)

    def _types(self) -> bool:
        names = self._config.get("model_input_names")
        if names is None:
            return self._kind.token_types
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._wrong("model_input_names", "a list of names")
        return TYPES in names

    def _ends(self, tokenizer: Tokenizer) -> Iterator[str]:
        """Where tokenizer_config.json asks for tokens around texts that tokenizer.json does not put there."""
        for key, name, index in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", -1)):
            if not self._settings.truth(key, False) or not self._config.get(name):
                continue
            ids = tokenizer.encode("").ids
            if not ids or ids[index] != tokenizer.token_to_id(self._settings.token(name)):
                yield (
                    f"{SETTINGS} says {key}, and {NAME} puts no {self._settings.token(name)!a} there: {NAME} counts, "
                    f"as in {LIBRARY_FOLLOWED}"
                )

    def _wrong(self, name: str, allowed_text: str) -> SessionError:
        value_text = ascii(self._config.get(name))[:60]
        return SessionError(
            f"{self._folder / SETTINGS}: '{name}' is {value_text}, allowed: {allowed_text}; correct the file, or "
            "download it again"
        )
