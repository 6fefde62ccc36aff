# SPDX-License-Identifier: Apache-2.0
"""The way from a file to the graph that the passes work on, as three lists of steps.

Beside a step that few models need stands what calls for it in a message; other models do not enter it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto

from ..errors import RewriteError
from ..files import Model, export_model, subgraphs, without_initializers
from ..operators import DOMAIN, MAX_OPSET, MIN_OPSET
from ..precision.widen import narrow_outputs, widen
from .axes import with_rows_marked
from .canonical import (
    convert_opset,
    densify,
    drop_weight_inputs,
    name_standard_domain,
    put_functions_in_line,
    runnable,
    separate_outputs,
    sort_nodes,
    standard_version,
    unify_versions,
)
from .control_flow import keep_needed
from .fused import holds_fused
from .inputs import may_hold_rows
from .nvidia import PLUGINS, without_plugins
from .quantized.removal import UnquantizedModel, holds_quantization, without_quantization
from .quantized.rounding_nodes import QUANTIZERS, TENSORRT
from .refusals import refuse_foreign, refuse_names, refuse_what_batches_share
from .sequences import TAKEN_APART
from .skeleton import skeleton_of
from .typed_graph import TypedGraph, expand_and_choose, free_fixed_sizes, inline_and_tidy, typed_graph, words_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class ImportStep(Generic[T]):
    """A step, and what calls for it in a message; None: every model takes it."""

    run: Callable[[T], T]
    needed_by: Callable[[ModelProto], bool] | None = None


@dataclass(frozen=True)
class Original:
    """A file's model after some of the steps; after all, onnxruntime runs it, and it has one float type.

    `half` is the model before its floats were widened, whose types the results have. `unquantized` tells what rounding
    was taken out, None where there was none.
    """

    model: Model
    half: ModelProto
    unquantized: UnquantizedModel | None = None


def replace_plugins(original: Original) -> Original:
    """Replaces NVIDIA's plugins for variable-length engines by standard operators."""
    model = without_plugins(original.model)
    return Original(model, model.proto)


def remove_quantization(original: Original) -> Original:
    """Removes the rounding of activations and weights to integers or e4m3, where it can be told apart."""
    if not holds_quantization(original.model.proto):
        return original
    unquantized = without_quantization(original.model)
    return Original(unquantized.model, unquantized.model.proto, unquantized)


def widen_floats(original: Original) -> Original:
    """Widens floats to float32: passes and verification know no other float type."""
    return replace(original, model=widen(original.model))


def make_runnable(original: Original) -> Original:
    """Brings what onnxruntime refuses, although ONNX allows it, into a form that it takes."""
    return replace(original, model=original.model.with_proto(runnable(original.model.proto)))


def mark_rows(original: Original) -> Original:
    """Marks inputs [B,N] that are rows of sequences, not tokens."""
    return replace(original, model=with_rows_marked(original.model))


def _holds(*operators: str) -> Callable[[ModelProto], bool]:
    return lambda model: any(node.op_type in operators for node in model.graph.node)


def _holds_domain(*domains: str) -> Callable[[ModelProto], bool]:
    return lambda model: any(node.domain in domains for node in model.graph.node)


def _holds_functions(model: ModelProto) -> bool:
    return len(model.functions) > 0


def _holds_subgraphs(model: ModelProto) -> bool:
    return any(subgraphs(node) for node in model.graph.node)


def _is_of_another_opset(model: ModelProto) -> bool:
    return not MIN_OPSET <= standard_version(model) <= MAX_OPSET


def _is_not_standard(model: ModelProto) -> bool:
    return holds_fused(model) or _holds(*TAKEN_APART)(model) or _holds_subgraphs(model)


ORIGINAL_STEPS: tuple[ImportStep[Original], ...] = (
    ImportStep(replace_plugins, _holds(*PLUGINS)),
    ImportStep(remove_quantization, _holds(*QUANTIZERS)),
    ImportStep(widen_floats),
    ImportStep(make_runnable),
    ImportStep(mark_rows, may_hold_rows),
)
"""Steps from a file to the model that the rewritten one is compared with; onnxruntime runs it."""

MESSAGE_STEPS: tuple[ImportStep[ModelProto], ...] = (
    ImportStep(refuse_foreign, _holds_domain(DOMAIN, TENSORRT)),
    ImportStep(refuse_names),
    ImportStep(sort_nodes),
    ImportStep(name_standard_domain),
    ImportStep(unify_versions),
    ImportStep(put_functions_in_line, _holds_functions),
    ImportStep(convert_opset, _is_of_another_opset),
    ImportStep(keep_needed, _holds_subgraphs),
    ImportStep(densify),
    ImportStep(drop_weight_inputs),
    ImportStep(separate_outputs),
    ImportStep(runnable),
)
"""Steps to one spelling for what ONNX lets files say in many ways."""

GRAPH_STEPS: tuple[ImportStep[TypedGraph], ...] = (
    ImportStep(expand_and_choose, _is_not_standard),
    ImportStep(inline_and_tidy),
    ImportStep(refuse_what_batches_share),
    ImportStep(free_fixed_sizes),
)
"""Steps on the graph that the message has become."""


def _take(steps: Sequence[ImportStep[T]], value: T, message_of: Callable[[T], ModelProto]) -> T:
    """What the steps make of a value whose message calls for some of them."""
    for step in steps:
        if step.needed_by is None or step.needed_by(message_of(value)):
            logger.debug("importing: %s", step.run.__name__)
            value = step.run(value)
    return value


def original_of(model: Model) -> Original:
    """The model that is imported, and that verification compares the rewritten one with. Raises RewriteError."""
    return _take(ORIGINAL_STEPS, Original(model, model.proto), lambda original: original.model.proto)


def import_model(model: Model) -> gs.Graph:
    """The model as a graph for the passes; its weights are shared, not copied.

    Raises RewriteError for a model that is rewritten already, whose inputs are not [B,S], or that has control flow or a
    fused operator that cannot be imported, and for one that is not valid ONNX.
    """
    try:
        draft = typed_graph(model.with_proto(canonical(model.proto)))
        return _take(GRAPH_STEPS, draft, lambda draft: draft.skeleton).graph
    except RewriteError:
        raise
    except Exception as error:
        reason = _invalid(model.proto)
        if reason is None:
            raise
        raise RewriteError(f"the model is not valid ONNX: {reason}; export it again") from error


def canonical(model: ModelProto) -> ModelProto:
    """The same model in one spelling; outputs are in their places, perhaps under other names (see `name_outputs`).

    Afterwards there are no functions and no sparse tensors, every node has a name of its own or none, weights are not
    inputs, every output is made by a node under a name that nothing else has, nodes stand after those that they read,
    and the opset is one that padfree writes. Weights are shared where they are held elsewhere.

    Raises RewriteError for opsets that contradict each other or cannot be converted, for functions that make too many
    nodes, and for sparse tensors that are wrong or too large.
    """
    result = without_initializers(model)
    result.graph.initializer.extend(model.graph.initializer)
    return _take(MESSAGE_STEPS, result, lambda message: message)


def standard_model(model: ModelProto) -> ModelProto:
    """The model in standard operators alone, float32 inside, for tools that know no others, such as TensorRT.

    That is the model itself where it holds no fused operator. Raises RewriteError as import_model does.
    """
    if not holds_fused(model):
        return model
    wide = widen(Model(model))
    graph = import_model(wide)
    narrow_outputs(graph, model)
    return export_model(graph, wide).whole()


def _invalid(model: ModelProto) -> str | None:
    """What is wrong with a model that could not be imported; None for a valid one."""
    try:
        onnx.checker.check_model(skeleton_of(model))
    except UnicodeDecodeError as error:  # the checker's message has the name's bytes
        return f"a name in it is no text ({words_of(error)})"
    except Exception as error:
        return words_of(error)
    return None
