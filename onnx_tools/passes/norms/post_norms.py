# SPDX-License-Identifier: Apache-2.0
"""RMS norms of what a layer adds to its residual stream: one kernel for norm and sum, which also gives the moments."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    find_padfree,
    is_padfree,
    node_name,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ...match import Miss, NoMatch
from ...operators import MAX_NORMED_WIDTH, MOMENTS_GROUP
from ..base import PassResult

NAME = "post-norms"
_ADDENDS = ("x", "residual")


@dataclass(frozen=True)
class _PostNorm:
    """A norm `post` whose result the norm `next_norm` adds to `residual`."""

    post: gs.Node
    next_norm: gs.Node
    residual: gs.Tensor


def post_norms(graph: gs.Graph) -> PassResult:
    """Gives every RMS norm whose result a norm adds to a residual PadfreePostNorm, which makes their sum.

    The norm after it reads the sum then, and the next pass can fold it into GEMMs.
    """
    editor = Editor(graph)
    replaced_count, misses = 0, list[Miss]()
    for node in find_padfree(graph, "PadfreeLayerNorm"):
        match = _match(graph, node)
        if match is None:
            continue
        try:
            _check(match)
        except NoMatch as reason:
            misses.append(Miss(node_name(match.post), str(reason)))
            continue
        _replace(editor, match)
        replaced_count += 1
    return PassResult(NAME, replaced_count, tuple(misses))


def _match(graph: gs.Graph, next_norm: gs.Node) -> _PostNorm | None:
    """The norm among a norm's two addends that nothing else reads; None where there is none."""
    inputs = padfree_inputs(next_norm)
    if "residual" not in inputs or "bias" in inputs or next_norm.attrs["results"] != "act":
        return None
    for name, other in (_ADDENDS, _ADDENDS[::-1]):
        post = producer(inputs[name])
        if post is None or not is_padfree(post, "PadfreeLayerNorm") or inputs[name] is not post.outputs[0]:
            continue
        if used_once(graph, inputs[name]) and post.attrs["results"] == "act":
            return _PostNorm(post, next_norm, inputs[other])
    return None


def _check(match: _PostNorm) -> None:
    """Raises NoMatch where PadfreePostNorm has no kernel for the norm."""
    post, gamma = match.post, padfree_inputs(match.post)["gamma"]
    name, width = node_name(post), int(gamma.shape[0])
    if not post.attrs["rms"] or post.attrs["has_beta"]:
        raise NoMatch(f"'{name}' subtracts a mean or adds a beta, and its result is added to a residual")
    if any(post.attrs[flag] for flag in ("has_bias", "has_residual", "has_sum")):
        raise NoMatch(f"'{name}' norms a sum, and its result is added to a residual")
    if not isinstance(gamma, gs.Constant) or width % MOMENTS_GROUP or width > MAX_NORMED_WIDTH:
        raise NoMatch(
            f"'{name}' is {width} wide; sums of norms have a kernel for constants of a multiple of {MOMENTS_GROUP}, at "
            f"most {MAX_NORMED_WIDTH}"
        )


def _replace(editor: Editor, match: _PostNorm) -> None:
    post, next_norm = padfree_inputs(match.post), match.next_norm
    result, *sums = next_norm.outputs
    total = sums[0] if sums else editor.variable(f"{result.name}_sum", result.dtype)
    editor.padfree(
        "PadfreePostNorm",
        [post["x"], match.residual, post["gamma"]],
        [total],
        epsilon=match.post.attrs["epsilon"],
        has_moments=0,
    )
    next_norm.outputs = [result]
    inputs = {name: tensor for name, tensor in padfree_inputs(next_norm).items() if name != "residual"}
    set_padfree_inputs(next_norm, {**inputs, "x": total}, has_residual=0, has_sum=0)
