# SPDX-License-Identifier: Apache-2.0
"""Repositories on the Hugging Face Hub: what a model needs of one, in huggingface_hub's cache."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import BuildError
from .definition import reason_without
from .folder import read_folder
from .hub_files import module_files, onnx_of, pickles_of, settings_of, weights_of
from .hub_refusals import at, reason, refusal
from .modules import MODULES, read_modules
from .objects import Entries
from .weights import INDEX

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAMES_SHOWN = 3
_MISTAKES = (AttributeError, NameError, TypeError)
"""Errors of calls that a release of huggingface_hub does not have, which are not a hub's answer."""
_MB = 1_000_000


def is_hub_id(source: Path) -> bool:
    """Whether a path that does not exist may be a repository's name, such as BAAI/bge-small-en-v1.5."""
    text = str(source)
    return bool(_ID.fullmatch(text)) and source.suffix.lower() not in (".onnx", ".plan") and not source.parent.is_dir()


@dataclass(frozen=True)
class HubRepository:
    """One commit of a repository, in huggingface_hub's cache.

    Attributes:
        name: owner and name.
        revision_asked: the branch, tag or commit that was asked for; "" for none.
        folder: the commit's, named by its hash.
        sizes: its files and their bytes; None if not known.
        is_reached: whether the hub listed the files; otherwise they are those in the cache.
    """

    name: str
    revision_asked: str
    folder: Path
    sizes: Mapping[str, int | None]
    is_reached: bool = True


def download(name: str, revision: str = "", say: Callable[[str], object] = lambda _: None) -> Path:
    """The folder of a repository's model in huggingface_hub's cache; only files that are missing are fetched.

    An interrupted download goes on where it ended. Where the hub is not reached, the cache is used.

    Args:
        name: owner and name.
        revision: a branch, tag or commit; "" for the newest of the main branch.
        say: gets what is fetched, and from which commit.

    Raises:
        BuildError: the repository does not exist, is closed to this user, or has no weights that padfree reads; the hub
            is not reached, and the cache does not have it; or huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.utils
    except ImportError as error:
        raise BuildError(
            f"{name}: no such file or folder here, and to get it from the Hugging Face Hub needs huggingface_hub: pip "
            "install huggingface_hub, or download the repository, and give its folder"
        ) from error
    repository = _look_up(huggingface_hub, name, revision, say)
    folder, names = repository.folder, repository.sizes
    if "config.json" not in names and MODULES not in names:
        raise BuildError(
            f"{name}: has no config.json{at(revision)}, so it is no model of transformers' on the Hugging Face Hub; "
            "check the name, or give an .onnx file"
        )
    encoder, *others = _listed_modules(folder) or [""]
    with _quiet(huggingface_hub):
        settings = {*settings_of(names), *settings_of(names, encoder), *module_files(names, others)}
        _fetch(huggingface_hub, repository, sorted(settings))
    read_modules(folder, code_allowed=True)  # refuses what it does not know before gigabytes are fetched
    weights = weights_of(names, encoder, _index(folder / encoder))
    _check_weights(repository, weights)
    _fetch(huggingface_hub, repository, weights, say)
    exported = onnx_of(names, encoder)
    if exported and exported != weights and not _is_defined(folder):
        say(f"{name}: padfree does not know this kind of model itself, so the ONNX file is taken")
        _fetch(huggingface_hub, repository, exported, say)
    return folder


def _is_defined(folder: Path) -> bool:
    """Whether padfree writes the graph itself; errors of a folder are raised where it is read."""
    try:
        return not reason_without(read_folder(folder))
    except BuildError:
        return True


def _look_up(hub: Any, name: str, revision: str, say: Callable[[str], object]) -> HubRepository:
    """The repository at the revision, with the files that say what it is; the cache's where the hub is not reached."""
    try:
        with _quiet(hub):
            first = ["config.json", MODULES]
            folder = Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=first))
    except _MISTAKES:
        raise
    except Exception as error:  # its errors share no public base
        failure = refusal(name, revision, error)
        raise failure or BuildError(
            f"{name}: no such file or folder here, huggingface_hub's cache does not have it{at(revision)}, and the "
            f"Hugging Face Hub is not reached ({reason(error)}); connect, or download the repository elsewhere, and "
            "give its folder"
        ) from error
    try:
        info = hub.HfApi().model_info(name, revision=folder.name, files_metadata=True)
    except _MISTAKES:
        raise
    except Exception as error:
        say(f"{name}: the Hugging Face Hub is not reached ({reason(error)}); takes {folder}")
        files = [path for path in folder.rglob("*") if path.is_file()]
        file_sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        return HubRepository(name, revision, folder, file_sizes, is_reached=False)
    sizes = {item.rfilename: getattr(item, "size", None) for item in info.siblings or ()}
    return HubRepository(name, revision, folder, sizes)


def _fetch(
    hub: Any, repository: HubRepository, names: Collection[str], say: Callable[[str], object] = lambda _: None
) -> None:
    """Downloads these files of the repository into its folder, and says which: weights may be gigabytes."""
    missing = [item for item in names if not (repository.folder / item).is_file()]
    if not missing:
        return
    total = sum(repository.sizes[item] or 0 for item in missing) / _MB
    names_text = f"{', '.join(missing[:_NAMES_SHOWN])}{' ...' if len(missing) > _NAMES_SHOWN else ''}"
    say(f"{repository.name}: fetches {names_text} ({total:.3g} MB) of commit {repository.folder.name}")
    try:
        options = {"revision": repository.folder.name, "allow_patterns": [glob.escape(item) for item in missing]}
        hub.snapshot_download(repository.name, **options)
    except _MISTAKES:
        raise
    except Exception as error:
        raise refusal(repository.name, repository.revision_asked, error) or BuildError(
            f"{repository.name}: the Hugging Face Hub did not give all of it ({reason(error)}); try again, which goes "
            "on where this ended, or download the repository elsewhere, and give its folder"
        ) from error


@contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Without progress bars for small files."""
    if hub.utils.are_progress_bars_disabled():
        yield
        return
    hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        hub.utils.enable_progress_bars()


def _listed_modules(folder: Path) -> list[str]:
    """The folders that modules.json lists; where it is no list, read_modules says so."""
    file = folder / MODULES
    try:
        module_entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        paths = [str(item.get("path", "")) for item in module_entries]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    return [path.strip("/") for path in paths]


def _index(encoder: Path) -> Mapping[str, str]:
    """Which part every tensor is in."""
    weight_map = Entries(encoder / INDEX).object("weight_map")
    return {name: part for name, part in weight_map.items() if isinstance(part, str) and not _leads_out(part)}


def _leads_out(part: str) -> bool:
    return ".." in PurePosixPath(part).parts or PurePosixPath(part).is_absolute()


def _check_weights(repository: HubRepository, weights: Sequence[str]) -> None:
    """Refuses a repository without weights, or not all of them, before anything large is fetched."""
    missing = [item for item in weights if item not in repository.sizes]
    if weights and not missing:
        return
    name = repository.name
    if missing:
        problem_text = f"lacks {', '.join(missing[:_NAMES_SHOWN])} ({len(missing)} in all) of its weights"
        if not repository.is_reached:
            raise BuildError(
                f"{name}: {repository.folder} {problem_text}, and the Hugging Face Hub is not reached; connect"
            )
        raise BuildError(f"{name}: {problem_text}{at(repository.revision_asked)}; name another --revision")
    if not repository.is_reached:
        raise BuildError(
            f"{name}: {repository.folder} has none of its weights, and the Hugging Face Hub is not reached; connect"
        )
    if pickles := pickles_of(repository.sizes):
        raise BuildError(
            f"{name}: has pickled weights alone ({', '.join(pickles[:_NAMES_SHOWN])}), and loading a pickle may run "
            "code; where you trust them, load the model with transformers, write it again with save_pretrained, which "
            "makes model.safetensors, and give that folder"
        )
    raise BuildError(
        f"{name}: has neither weights (model.safetensors) nor an ONNX file "
        f"(onnx/model.onnx){at(repository.revision_asked)}; check the name, or name another --revision"
    )
