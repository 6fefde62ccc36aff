# SPDX-License-Identifier: Apache-2.0
"""Recognises layer norm and RMS norm over the last axis: the operators, or the chains that exporters write out."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ...analysis import argument, is_standard, made_by, node_name
from ...analysis.symbolic import Analysis, Poly, axis_of
from .. import NoMatch


@dataclass(frozen=True)
class LayerNorm:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta over the last axis; an RMS norm subtracts no mean."""

    node: str
    x: gs.Tensor
    gamma: gs.Constant | None
    beta: gs.Constant | None
    epsilon: float
    output: gs.Tensor
    rms: bool = False
    readers: tuple[gs.Node, ...] = ()  # readers of x that belong to the norm; none where they are not listed


def is_candidate(node: gs.Node) -> bool:
    """Whether a layer norm may end around the node."""
    return is_standard(node, "LayerNormalization", "RMSNormalization", "Sqrt")


def match(analysis: Analysis, node: gs.Node) -> LayerNorm | None:
    """The norm of a candidate; None where it is none at all. Raises NoMatch where it nearly is one."""
    if is_standard(node, "LayerNormalization", "RMSNormalization"):
        return _operator(analysis, node)
    return _chain(analysis, node)


def _operator(analysis: Analysis, node: gs.Node) -> LayerNorm:
    name, rank = node_name(node), analysis[node.inputs[0]].rank
    axis = axis_of(node, None)
    if rank is None or axis not in (-1, rank - 1):
        raise NoMatch(f"'{name}' ({node.op}) is not over the last axis alone (axis {axis})")
    if any(tensor.outputs for tensor in node.outputs[1:]):
        raise NoMatch(f"'{name}' ({node.op}) gives out its statistics")
    gamma, beta = node.inputs[1], argument(node, 2)
    if not isinstance(gamma, gs.Constant) or (beta is not None and not isinstance(beta, gs.Constant)):
        raise NoMatch(f"'{name}' ({node.op}) has a scale or bias that is no constant")
    epsilon = float(node.attrs.get("epsilon", 1e-5))
    return LayerNorm(name, node.inputs[0], gamma, beta, epsilon, node.outputs[0], node.op == "RMSNormalization")


def _chain(analysis: Analysis, root: gs.Node) -> LayerNorm | None:
    """The norm written as Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add, or similarly, around its Sqrt; or None."""
    shifted = made_by(root.inputs[0], "Add")
    if shifted is None:
        return None
    variance, epsilon = _with_number(analysis, shifted)
    mean_square = None if variance is None else made_by(variance, "ReduceMean")
    if variance is None or epsilon is None or mean_square is None or not _last_axis(analysis, mean_square):
        return None
    centred = _base_of_square(analysis, mean_square.inputs[0])
    sub = None if centred is None else made_by(centred, "Sub")
    if centred is None:
        return None
    if sub is None:
        return _root_mean_square(analysis, root, centred, mean_square.inputs[0].inputs[0], epsilon)
    mean = made_by(sub.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not sub.inputs[0] or not _last_axis(analysis, mean):
        return None
    name = node_name(root)
    factor = _inverse(analysis, root.outputs[0])
    if factor is not None:
        return _norm_by_factor(analysis, name, sub, mean, mean_square.inputs[0].inputs[0], factor, epsilon)
    division = _reader(root.outputs[0], "Div")
    if division is None or division.inputs[1] is not root.outputs[0]:
        raise NoMatch(f"the root '{name}' of a variance is not what one Div divides by")
    numerator = made_by(division.inputs[0], "Sub")
    same = division.inputs[0] is centred or (
        numerator is not None and numerator.inputs[0] is sub.inputs[0] and numerator.inputs[1] is sub.inputs[1]
    )
    if not same:
        raise NoMatch(f"'{node_name(division)}' (Div) divides another tensor than the one whose variance it takes")
    gamma, beta, output = _affine(analysis, sub.inputs[0], division.outputs[0])
    return LayerNorm(name, sub.inputs[0], gamma, beta, epsilon, output)


def _affine(
    analysis: Analysis, x: gs.Tensor, normalised: gs.Tensor
) -> tuple[gs.Constant | None, gs.Constant | None, gs.Tensor]:
    """The scale and the bias [E] after `normalised`, None where there is none, and the result with them."""
    width = (analysis[x].shape or (Poly(),))[-1].constant()
    scaled, gamma = _with_constant(_reader(normalised, "Mul"), width)
    return gamma, *_bias_of(analysis, x, normalised if scaled is None else scaled.outputs[0])


def _bias_of(analysis: Analysis, x: gs.Tensor, scaled: gs.Tensor) -> tuple[gs.Constant | None, gs.Tensor]:
    """The bias [E] after `scaled`, None where there is none, and the result with it."""
    final, beta = _with_constant(_reader(scaled, "Add"), (analysis[x].shape or (Poly(),))[-1].constant())
    return beta, scaled if final is None else final.outputs[0]


def _inverse(analysis: Analysis, root: gs.Tensor) -> gs.Tensor | None:
    """The tensor 1 / root, where that is all that is made of the root; None elsewhere."""
    node = _reader(root, "Reciprocal") or _reader(root, "Div")
    if node is None or (node.op == "Div" and analysis[node.inputs[0]].scalar() != 1.0):
        return None
    return node.outputs[0]


def _norm_by_factor(
    analysis: Analysis, name: str, sub: gs.Node, mean: gs.Node, square: gs.Node, inverse: gs.Tensor, epsilon: float
) -> LayerNorm:
    """(x - mean) * inverse * gamma + beta, or x * factor + (beta - mean * factor) with factor = inverse * gamma.

    The first is JAX's, with gamma before or after the product; the second is TensorFlow's.
    """
    x, centre = sub.inputs[0], sub.inputs[1]
    width = (analysis[x].shape or (Poly(),))[-1].constant()
    scaled, gamma = _with_constant(_reader(inverse, "Mul"), width)
    factor = inverse if scaled is None else scaled.outputs[0]
    products = [node for node in factor.outputs if is_standard(node, "Mul")]
    operands = [next((item for item in node.inputs if item is not factor), factor) for node in products]
    if len(products) != len(factor.outputs):
        raise NoMatch(f"the root '{name}' of a variance is read by more than a norm")
    if len(products) == 1:
        difference = made_by(operands[0], "Sub")
        if difference is None or difference.inputs[0] is not x or difference.inputs[1] is not centre:
            raise NoMatch(f"'{node_name(products[0])}' (Mul) takes another tensor than the one whose variance it takes")
        if gamma is None:
            gamma, beta, output = _affine(analysis, x, products[0].outputs[0])
        else:
            beta, output = _bias_of(analysis, x, products[0].outputs[0])
        return LayerNorm(name, x, gamma, beta, epsilon, output, readers=(mean, sub, square, difference))
    if len(products) == 2 and any(item is x for item in operands):
        shifted = products[1 - next(i for i, item in enumerate(operands) if item is x)]
        direct = next(node for node in products if node is not shifted)
        beta, shift = _shift(shifted, centre)
        final = None if shift is None else _reader(shift.outputs[0], "Add")
        of_width = isinstance(beta, gs.Constant) and list(beta.shape) == [width]
        if final is not None and of_width and any(item is direct.outputs[0] for item in final.inputs):
            return LayerNorm(name, x, gamma, beta, epsilon, final.outputs[0], readers=(mean, sub, direct))
    raise NoMatch(f"what is made of the root '{name}' of a variance is no norm times a constant [E]")


def _shift(product: gs.Node, centre: gs.Tensor) -> tuple[gs.Tensor | None, gs.Node | None]:
    """(beta, the node that makes beta - centre * factor) from the product of factor and the centre or its negative.

    Keras adds the product with the negative centre.
    """
    if any(item is centre for item in product.inputs):
        shift = _reader(product.outputs[0], "Sub")
        return (None, None) if shift is None else (shift.inputs[0], shift)
    shift, negative = _reader(product.outputs[0], "Add"), [made_by(item, "Neg") for item in product.inputs]
    if shift is None or not any(node is not None and node.inputs[0] is centre for node in negative):
        return None, None
    return next((item for item in shift.inputs if item is not product.outputs[0]), None), shift


def _root_mean_square(
    analysis: Analysis, root: gs.Node, x: gs.Tensor, square: gs.Node, epsilon: float
) -> LayerNorm | None:
    """x / sqrt(mean(x * x) + epsilon) * gamma: the root divides x, or x is multiplied by 1 / root."""
    name, inverse = node_name(root), root.outputs[0]
    division = _reader(inverse, "Div")
    if division is None or division.inputs[0] is not x:
        one_over = _reader(inverse, "Reciprocal") or division
        is_inverse = one_over is not None and (
            one_over.op == "Reciprocal" or analysis[one_over.inputs[0]].scalar() == 1.0
        )
        division = _reader(one_over.outputs[0], "Mul") if one_over is not None and is_inverse else None
        if division is None or all(item is not x for item in division.inputs):
            return None
    gamma, beta, output = _affine(analysis, x, division.outputs[0])
    return LayerNorm(name, x, gamma, beta, epsilon, output, True, (square, division))


def _with_number(analysis: Analysis, add: gs.Node) -> tuple[gs.Tensor | None, float | None]:
    for this, other in ((0, 1), (1, 0)):
        number = analysis[add.inputs[other]].scalar()
        if number is not None:
            return add.inputs[this], number
    return None, None


def _last_axis(analysis: Analysis, node: gs.Node) -> bool:
    rank = analysis[node.inputs[0]].rank
    return bool(node.attrs.get("keepdims", 1)) and rank is not None and analysis.axes_along(node) == [rank - 1]


def _base_of_square(analysis: Analysis, tensor: gs.Tensor) -> gs.Tensor | None:
    node = made_by(tensor, "Pow", "Mul")
    if node is None:
        return None
    if node.op == "Pow":
        return node.inputs[0] if analysis[node.inputs[1]].scalar() == 2.0 else None
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


def _reader(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The one node that reads the tensor, if it is of the given operator."""
    return tensor.outputs[0] if len(tensor.outputs) == 1 and is_standard(tensor.outputs[0], op) else None


def _with_constant(node: gs.Node | None, width: int | None) -> tuple[gs.Node | None, gs.Constant | None]:
    """The node and its constant [E], of size `width` where that is given; both None where it has no such constant."""
    constants = [] if node is None else [item for item in node.inputs if isinstance(item, gs.Constant)]
    if len(constants) != 1 or len(constants[0].shape) != 1 or width not in (None, int(constants[0].shape[0])):
        return None, None
    return node, constants[0]
