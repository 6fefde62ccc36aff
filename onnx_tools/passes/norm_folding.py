# SPDX-License-Identifier: Apache-2.0
"""Layer norms between products: the product ahead tells the rows' moments, and the products behind apply the norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import (
    Editor,
    is_output,
    is_padfree,
    node_name,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ..operators import MOMENTS_GROUP
from .base import Miss, NoMatch, PassResult
from .folded_weights import FoldedWeights

NAME = "norm folding"


@dataclass(frozen=True)
class _Norm:
    """A layer norm of `z`, which `product` makes, as soon as that adds what the norm adds now."""

    node: gs.Node
    product: gs.Node
    z: gs.Tensor
    output: gs.Tensor
    inputs: dict[str, gs.Tensor]

    @property
    def name(self) -> str:
        return node_name(self.node)

    @property
    def adds(self) -> bool:
        """Whether the norm adds something to what the product makes."""
        return "bias" in self.inputs or "residual" in self.inputs


def norm_folding(graph: gs.Graph, precision: str) -> PassResult:
    """Removes layer norms whose input a PadfreeLinear makes and whose output none but PadfreeLinear needs.

    With z the rows before the norm, W' = diag(gamma) W and b' = b + beta W, LN(z) W + b is
    (z W' - mean(z) colsum(W')) / deviation(z) + b'. A product that adds LN(z) to its result adds beta with its bias and
    computes the rest from z. The product that makes z takes over what the norm adds, and gives the moments of z.
    `precision` is the graph's: the new weights must fit it.
    """
    return _Folding(graph, precision).run()


class _Folding:
    """Which norms of one graph are folded, and what its products become."""

    def __init__(self, graph: gs.Graph, precision: str) -> None:
        self._graph = graph
        self._editor = Editor(graph)
        self._weights = FoldedWeights(self._editor, precision)
        self._missed: list[Miss] = []
        self._norms: dict[str, _Norm] = {}  # by output: those whose z a product can make
        self._adding: dict[int, _Norm] = {}  # of these, by the id of the product, those that add something
        self._folded: dict[str, _Norm] = {}  # of these, by output
        self._moments: dict[int, gs.Tensor] = {}  # by the id of the product that gives them

    def run(self) -> PassResult:
        """Decides, then changes the graph."""
        self._find_norms()
        applying = self._decide()
        products = {id(product): product for found in applying.values() for product in found}
        products |= {id(norm.product): norm.product for norm in self._folded.values()}
        for product in products.values():
            self._change(product)
        for norm in self._norms.values():
            if norm.output.name in self._folded:
                norm.node.inputs.clear()
                norm.node.outputs.clear()
            elif norm.adds and id(norm.product) in products:
                set_padfree_inputs(norm.node, norm.inputs, has_bias=0, has_residual=0)
        return PassResult(NAME, len(self._folded), tuple(self._missed))

    def _find_norms(self) -> None:
        for node in self._graph.nodes:
            product = producer(node.inputs[0]) if is_padfree(node, "PadfreeLayerNorm") else None
            if product is None or not is_padfree(product, "PadfreeLinear"):
                continue
            norm = _Norm(node, product, node.inputs[0], node.outputs[0], padfree_inputs(node))
            try:
                self._check_norm(norm)
            except NoMatch as reason:
                self._missed.append(Miss(norm.name, str(reason)))
                continue
            self._norms[norm.output.name] = norm
            if norm.adds:
                self._adding[id(product)] = norm

    def _check_norm(self, norm: _Norm) -> None:
        """Whether the product can make all of z and its moments."""
        product, width = norm.product, int(norm.inputs["gamma"].shape[0])
        if norm.node.attrs["rms"]:
            raise NoMatch(f"'{norm.name}' is an RMS norm; only layer norms are folded")
        if norm.node.attrs["has_sum"]:
            raise NoMatch(
                f"'{norm.name}' gives its sum too, as norms ahead of a layer do; only norms behind are folded"
            )
        if width % MOMENTS_GROUP:
            raise NoMatch(f"'{norm.name}' is {width} wide, which is no multiple of {MOMENTS_GROUP}")
        if not norm.adds:
            return
        if product.attrs["activation"] != "none":
            raise NoMatch(f"'{norm.name}' adds to what '{node_name(product)}' makes by an activation")
        if product.attrs["has_residual"] and "residual" in norm.inputs:
            raise NoMatch(f"'{norm.name}' adds to what '{node_name(product)}' has added a residual to")
        if not used_once(self._graph, norm.z):
            raise NoMatch(f"'{norm.name}' adds to '{norm.z.name}', which something else needs too")

    def _decide(self) -> dict[str, list[gs.Node]]:
        """Sets what is folded; returns the products that apply each norm, by the norm's output.

        Those are all norms that only products need, but for those whose constants do not fit. A product's constants
        depend on every norm that it takes in, so that all are tried again without a norm that does not fit.
        """
        applying: dict[str, list[gs.Node]] = {}
        for output, norm in self._norms.items():
            try:
                applying[output] = self._products_behind(norm)
            except NoMatch as reason:
                self._missed.append(Miss(norm.name, str(reason)))
        self._folded = {output: self._norms[output] for output in applying}
        while (
            unfit := next((output for output in applying if not self._fits(output, applying[output])), None)
        ) is not None:
            del self._folded[unfit], applying[unfit]
        return applying

    def _products_behind(self, norm: _Norm) -> list[gs.Node]:
        """The products that would apply the norm. Raises NoMatch where something else needs it."""
        if is_output(self._graph, norm.output):
            raise NoMatch(f"'{norm.name}' makes the output '{norm.output.name}'")
        found = []
        for reader in norm.output.outputs:
            next_norm = self._norms.get(reader.outputs[0].name)
            if is_padfree(reader, "PadfreeLinear"):
                if reader.attrs["activation"] != "none" and padfree_inputs(reader).get("residual") is norm.output:
                    raise NoMatch(f"'{norm.name}' is added behind the activation of '{node_name(reader)}'")
                found.append(reader)
            elif next_norm is not None and reader.inputs[0] is not norm.output:
                found.append(next_norm.product)  # which will add the residual
            else:
                raise NoMatch(f"'{norm.name}' is read by '{node_name(reader)}' ({reader.op}), which cannot apply it")
        return found

    def _fits(self, output: str, products: list[gs.Node]) -> bool:
        norm = self._folded[output]
        try:
            for product in (norm.product, *products):
                self._inputs(product)
        except NoMatch as reason:
            self._missed.append(Miss(norm.name, f"'{norm.name}' stays: {reason}"))
            return False
        return True

    def _inputs(self, product: gs.Node) -> tuple[dict[str, gs.Tensor], dict[str, float]]:
        """The inputs that a product gets, and its epsilons. Raises NoMatch where the type cannot hold a constant."""
        inputs, taken = padfree_inputs(product), self._taken_over(product)
        terms = [source["bias"] for source in (inputs, taken) if "bias" in source]
        inputs |= taken
        weight, beta, epsilons = inputs["weight"], None, {}
        ahead = self._folded.get(inputs["x"].name)
        if ahead is not None:
            beta = ahead.inputs.get("beta")
            inputs["weight"], inputs["column_sums"] = self._weights.scaled(weight, ahead.inputs["gamma"])
            inputs["x"], inputs["x_moments"] = ahead.z, self._moments_of(ahead)
            epsilons["x_epsilon"] = float(ahead.node.attrs["epsilon"])
        beside = self._folded.get(inputs["residual"].name) if "residual" in inputs else None
        if beside is not None:
            terms += [beside.inputs["beta"]] if "beta" in beside.inputs else []
            inputs["residual_scale"] = beside.inputs["gamma"]
            inputs["residual"], inputs["residual_moments"] = beside.z, self._moments_of(beside)
            epsilons["residual_epsilon"] = float(beside.node.attrs["epsilon"])
        bias = self._weights.bias(terms, weight, beta)
        return (inputs if bias is None else inputs | {"bias": bias}), epsilons

    def _taken_over(self, product: gs.Node) -> dict[str, gs.Tensor]:
        """The bias and the residual that a norm leaves to the product: where it is folded, or what it adds is."""
        norm = self._adding.get(id(product))
        if norm is None:
            return {}
        taken = {name: norm.inputs[name] for name in ("bias", "residual") if name in norm.inputs}
        pays = norm.output.name in self._folded or ("residual" in taken and taken["residual"].name in self._folded)
        return taken if pays else {}

    def _moments_of(self, norm: _Norm) -> gs.Tensor:
        """The moments [E/64,T,2] of a norm's z."""
        key = id(norm.product)
        if key not in self._moments:
            self._moments[key] = self._editor.variable(f"{norm.z.name}_moments", np.dtype(np.float32))
        return self._moments[key]

    def _change(self, product: gs.Node) -> None:
        """Gives a product its new inputs, and the moments as an output."""
        (inputs, epsilons), output = self._inputs(product), product.outputs[0]
        if self._taken_over(product):
            output.name = self._editor.fresh(f"{output.name}_sum")  # no longer what the original has under the old one
        names = ("bias", "residual", "x_moments", "residual_moments")
        set_padfree_inputs(product, inputs, **{f"has_{name}": int(name in inputs) for name in names}, **epsilons)
        if any(norm.product is product for norm in self._folded.values()):
            product.attrs["has_moments"] = 1
            product.outputs.append(self._moments[id(product)])
