# SPDX-License-Identifier: Apache-2.0
"""Layer norms between GEMMs: what makes their rows gives the moments, and the GEMMs after them apply the norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import (
    Editor,
    disconnect,
    is_output,
    is_padfree,
    node_name,
    once,
    padfree_inputs,
    producer,
    set_padfree_inputs,
    used_once,
)
from ...match import Miss, NoMatch
from ...operators import MAX_NORMED_WIDTH, MOMENTS_GROUP, AttributeValue
from ..base import PassResult
from .folded_weights import FoldedWeights

NAME = "norm folding"
_OF_SUMS = ("PadfreeLinear", "PadfreePostNorm")  # whose results a norm may add to something
_ROWS = ("PadfreePostNorm", "PadfreeTokenRows")  # no GEMMs, which add no more
_MAKERS = ("PadfreeLinear", *_ROWS)  # whose kernels give moments
_Match = TypeVar("_Match")


@dataclass(frozen=True)
class _Norm:
    """A norm of `z`, which `gemm` makes once it adds what the norm adds now; or one of _ROWS, which adds no more.

    In `inputs`, "x" is what the GEMM makes now, whichever of the two summands the norm calls so. `has_sum`: the norm
    gives z, too, as norms before layers do.
    """

    node: gs.Node
    gemm: gs.Node
    z: gs.Tensor
    output: gs.Tensor
    inputs: dict[str, gs.Tensor]
    has_sum: bool

    @staticmethod
    def of(node: gs.Node, gemm: gs.Node) -> _Norm:
        """The norm of a GEMM, which makes one of the two summands of the node."""
        inputs, (result,) = padfree_inputs(node), gemm.outputs
        if inputs["x"] is not result:
            inputs |= {"x": result, "residual": inputs["x"]}
        output, *sums = node.outputs
        return _Norm(node, gemm, sums[0] if sums else result, output, inputs, bool(sums))

    @property
    def name(self) -> str:
        return node_name(self.node)

    @property
    def adds(self) -> bool:
        """Whether the norm adds something to what the GEMM makes."""
        return "bias" in self.inputs or "residual" in self.inputs


def norm_folding(graph: gs.Graph, precision: str, *, streams: bool = True) -> PassResult:
    """Removes layer norms that only PadfreeLinear reads, of rows that one of _MAKERS makes.

    With z the rows before the norm, W' = diag(gamma) W less the mean of each of its columns, and b' = b + beta W,
    LN(z) W + b is z W' / deviation(z) + b': a row's mean adds to z W' only what rounding leaves of 0. A GEMM
    that adds LN(z) to its result adds beta with its bias and computes the rest from z. The GEMM that makes z takes
    over what the norm adds, and gives the moments of z. With RMS norms no mean is subtracted, neither from rows nor
    from columns. Where first or last tokens' rows of LN(z) are taken, a norm of these rows of z is left. `precision` is
    the graph's: the new weights must fit it. Without `streams`, norms stay whose z is read elsewhere, too, as where
    norms come before layers: rows of such a z may differ so much in magnitude that e4m3 cannot hold all of them with
    one scale.
    """
    return _NormFolding(graph, precision, streams=streams).run()


class _NormFolding:
    """Which norms of one graph are folded, and what its GEMMs become."""

    def __init__(self, graph: gs.Graph, precision: str, *, streams: bool) -> None:
        self._graph, self._streams = graph, streams
        self._editor = Editor(graph)
        self._weights = FoldedWeights(self._editor, precision)
        self._misses: list[Miss] = []
        self._norms: dict[str, _Norm] = {}  # by output: those whose z a GEMM can make
        self._adding: dict[int, _Norm] = {}  # of these, by the id of the GEMM, those that add something
        self._after: dict[str, list[gs.Node]] = {}  # by a folded norm's output, the GEMMs that apply it
        self._moments: dict[int, gs.Tensor] = {}  # by the id of the GEMM that gives them

    def run(self) -> PassResult:
        """Decides, then changes the graph."""
        self._find_norms()
        self._decide()
        folded = [self._norms[output] for output in self._after]
        makers = {id(norm.gemm) for norm in folded}
        gemms = [
            *(norm.gemm for norm in folded),
            *(gemm for later_gemms in self._after.values() for gemm in later_gemms),
        ]
        changed = {id(gemm): gemm for gemm in gemms}
        for key, gemm in changed.items():
            self._change(gemm, gives_moments=key in makers)
        for norm in self._norms.values():
            if norm.output.name in self._after:
                self._norm_taken_rows(norm)
                disconnect(norm.node)
            elif norm.adds and self._taken_over(norm.gemm):
                inputs = norm.inputs | {"x": norm.z}
                set_padfree_inputs(norm.node, inputs, has_bias=0, has_residual=0, has_sum=0)
        return PassResult(NAME, len(folded), tuple(self._misses))

    def _try(self, norm: _Norm, step: Callable[[_Norm], _Match]) -> _Match | None:
        """What the step finds; None where it finds a reason against the norm, which becomes a miss."""
        try:
            return step(norm)
        except NoMatch as reason:
            self._misses.append(Miss(norm.name, str(reason)))
            return None

    def _find_norms(self) -> None:
        for node in self._graph.nodes:
            norms = [_Norm.of(node, gemm) for gemm in _gemms_ahead(node)]
            norm = self._first_possible(norms)
            if norm is not None:
                self._norms[norm.output.name] = norm
                if norm.adds:
                    self._adding[id(norm.gemm)] = norm

    def _first_possible(self, norms: list[_Norm]) -> _Norm | None:
        """The first norm whose GEMM can make z; where none can, only the reason against the first becomes a miss."""
        misses_before = len(self._misses)
        first = next((norm for norm in norms if self._try(norm, self._check_norm)), None)
        del self._misses[misses_before + (first is None) :]
        return first

    def _decide(self) -> None:
        """Chooses all norms that only GEMMs need, except those whose constants do not fit.

        A GEMM's constants depend on every norm that is folded into it, so that all are tried again without such a norm.
        """
        for output, norm in self._norms.items():
            gemms = self._try(norm, self._gemms_after)
            if gemms is not None:
                self._after[output] = gemms
        while (unfit := self._first_unfit()) is not None:
            del self._after[unfit]

    def _first_unfit(self) -> str | None:
        return next((item for item in self._after if not self._try(self._norms[item], self._check_constants)), None)

    def _norm_of(self, tensor: gs.Tensor | None) -> _Norm | None:
        """The folded norm whose output the tensor is; None for others."""
        return self._norms[tensor.name] if tensor is not None and tensor.name in self._after else None

    def _check_norm(self, norm: _Norm) -> bool:
        """True where the GEMM can make all of z and its moments. Raises NoMatch where it cannot."""
        gemm, width = norm.gemm, int(norm.inputs["gamma"].shape[0])
        if width % MOMENTS_GROUP:
            raise NoMatch(f"'{norm.name}' is {width} wide, which is no multiple of {MOMENTS_GROUP}")
        if width > MAX_NORMED_WIDTH:
            raise NoMatch(f"'{norm.name}' is {width} wide; at most {MAX_NORMED_WIDTH} are folded")
        is_whole = is_padfree(gemm, *_ROWS)
        if not is_whole and (gemm.attrs["gated"] or gemm.attrs["rotary_features"]):
            raise NoMatch(f"'{norm.name}' norms what '{node_name(gemm)}' makes by a gate or a rotation")
        if not is_whole and gemm.attrs["activation"] != "none":
            raise NoMatch(f"'{norm.name}' norms what '{node_name(gemm)}' makes by an activation")
        if (norm.adds and is_whole) or ("residual" in norm.inputs and gemm.attrs["has_residual"]):
            raise NoMatch(f"'{norm.name}' adds to what '{node_name(gemm)}' has added a residual to")
        normed = norm.inputs["x"]
        if not self._streams and (norm.has_sum or not used_once(self._graph, normed)):
            raise NoMatch(f"'{norm.name}' norms '{norm.z.name}', which goes on beside it: fp8 takes the norm's result")
        if norm.adds and not used_once(self._graph, normed):
            raise NoMatch(f"'{norm.name}' adds to '{normed.name}', which something else needs too")
        return True

    def _gemms_after(self, norm: _Norm) -> list[gs.Node]:
        """The GEMMs that would apply the norm. Raises NoMatch where something else needs it."""
        if is_output(self._graph, norm.output):
            raise NoMatch(f"'{norm.name}' makes the output '{norm.output.name}'")
        gemms = []
        of_zeros = norm.node.attrs["epsilon"] > 0  # rows of empty sequences are zeros, and must give numbers
        others = [reader for reader in norm.output.outputs if not (of_zeros and _takes_rows(reader))]
        for reader in others or norm.output.outputs:
            next_norm = self._norms.get(reader.outputs[0].name)
            if is_padfree(reader, "PadfreeLinear"):
                if reader.attrs["activation"] != "none" and padfree_inputs(reader).get("residual") is norm.output:
                    raise NoMatch(f"'{norm.name}' is added after the activation of '{node_name(reader)}'")
                gemms.append(reader)
            elif next_norm is not None:
                gemms.append(next_norm.gemm)  # which will add the residual
            else:
                raise NoMatch(f"'{norm.name}' is read by '{node_name(reader)}' ({reader.op}), which cannot apply it")
        return gemms

    def _check_constants(self, norm: _Norm) -> bool:
        """True where the type holds the constants of all GEMMs that the norm changes. Raises NoMatch elsewhere."""
        try:
            for gemm in (norm.gemm, *self._after[norm.output.name]):
                self._inputs(gemm)
        except NoMatch as reason:
            raise NoMatch(f"'{norm.name}' cannot go into the GEMMs around it: {reason}") from reason
        return True

    def _inputs(self, gemm: gs.Node) -> tuple[dict[str, gs.Tensor], dict[str, AttributeValue]]:
        """The inputs that a GEMM gets, and attributes for its norms. Raises NoMatch where a constant does not fit."""
        inputs, inherited_inputs = padfree_inputs(gemm), self._taken_over(gemm)
        if is_padfree(gemm, *_ROWS):
            return inputs, {}
        terms = [source["bias"] for source in (inputs, inherited_inputs) if "bias" in source]
        inputs |= inherited_inputs
        weight, beta, numbers = inputs["weight"], None, dict[str, AttributeValue]()
        ahead, beside = self._norm_of(inputs["x"]), self._norm_of(inputs.get("residual"))
        if ahead is not None and beside is not None:
            raise NoMatch(f"'{node_name(gemm)}' would norm what it multiplies and what it adds")
        if ahead is not None:
            beta = ahead.inputs.get("beta")
            gamma, takes_mean = ahead.inputs["gamma"], not ahead.node.attrs["rms"]
            inputs["weight"] = self._weights.scale(weight, gamma, centred=takes_mean)
            inputs["x"], inputs["x_moments"] = ahead.z, self._moments_of(ahead)
            numbers |= {"x_epsilon": float(ahead.node.attrs["epsilon"]), "rms": ahead.node.attrs["rms"]}
        if beside is not None:
            terms += [beside.inputs["beta"]] if "beta" in beside.inputs else []
            inputs["residual_scale"] = beside.inputs["gamma"]
            inputs["residual"], inputs["residual_moments"] = beside.z, self._moments_of(beside)
            numbers |= {"residual_epsilon": float(beside.node.attrs["epsilon"]), "rms": beside.node.attrs["rms"]}
        bias = self._weights.bias(terms, weight, beta)
        return (inputs if bias is None else inputs | {"bias": bias}), numbers

    def _taken_over(self, gemm: gs.Node) -> dict[str, gs.Tensor]:
        """The bias and the residual that a norm leaves to the GEMM: where that norm, or the one it adds, is folded."""
        norm = self._adding.get(id(gemm))
        if norm is None:
            return {}
        inherited_inputs = {name: tensor for name, tensor in norm.inputs.items() if name in ("bias", "residual")}
        return inherited_inputs if self._norm_of(norm.output) or self._norm_of(inherited_inputs.get("residual")) else {}

    def _norm_taken_rows(self, norm: _Norm) -> None:
        """Lets pools that took first or last tokens' rows of a folded norm take them from z, and norms these rows."""
        inputs = [norm.inputs[name] for name in ("gamma", "beta") if name in norm.inputs]
        attributes = {**norm.node.attrs, "has_bias": 0, "has_residual": 0, "has_sum": 0}
        for pool in [reader for reader in norm.output.outputs if _takes_rows(reader)]:
            normed, rows = pool.outputs[0], self._editor.variable(f"{pool.outputs[0].name}_sum", norm.output.dtype)
            pool.inputs[0], pool.outputs = norm.z, [rows]
            self._editor.padfree("PadfreeLayerNorm", [rows, *inputs], [normed], **attributes)

    def _moments_of(self, norm: _Norm) -> gs.Tensor:
        """The moments [E/64,T,2] of a norm's z."""
        name, float32 = f"{norm.z.name}_moments", np.dtype(np.float32)
        return once(self._moments, id(norm.gemm), lambda: self._editor.variable(name, float32))

    def _change(self, gemm: gs.Node, *, gives_moments: bool) -> None:
        """Gives a GEMM its new inputs, and the moments as an output."""
        inputs, numbers = self._inputs(gemm)
        if self._taken_over(gemm):
            norm, output = self._adding[id(gemm)], gemm.outputs[0]
            if norm.has_sum:
                gemm.outputs = [self._editor.take_over(norm.z)]
            else:
                output.name = self._editor.fresh(f"{output.name}_sum")  # the old name is a tensor's of the original
        names = ("bias", "residual", "x_moments", "residual_moments")
        flags = {f"has_{name}": int(name in inputs) for name in names if f"has_{name}" in gemm.attrs}
        set_padfree_inputs(gemm, inputs, **flags, **numbers, has_moments=int(gives_moments))
        if gives_moments:
            gemm.outputs.append(self._moments[id(gemm)])


def _takes_rows(node: gs.Node) -> bool:
    """Whether a node takes first or last tokens' rows as they are, so that these may be normed after it."""
    return is_padfree(node, "PadfreePool") and node.attrs["mode"] in ("first", "last") and not node.attrs["normalize"]


def _gemms_ahead(node: gs.Node) -> list[gs.Node]:
    """What makes what a norm adds up, of _MAKERS; no PadfreeTokenRows where that is a sum."""
    if not is_padfree(node, "PadfreeLayerNorm"):
        return []
    inputs = padfree_inputs(node)
    kinds = _MAKERS if "residual" not in inputs else _OF_SUMS
    makers = [producer(inputs[name]) for name in ("x", "residual") if name in inputs]
    return [maker for maker in makers if maker is not None and is_padfree(maker, *kinds)]
