# SPDX-License-Identifier: Apache-2.0
"""The way from a file to the graph that the passes work on, as three lists of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable

import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto

from ..errors import RewriteError
from ..files.graph_io import export_model
from ..files.model import Model, without_initializers
from ..precision.widen import narrow_outputs, widen
from .canonical import (
    convert_opset,
    densify,
    drop_weight_inputs,
    name_standard_domain,
    put_functions_in_line,
    runnable,
    separate_outputs,
    unify_versions,
)
from .control_flow import drop_unneeded
from .fused import holds_fused
from .order import in_order
from .original import Original, make_runnable, mark_rows, remove_quantization, replace_plugins, widen_floats
from .refusals import refuse_foreign, refuse_what_batches_share
from .skeleton import skeleton_of
from .typed_graph import TypedGraph, expand_and_choose, free_fixed_sizes, inline_and_tidy, typed_graph, words_of

logger = logging.getLogger(__name__)

ORIGINAL_STEPS: tuple[Callable[[Original], Original], ...] = (
    replace_plugins,
    remove_quantization,
    widen_floats,
    make_runnable,
    mark_rows,
)
"""Steps from a file to the model that the rewritten one is compared with; onnxruntime runs it."""

MESSAGE_STEPS: tuple[Callable[[ModelProto], ModelProto], ...] = (
    refuse_foreign,
    in_order,
    name_standard_domain,
    unify_versions,
    put_functions_in_line,
    convert_opset,
    drop_unneeded,
    densify,
    drop_weight_inputs,
    separate_outputs,
    runnable,
)
"""Steps to one spelling for what ONNX lets files say in many ways."""

GRAPH_STEPS: tuple[Callable[[TypedGraph], None], ...] = (
    expand_and_choose,
    inline_and_tidy,
    refuse_what_batches_share,
    free_fixed_sizes,
)
"""Steps on the graph that the message has become."""


def original_of(model: Model) -> Original:
    """The model that is imported, and that verification compares the rewritten one with. Raises RewriteError."""
    original = Original(model, model.proto)
    for step in ORIGINAL_STEPS:
        logger.debug("importing: %s", step.__name__)
        original = step(original)
    return original


def import_model(model: Model) -> gs.Graph:
    """The model as a graph for the passes; its weights are shared, not copied.

    Raises RewriteError for a model that is rewritten already, whose inputs are not [B,S], or that has control flow or a
    fused operator that cannot be imported, and for one that is not valid ONNX.
    """
    try:
        draft = typed_graph(model.with_proto(canonical(model.proto)))
        for step in GRAPH_STEPS:
            logger.debug("importing: %s", step.__name__)
            step(draft)
        return draft.graph
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
    for step in MESSAGE_STEPS:
        logger.debug("importing: %s", step.__name__)
        result = step(result)
    return result


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
