# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json together with the settings that lie beside it, as AutoTokenizer takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.contract.fields import decode
from padfree.contract.texts import RIGHT, SIDES

from ..errors import SessionError
from .classes import AS_SAVED, FOLLOWED, TokenizerClass, class_of
from .encoder import TextEncoder
from .rebuilt import SAVED_FRAMES, Settings, can_rebuild, post_processor, rebuilt

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

NAME, SETTINGS, MODEL = "tokenizer.json", "tokenizer_config.json", "config.json"
_SPECIALS, _ADDED = "special_tokens_map.json", "added_tokens.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
TYPES = "token_type_ids"
WANTED = "the file that is wanted is the tokenizer.json that was saved with the model"


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer as its folder says that it works.

    Attributes:
        path: the tokenizer.json, for messages.
        content: a tokenizer.json that works so by itself.
        truncation_side: the end that longer texts lose.
        token_types: whether texts have token types; None: nothing beside the file tells.
        notes: what to tell the user: where versions of transformers differ, which one is followed.
        types_notes: what to tell where pairs come, and the model reads token types.
    """

    path: Path
    content: bytes
    truncation_side: str = RIGHT
    token_types: bool | None = None
    notes: tuple[str, ...] = ()
    types_notes: tuple[str, ...] = ()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which pads nothing and cuts nothing."""
        return plain(parsed(self.content, self.path))

    def encoder(self, most: int | None) -> TextEncoder:
        """What makes tokens of texts with it, at most so many of each."""
        types = self.token_types is not False
        return TextEncoder(self.tokenizer(), most, side=self.truncation_side, token_types=types)


def read_tokenizer_file(path: Path, settings: Path | None = None, rows: int | None = None) -> TokenizerFile:
    """Reads a tokenizer.json and what lies beside it.

    Args:
        path: the file; where it has another name, it is taken to lie beside no settings of its own.
        settings: the folder with tokenizer_config.json and config.json (default: that of the file).
        rows: of the model's table of ids, which limits the tokens that settings may add.

    Raises:
        SessionError: there is no such file, it holds no tokenizer, or a setting is one that padfree does not follow.
    """
    content = read_bytes(path)
    folder = settings or path.parent
    given, model = _object(folder / SETTINGS), _object(folder / MODEL)
    if (settings is None and path.name != NAME) or not (given or "model_type" in model):
        cut = _saved(content, path).get("truncation") or {}
        return TokenizerFile(path, content, str(cut.get("direction", RIGHT)).lower())
    return _Reading(path, content, folder, given, model, rows).result()


def read_bytes(path: Path) -> bytes:
    """The bytes of a tokenizer.json.

    Raises:
        SessionError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise SessionError(f"{path}: no such tokenizer; {WANTED}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SessionError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def parsed(content: bytes, source: Path) -> Tokenizer:
    """The tokenizer in what a tokenizer.json holds; `source` is named in messages.

    Raises:
        SessionError: it holds no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception
        raise SessionError(f"{source}: not a tokenizer file ({error}); {WANTED}") from error


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer itself, which pads nothing and cuts nothing any more."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class _Reading:
    """One tokenizer and its settings."""

    def __init__(
        self,
        path: Path,
        content: bytes,
        folder: Path,
        given: dict[str, Any],
        model: Mapping[str, Any],
        rows: int | None,
    ) -> None:
        self._path, self._content, self._folder, self._rows = path, content, folder, rows
        self._saved = _saved(content, path)
        if "added_tokens_decoder" not in given:  # what older versions wrote in files of their own
            given |= _object(folder / _SPECIALS)
        self._given = given
        named = given.get("tokenizer_class") or model.get("tokenizer_class")
        model_type = model.get("model_type")
        self._kind: TokenizerClass = class_of(
            model_type if isinstance(model_type, str) else None, named if isinstance(named, str) else None
        )
        self._settings = Settings(self._kind, given, self._wrong)

    def result(self) -> TokenizerFile:
        if self._settings.truth("split_special_tokens", False):
            raise SessionError(
                f"{self._folder / SETTINGS}: 'split_special_tokens' is true, and padfree makes one token of a special "
                "token in a text; set it to false where that is right for the model"
            )
        notes: list[str] = []
        tokenizer = parsed(self._content, self._path)
        family, saved_frame = self._kind.family, tokenizer.post_processor
        rebuilds = family != AS_SAVED and can_rebuild(self._settings, self._saved)
        if rebuilds:
            tokenizer = rebuilt(self._settings, self._saved)
        self._add_tokens(tokenizer)
        if rebuilds:
            frame = post_processor(self._settings, tokenizer)
            if family in SAVED_FRAMES or frame is None:
                frame = saved_frame or frame
            if frame is not None:
                tokenizer.post_processor = frame
        elif family != AS_SAVED:
            notes.append(
                f"its tokenizer_class is {self._kind.name}, and {NAME} is none of that kind: it is taken as it is"
            )
        elif difference := self._kind.difference(self._saved):
            notes.append(
                f"its tokenizer is a {self._kind.name}, which {difference}: padfree follows tokenizer.json as it is; "
                "compare its ids with those of AutoTokenizer.from_pretrained(folder), and where they differ, write "
                "tokenizer.json anew with that one's .backend_tokenizer.save, or run the model on token ids"
            )
        notes += self._ends(tokenizer)
        types, of_types = self._types(), list[str]()
        if not types and "model_input_names" not in self._given and any(tokenizer.encode("", "").type_ids):
            of_types.append(
                f"its tokenizer ({self._kind.name}) gives no token types, as in {FOLLOWED} (4 gave them): a model that "
                "reads them gets zeros; for types, name token_type_ids in model_input_names of tokenizer_config.json"
            )
        if self._given.get("padding_side") == "left":
            notes.append(
                f"{SETTINGS} pads on the left, where transformers counts positions over padding: padfree pads nothing, "
                "and gives what the model gives for each text alone"
            )
        made = plain(tokenizer).to_str()
        changed = made != plain(parsed(self._content, self._path)).to_str()
        content = made.encode() if changed else self._content
        return TokenizerFile(self._path, content, self._side(), types, tuple(notes), tuple(of_types))

    def _side(self) -> str:
        saved = str((self._saved.get("truncation") or {}).get("direction", RIGHT)).lower()
        side = self._given.get("truncation_side", saved)
        if side not in SIDES:
            raise self._wrong("truncation_side", ", ".join(SIDES))
        return str(side)

    def _types(self) -> bool:
        names = self._given.get("model_input_names")
        if names is None:
            return self._kind.token_types
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._wrong("model_input_names", "a list of names")
        return TYPES in names

    def _ends(self, tokenizer: Tokenizer) -> Iterator[str]:
        """Where tokenizer_config.json asks for tokens around texts that tokenizer.json does not put there."""
        for key, name, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", -1)):
            if not self._settings.truth(key, False) or not self._given.get(name):
                continue
            ids = tokenizer.encode("").ids
            if not ids or ids[place] != tokenizer.token_to_id(self._settings.token(name)):
                yield (
                    f"{SETTINGS} says {key}, and {NAME} puts no {self._settings.token(name)!a} there: {NAME} counts, "
                    f"as in {FOLLOWED}"
                )

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Adds the tokens that settings name, but for those that the model's table has no row for."""
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
        for token in self._tokens():
            new = tokenizer.token_to_id(token.content) is None
            if repr(token) not in known and not (new and self._rows is not None and size >= self._rows):
                tokenizer.add_tokens([token])
                size += new

    def _tokens(self) -> Iterator[AddedToken]:
        """Added tokens in the order in which transformers adds them."""
        from tokenizers import AddedToken

        found: dict[str, AddedToken] = {}
        for _, known in sorted(self._decoder(), key=lambda item: item[0]):
            found.setdefault(known.content, known)
        yield from found.values()
        for value in self._special():
            token = _token(value)
            if token is not None and token.content not in found:
                found[token.content] = token
                yield AddedToken(token.content, **{**_flags(token), "special": True})

    def _special(self) -> Iterator[Any]:
        """Special tokens that settings name, in the order in which transformers adds them."""
        yield from self._listed()
        extra = self._given.get(_EXTRA[0])
        if isinstance(extra, dict):
            yield from extra.values()
        for name, value in {**self._kind.defaults, **self._given}.items():
            if name.endswith("_token") and name not in _NAMED and isinstance(value, (str, dict)):
                yield value

    def _listed(self) -> Iterator[Any]:
        """The usual special tokens, then those in a list."""
        for name in _NAMED:
            yield self._given.get(name, self._kind.defaults.get(name))
        first, second = (self._given.get(name) for name in _EXTRA)
        yield from (first if isinstance(first, list) and first else second) or []

    def _decoder(self) -> Iterator[tuple[int, AddedToken]]:
        """Tokens by their ids: those of tokenizer_config.json, or else those of other files."""
        given = self._given.get("added_tokens_decoder")
        if given is not None:
            if not isinstance(given, dict) or not all(str(at).isdecimal() for at in given):
                raise self._wrong("added_tokens_decoder", "an object of ids and tokens")
            for at, value in given.items():
                token = _token(value, special=False)
                if token is None:
                    raise self._wrong("added_tokens_decoder", "an object of ids and tokens")
                yield int(at), token
            return
        special = {token.content for value in self._listed() if (token := _token(value)) is not None}
        for content, at in _object(self._folder / _ADDED).items():
            token = _token({"content": content, "normalized": content not in special}, special=content in special)
            if token is not None and isinstance(at, int):
                yield at, token
        for item in self._saved.get("added_tokens", ()):
            token = _token(item, special=False)
            if token is not None:
                yield int(item["id"]), token

    def _wrong(self, name: str, allowed: str) -> SessionError:
        shown = ascii(self._given.get(name))[:60]
        return SessionError(
            f"{self._folder / SETTINGS}: '{name}' is {shown}, allowed: {allowed}; correct the file, or download it "
            "again"
        )


def _token(value: Any, *, special: bool = True) -> AddedToken | None:
    """A token as JSON files write it."""
    from tokenizers import AddedToken

    if isinstance(value, str) and value:
        return AddedToken(value, special=special)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        return None
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    flags = {name: value[name] for name in names if isinstance(value.get(name), bool)}
    return AddedToken(value["content"], **{"special": special, **flags})


def _flags(token: AddedToken) -> dict[str, bool]:
    return {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}


def _saved(content: bytes, path: Path) -> dict[str, Any]:
    """A tokenizer.json as an object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"{path}: not a tokenizer file ({error}); {WANTED}") from error
    if not isinstance(found, dict):
        raise SessionError(f"{path}: not a tokenizer file, it holds a {type(found).__name__}; {WANTED}")
    return found


def _object(file: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one where there is no such file.

    Raises:
        SessionError: it cannot be read, or holds something else.
    """
    if not file.is_file():
        return {}
    try:
        found = decode(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SessionError(f"{file}: not JSON ({error}); download it again") from error
    if not isinstance(found, dict):
        raise SessionError(f"{file}: holds a {type(found).__name__}, not an object; download it again")
    return found
