# SPDX-License-Identifier: Apache-2.0
"""modules.json of sentence-transformers: the chain of modules after an encoder, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from padfree.contract.text_files import read_json

from ..errors import BuildError
from .head import ACTIVATIONS, POOLINGS, Chain, Dense, Head, Normalize, Splade, Step, VectorNorm
from .objects import Entries
from .weights import WEIGHTS, pickled_files, read_header, read_tensor

MODULES = "modules.json"
_OWN = "sentence_transformers."
_ENCODERS = ("Transformer", "MLMTransformer")
_NOTHING = ("Dropout",)  # while a model is not trained
_OF_TOKENS = "pylate.models.Dense."
"""PyLate's Dense, which is sentence-transformers' own for every token's row."""
_TOKENS, _VECTORS = "token_embeddings", "sentence_embedding"
_LEGACY: Mapping[str, str] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
)
"""What releases before 5.4 wrote; several may be true, and their order is this one."""
_ENCODER_CONFIGS = ("sentence_bert_config.json", *(
    f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
))  # fmt: skip
_ADVICE = "export the model to ONNX by the program that trained it, and give that file"


def read_modules(folder: Path, *, code_allowed: bool) -> Chain:
    """The chain of a folder; an empty one where it has no modules.json.

    Args:
        folder: the model's.
        code_allowed: the folder has an ONNX file, so that an encoder's own class does not matter.

    Raises:
        BuildError: a file is damaged, or a module is of a kind that padfree does not write into the graph.
    """
    file = folder / MODULES
    if not file.is_file():
        return _with_encoder(Chain(folder), folder)
    raw = read_json(file, BuildError, "download the model again")
    if not isinstance(raw, list) or not raw or any(not isinstance(item, dict) for item in raw):
        raise BuildError(f"{file}: holds no list of modules; download the model again")
    modules = [(str(item.get("type", "")), str(item.get("path", ""))) for item in raw]
    kind, path = modules[0]
    if _name(kind) not in _ENCODERS and not (code_allowed and not kind.startswith(_OWN)):
        raise _unknown(file, kind)
    encoder = _inside(folder, path, file)
    chain = _with_encoder(Chain(encoder, head=Head()), encoder)
    for kind, path in modules[1:]:
        if not kind.startswith((_OWN, _OF_TOKENS)):
            raise _unknown(file, kind)
        chain = _with_module(chain, _name(kind), _inside(folder, path, file), kind, file)
    head = chain.head
    if head is not None and head.of_tokens:
        if head.pooling or head.splade or not all(isinstance(step, Dense) for step in head.steps):
            raise BuildError(f"{file}: lists modules for vectors of texts and of tokens; {_ADVICE}")
        return replace(chain, head=replace(head, steps=(*head.steps, Normalize())))
    if head is not None and head.steps and not (head.pooling or head.splade):
        raise BuildError(f"{file}: lists modules for vectors, and none that pools; {_ADVICE}")
    return replace(chain, head=None) if chain.head is not None and chain.head.is_empty else chain


def _name(kind: str) -> str:
    return kind.rpartition(".")[2] if kind.startswith((_OWN, _OF_TOKENS)) else ""


def _unknown(file: Path, kind: str) -> BuildError:
    if kind.startswith(_OWN):
        return BuildError(f"{file}: has the module {kind}, which padfree does not write into the graph; {_ADVICE}")
    return BuildError(
        f"{file}: has the module {kind!r}, which is code of the model's own; padfree runs no code of models: {_ADVICE}"
    )


def _inside(folder: Path, path: str, file: Path) -> Path:
    """A module's folder, which lies in the model's."""
    match = folder / path
    if not match.resolve().is_relative_to(folder.resolve()):
        raise BuildError(f"{file}: a module's path is {path!r}, which is outside of the folder; download it again")
    return match


def _with_encoder(chain: Chain, folder: Path) -> Chain:
    entries = next((Entries(folder / name) for name in _ENCODER_CONFIGS if (folder / name).is_file()), None)
    if entries is None:
        return chain
    length = entries.integer("max_seq_length")
    arguments = entries.object("tokenizer_args") or entries.object("processor_kwargs")
    length = length or (
        arguments.get("model_max_length") if isinstance(arguments.get("model_max_length"), int) else None
    )
    return replace(chain, max_length=length or None, lower_case=entries.boolean("do_lower_case"))


def _with_module(chain: Chain, name: str, folder: Path, kind: str, file: Path) -> Chain:
    head = chain.head or Head()
    if name in _NOTHING:
        return chain
    if name == "Pooling":
        entries = _settings(folder, file)
        pools_prompt = entries.boolean("include_prompt", default=True)
        return replace(chain, head=replace(head, pooling=_modes(entries), pools_prompt=pools_prompt))
    if name == "LogitScore":
        return replace(chain, answers=_answers(_settings(folder, file)))
    if name == "SpladePooling":
        return replace(chain, head=replace(head, splade=_splade(_settings(folder, file))))
    if name == "Dense":
        reads = _settings(folder, file).raw.get("module_input_name")
        head = replace(head, of_tokens=head.of_tokens or kind.startswith(_OF_TOKENS) or reads == _TOKENS)
    if name in _STEPS:
        return replace(chain, head=replace(head, steps=(*head.steps, _STEPS[name](folder))))
    raise _unknown(file, kind)


def _answers(entries: Entries) -> tuple[int, ...]:
    """The tokens whose scores LogitScore takes: the right one, and perhaps the wrong one."""
    right, wrong = entries.integer("true_token_id"), entries.integer("false_token_id")
    if right is None:
        raise entries.wrong("true_token_id", "a token's id")
    return (right,) if wrong is None else (right, wrong)


def _settings(folder: Path, file: Path) -> Entries:
    """What a module's config.json says. Without it, a default could be wrong for this model.

    Raises:
        BuildError: it is missing or empty, as where only the files at the top were downloaded.
    """
    entries = Entries(folder / "config.json")
    if not entries.raw:
        raise BuildError(
            f"{file}: lists the module {folder.name}, and {entries.file} is missing or says nothing; download the "
            "whole folder, with the folders in it"
        )
    return entries


def _modes(entries: Entries) -> tuple[str, ...]:
    modes = entries.texts("pooling_mode")
    modes = modes or tuple(mode for name, mode in _LEGACY.items() if entries.boolean(name)) or ("mean",)
    for mode in modes:
        if mode not in POOLINGS:
            raise entries.wrong("pooling_mode", ", ".join(POOLINGS))
    return modes


def _splade(entries: Entries) -> Splade:
    strategy = entries.text("pooling_strategy") or "max"
    activation = entries.text("activation_function") or "relu"
    if strategy not in ("max", "sum"):
        raise entries.wrong("pooling_strategy", "max, sum")
    if activation not in ("relu", "log1p_relu"):
        raise entries.wrong("activation_function", "relu, log1p_relu")
    return Splade(strategy, activation == "log1p_relu")


def _weights(folder: Path) -> Path:
    """The weights of a module."""
    file = folder / WEIGHTS
    if not file.is_file():
        pickles = pickled_files(folder)
        what = f"only {', '.join(pickles)}, a pickle, and loading one may run code" if pickles else "no weights"
        raise BuildError(
            f"{folder}: holds {what}; padfree reads {WEIGHTS}: load the model with sentence-transformers where you "
            "trust it, save it with save_pretrained, and give that folder"
        )
    return file


def _dense(folder: Path) -> Step:
    entries, file = Entries(folder / "config.json"), _weights(folder)
    for name in ("module_input_name", "module_output_name"):
        if entries.raw.get(name) not in (None, _VECTORS, _TOKENS):
            raise entries.wrong(name, f"{_VECTORS}, {_TOKENS}")
    header = read_header(file)
    bias = read_tensor(file, "linear.bias") if entries.boolean("bias", default=True) else None
    activation = activation_of(entries.text("activation_function") or "torch.nn.modules.activation.Tanh", entries.file)
    adds = entries.boolean("use_residual")
    residual = read_tensor(file, "residual.weight") if adds and "residual.weight" in header else None
    return Dense(read_tensor(file, "linear.weight"), bias, activation, adds, residual)


def _norm(folder: Path) -> Step:
    file = _weights(folder)
    return VectorNorm(read_tensor(file, "norm.weight"), read_tensor(file, "norm.bias"), epsilon=1e-5)


def activation_of(name: str, source: Path) -> str:
    """The activation that a class of torch computes, by its full name.

    Raises:
        BuildError: it is another one.
    """
    match = ACTIVATIONS.get(name.rpartition(".")[2]) if name.startswith("torch.") else None
    if match is None:
        raise BuildError(
            f"{source}: the activation is {name!r}, allowed: {', '.join(ACTIVATIONS)} of torch.nn; {_ADVICE}"
        )
    return match


_STEPS: Mapping[str, Callable[[Path], Step]] = MappingProxyType(
    {"Dense": _dense, "LayerNorm": _norm, "Normalize": lambda _: Normalize()}
)


def known_modules() -> Sequence[str]:
    """Names of the modules that are read."""
    return (*_ENCODERS, "LogitScore", "Pooling", "SpladePooling", *_STEPS, *_NOTHING)
