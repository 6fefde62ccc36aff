# SPDX-License-Identifier: Apache-2.0
"""What a model's folder holds, and why one cannot be used; no code of the model is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from padfree.contract.late_interaction import DOCUMENT, ROLES
from padfree.contract.texts import CLASSES, FEATURES, LATE, MASKED, PAIRS, SENTENCES, SPARSE, TextInfo

from ..errors import BuildError
from ..scorers.scorer import Scorer, advice, check_options, scorer_of, template_for_pairs
from .config import CONFIG, ModelConfig, read_config
from .counts import check_counts
from .head import AS_THE_FOLDER_SAYS, Chain, Head, HeadOptions, Truncate
from .late_interaction import LateSettings, late_settings, projection
from .modules import MODULES, activation_of, read_modules
from .objects import Entries
from .onnx_files import OnnxFiles, find_onnx
from .weights import pickled_files, read_header, weight_files

OWN_SETTINGS = "config_sentence_transformers.json"
_OF_CHAINS = {"activation_fn", "default_prompt_name", "prompts", "similarity_fn_name", "truncate_dim"}
_EMBEDDING_WIDTHS = frozenset({"embedding_size", "input_embedding_size", "word_embed_proj_dim"})
"""Entries of config.json for embeddings that are narrower than the layers: ALBERT's, RemBERT's, OPT's."""
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_NO_LIMIT = 1_000_000  # tokenizers without a limit say 10^30
_EMBEDDINGS = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "word_embedding.weight",
               "shared.weight", "wte.weight")  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """A model's folder.

    Attributes:
        path: the folder.
        encoder: where config.json and weights lie: the folder itself, or one in it.
        config: what config.json says.
        task: one of padfree.contract.texts.TASKS.
        head: what follows the encoder.
        onnx: the ONNX files; `chosen` is None where the weights are to be exported.
        weights: safetensors files, where no ONNX file is chosen.
        tokenizer: tokenizer.json; None: there is none.
        text: the TextInfo that is kept, without the tokenizer's digest.
        lower_case: whether texts are lower-cased before they are tokenised.
        notes: what to tell the user: choices that were made, and surprises.
        late: how queries and documents are read, if every token has a vector.
    """

    path: Path
    encoder: Path
    config: ModelConfig
    task: str
    head: Head
    onnx: OnnxFiles
    weights: tuple[Path, ...]
    tokenizer: Path | None
    text: TextInfo
    lower_case: bool = False
    notes: tuple[str, ...] = field(default=())
    late: LateSettings | None = None


def read_folder(path: Path, options: HeadOptions = AS_THE_FOLDER_SAYS) -> Folder:
    """Reads a folder as Hugging Face's repositories are.

    Args:
        path: the folder.
        options: what the user asks for: what a reranker answers with, and how it is asked.

    Raises:
        BuildError: it is no model's folder, or one that padfree cannot make an engine of; the message says why and what
            to do.
    """
    if not path.is_dir():
        raise BuildError(f"{path}: no such folder; name a model's folder, or an .onnx file")
    onnx = find_onnx(path)
    chain = read_modules(path, code_allowed=onnx.choice is not None or _has_adapters(path))
    encoder = chain.encoder
    onnx = onnx if onnx.choice is not None else find_onnx(path, encoder)
    config, settings = read_config(encoder), Entries(path / OWN_SETTINGS)
    scorer = _scorer(path, config, chain, settings, options)
    late = late_settings(path, config, chain.head, settings)
    is_from_weights = (scorer is not None and weight_files(encoder)) or late is not None
    onnx = OnnxFiles(None, (), ()) if is_from_weights else onnx
    weights = () if onnx.choice is not None else tuple(weight_files(encoder))
    _check_usable(path, config, chain, onnx, weights, is_scorer=scorer is not None)
    for file in weights:
        _check_config(file, config)
    check_counts(weights, config.file)
    chained = (path / MODULES).is_file()
    head, task = _head(path, config, chain, settings, chained=chained)
    if late is not None:
        head, task = (projection(weights) if chain.head is None else head), LATE
    if scorer is not None:
        head, task = scorer.head(weights, config), PAIRS
    check_options(path, options, generates=scorer is not None, takes_pairs=task == PAIRS)
    tokenizer = next((folder / TOKENIZER for folder in (path, encoder) if (folder / TOKENIZER).is_file()), None)
    notes = [*_onnx_notes(path, onnx), *chain.notes, *_adapter_notes(config, onnx)]
    notes += [] if scorer is None else scorer.notes
    notes += [] if chained else _unchained_notes(task, settings)
    text_info = _text(encoder, config, chain, settings if chained and scorer is None else None)
    if late is not None:
        longest = max(late.query_length, late.document_length)
        text_info = replace(text_info, max_length=longest, prompts=dict.fromkeys(ROLES, ""), default_prompt=DOCUMENT)
    template = template_for_pairs(path, encoder, config, options) if scorer is None else scorer.template
    return Folder(
        path=path,
        encoder=encoder,
        config=config,
        task=task,
        head=head,
        onnx=onnx,
        weights=weights,
        tokenizer=tokenizer,
        text=replace(describe(text_info, task, head), template=template),
        lower_case=chain.lower_case,
        notes=tuple(notes),
        late=late,
    )


def _scorer(path: Path, config: ModelConfig, chain: Chain, settings: Entries, options: HeadOptions) -> Scorer | None:
    """How a model that generates text becomes a reranker; None where it does not, or where something pools its rows."""
    if not config.generates or chain.head is not None:
        return None
    activation_name = (settings.text("activation_fn") if chain.answers else None) or config.activation
    prompts, default = settings.object("prompts"), settings.text("default_prompt_name")
    prompt = prompts.get(default) if chain.answers and default is not None else ""
    return scorer_of(
        path,
        chain.encoder,
        config,
        options,
        answers=chain.answers,
        activation=activation_of(activation_name, settings.file) if activation_name else "",
        prompt=prompt if isinstance(prompt, str) else "",
    )


def _unchained_notes(task: str, settings: Entries) -> Iterator[str]:
    """What nothing says in a folder without modules.json."""
    if task == FEATURES:
        yield f"has no {MODULES}, which would say how vectors of texts are made: it gives rows of tokens"
    if unread_settings := sorted(_OF_CHAINS & set(settings.raw)):
        names = ", ".join(unread_settings)
        yield f"{OWN_SETTINGS} has no say in {names} without {MODULES}, as in sentence-transformers"


def _has_adapters(path: Path) -> bool:
    """Whether the encoder's own class in modules.json is one that chooses adapters, as Jina v3 has it."""
    return bool(Entries(path / CONFIG).raw.get("lora_adaptations"))


def describe(text: TextInfo, task: str, head: Head) -> TextInfo:
    """The TextInfo of an encoder that was trained for this task and is followed by this head."""
    if head.scores:
        task = PAIRS
    elif head.pooling:
        task = SENTENCES
    elif head.is_empty:
        task = {SENTENCES: FEATURES, SPARSE: MASKED, PAIRS: CLASSES, LATE: FEATURES}.get(task, task)
    pooling = ("splade",) if head.splade else head.pooling
    return replace(
        text,
        task=task,
        pooling=pooling,
        normalize=head.normalizes,
        activation=head.scores,
        pools_prompt=head.pools_prompt,
    )


def _check_usable(
    path: Path, config: ModelConfig, chain: Chain, onnx: OnnxFiles, weights: tuple[Path, ...], *, is_scorer: bool
) -> None:
    """Refuses a folder that no engine can be made of."""
    if config.generates and chain.head is None and not is_scorer:
        names = ", ".join(config.architectures) or config.model_type
        raise BuildError(
            f"{path}: is a decoder ({ascii(names)[1:-1]}), which generates text; "
            "padfree takes encoders: feature extraction, sentence vectors, cross-encoders, classification; "
            f"{advice()}"
        )
    if onnx.choice is not None or weights:
        return
    if onnx.quantized:
        names = ", ".join(str(file.relative_to(path)) for file in onnx.quantized)
        raise BuildError(
            f"{path}: has quantised ONNX files alone ({names}), whose integer GEMMs padfree does not pack; download "
            "model.safetensors or onnx/model.onnx of the model, too"
        )
    if pickles := pickled_files(path):
        raise BuildError(
            f"{path}: has pickled weights alone ({', '.join(pickles)}), and loading a pickle may run code; where you "
            "trust them, load the model with transformers and write it again with save_pretrained, which makes "
            "model.safetensors"
        )
    raise BuildError(
        f"{path}: has neither weights (model.safetensors) nor an ONNX file (onnx/model.onnx, model.onnx); where they "
        "are links of git lfs, fetch them: git lfs pull"
    )


def _check_config(file: Path, config: ModelConfig) -> None:
    """Refuses a config.json that is not that of the weights."""
    for name, entry in read_header(file).items():
        if not name.endswith(_EMBEDDINGS) or len(entry.shape) != 2:
            continue
        for what, size, stated_size in (
            ("vocab_size", entry.shape[0], config.vocab_size),
            ("hidden_size", entry.shape[1], config.hidden_size),
        ):
            # Some have narrower embeddings than layers (ALBERT, ELECTRA), and say so (_EMBEDDING_WIDTHS).
            if stated_size is not None and size != stated_size and (what != "hidden_size" or _is_plain(config)):
                raise BuildError(
                    f"{config.file}: says {what} {stated_size}, the weights ({file.name}, {name}) have {size}: it "
                    "belongs to another model; download the folder again"
                )


def _is_plain(config: ModelConfig) -> bool:
    return not _EMBEDDING_WIDTHS & set(Entries(config.file).raw)


def _head(path: Path, config: ModelConfig, chain: Chain, settings: Entries, *, chained: bool) -> tuple[Head, str]:
    """What follows the encoder, and the task; without a chain of modules, settings tell only the kind of model."""
    if chain.head is not None:
        return _truncate(chain.head, settings), SPARSE if chain.head.splade else SENTENCES
    task = PAIRS if config.task == CLASSES and settings.text("model_type") == "CrossEncoder" else config.task
    if task != PAIRS:
        return Head(), task
    own = settings.text("activation_fn") if chained else None
    name, file = (own, path / OWN_SETTINGS) if own else (config.activation, config.file)
    if not name:  # as CrossEncoder has it
        return Head(scores="sigmoid" if len(config.labels) == 1 else "identity"), PAIRS
    return Head(scores=activation_of(name, file)), PAIRS


def _truncate(head: Head, settings: Entries) -> Head:
    """The head with the folder's truncate_dim as its last step; sentence-transformers has none for sparse encoders."""
    size = settings.integer("truncate_dim")
    if size is None or not head.pooling:
        return head
    if size < 1:
        raise settings.wrong("truncate_dim", "1 and more")
    return replace(head, steps=(*head.steps, Truncate(size)))


def _onnx_notes(path: Path, onnx: OnnxFiles) -> list[str]:
    if onnx.choice is None:
        quantized_files = [str(file.relative_to(path)) for file in onnx.quantized]
        return [f"exports the weights, as {', '.join(quantized_files)} are quantised"] if quantized_files else []
    others = [str(file.relative_to(path)) for file in (*onnx.others, *onnx.quantized)]
    return [f"takes {onnx.choice.relative_to(path)}" + (f", not {', '.join(others)}" if others else "")]


def _adapter_notes(config: ModelConfig, onnx: OnnxFiles) -> list[str]:
    names = Entries(config.file).texts("lora_adaptations")
    if not names or onnx.choice is not None:
        return []
    return [f"has adapters, of which none is taken unless --adapter names it: {', '.join(names)}"]


def _text(encoder: Path, config: ModelConfig, chain: Chain, settings: Entries | None) -> TextInfo:
    all_prompts = {} if settings is None else settings.object("prompts")
    prompts = {name: text for name, text in all_prompts.items() if isinstance(text, str)}
    default, similarity = (
        None if settings is None else settings.text(name) for name in ("default_prompt_name", "similarity_fn_name")
    )
    return TextInfo(
        task=config.task,
        max_length=_max_length(encoder, config, chain),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        similarity=similarity if similarity in _SIMILARITIES else None,
        labels=config.labels,
        problem=config.problem,
    )


def _max_length(encoder: Path, config: ModelConfig, chain: Chain) -> int | None:
    """As in sentence-transformers: what its own settings say, or the tokenizer's limit and the model's positions."""
    if chain.max_length is not None:
        return chain.max_length
    settings = Entries(encoder / TOKENIZER_CONFIG).raw
    length = settings.get("model_max_length", settings.get("max_len"))  # as old versions wrote it
    limit = int(length) if isinstance(length, (int, float)) and 0 < length < _NO_LIMIT else None
    return min((most for most in (limit, config.max_positions) if most), default=None)
