# SPDX-License-Identifier: Apache-2.0
"""Keywords of sentence-transformers' methods: what takes their place here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NUMPY_ADVICE = "the result is a numpy array; torch.from_numpy makes a tensor of it"
BATCH_ADVICE = "batches are formed by tokens; leave it out"
DEVICE_ADVICE = "padfree.Model(..., device=N) chooses the GPU"
ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "sentences": "texts come first, or as texts=",
        "inputs_list": "texts come first, or as texts=",
        "batch_size": BATCH_ADVICE,
        "chunk_size": BATCH_ADVICE,
        "normalize_embeddings": "pass normalize=True for vectors of length 1",
        "convert_to_tensor": NUMPY_ADVICE,
        "convert_to_numpy": NUMPY_ADVICE,
        "show_progress_bar": "it shows no progress; leave it out, or use padfree embed for large files",
        "is_query": "models with a vector for every token have encode_query and encode_document",
        "truncate_dim": "take the first columns: model.encode(texts)[:, :N]",
        "output_value": "rows of tokens come from model.tokens(texts)",
        "precision": "vectors are float32; padfree.Model(..., precision=...) chooses the engine's",
        "device": DEVICE_ADVICE,
        "pool": DEVICE_ADVICE,
        "task": "name one of the model's prompts with prompt_name=",
        "instruction": "pass it as prompt=",
        "max_length": "texts are cut to the model's own length; leave it out",
        "top_k": "pass top=",
        "return_documents": "results have the index of the document; leave it out",
        "activation_fn": "scores come as the model gives them; apply it to them",
        "apply_softmax": "scores come as the model gives them; model.classify gives probabilities",
    }
)
"""What to do instead, by keyword."""
USUAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "convert_to_numpy": (True,),
        "convert_to_tensor": (False,),
        "show_progress_bar": (False, None),
        "output_value": ("sentence_embedding",),
        "precision": ("float32",),
        "truncate_dim": (None,),
        "device": (None,),
        "pool": (None,),
        "return_documents": (False,),
        "top_k": (None,),
    }
)
"""Values that ask for what is done anyway."""


def advise(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which ignores keywords of sentence-transformers with their usual values, and names ours for others.

    >>> @advise
    ... def encode(texts, *, normalize=None):
    ...     return texts
    >>> encode("a text", convert_to_numpy=True)
    'a text'
    >>> encode("a text", normalize_embeddings=True)
    Traceback (most recent call last):
    TypeError: encode has no keyword 'normalize_embeddings': pass normalize=True for vectors of length 1
    """
    own_names = tuple(name for name in inspect.signature(method).parameters if name != "self")

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in [name for name in kwargs if name not in own_names]:
            value: Any = kwargs[name]
            if not any(value is usual or (isinstance(usual, str) and value == usual) for usual in USUAL.get(name, ())):
                advice = ADVICE.get(name, f"allowed are {', '.join(own_names)}")
                raise TypeError(f"{method.__name__} has no keyword '{name}': {advice}")
            del kwargs[name]
        return method(*args, **kwargs)

    return call
