# SPDX-License-Identifier: Apache-2.0
"""Other legal ways to write a model: each function changes a model in place but not what it computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

ODD = (
    "a b",
    "ü/ö:0",
    "%1",
    "padfree_token_index",
    "cu_seqlens",
    "qkv",
    "B",
    "S",
    "T",
    "?0",
    "x_padded",
    "node",
    "1",
    "",
)
PADFREE_NAMES = ("padfree_token_index", "cu_seqlens", "slots", "attention", "packed", "qkv", "input_ids_padded", "zero")


def _tensors(model: ModelProto) -> set[str]:
    graph = model.graph
    names = {item.name for items in (graph.input, graph.output, graph.initializer) for item in items}
    return names | {name for node in graph.node for name in (*node.input, *node.output)}


def _fresh(model: ModelProto, stem: str) -> str:
    names = _tensors(model) | {node.name for node in model.graph.node}
    return next(name for name in (stem, *(f"{stem}.{i}" for i in range(10_000))) if name and name not in names)


def _rename(model: ModelProto, old: str, new: str) -> None:
    for node in _nodes(model.graph):
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
    for tensor in model.graph.initializer:
        tensor.name = new if tensor.name == old else tensor.name
    for value in model.graph.value_info:
        value.name = new if value.name == old else value.name


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _constant(values: np.ndarray, name: str, rng: random.Random, is_dense: bool) -> NodeProto:
    """One of the forms in which a Constant node holds its value."""
    forms = ["value"]
    if values.dtype == np.float32 and values.ndim < 2 and values.size:
        forms += ["value_floats" if values.ndim else "value_float"] * 2
    if values.dtype == np.int64 and values.ndim < 2 and values.size:
        forms += ["value_ints" if values.ndim else "value_int"] * 2
    if values.dtype == np.float32 and values.ndim in (1, 2) and not is_dense:
        forms.append("sparse_value")
    form = rng.choice(forms)
    if form == "value":
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))
    if form == "sparse_value":
        return helper.make_node("Constant", [], [name], sparse_value=_sparse(values, "", rng))
    return helper.make_node("Constant", [], [name], **{form: values.tolist()})


def _sparse(values: np.ndarray, name: str, rng: random.Random) -> onnx.SparseTensorProto:
    """A sparse tensor, with its indices in either form."""
    flat = np.flatnonzero(values)
    indices = np.stack(np.unravel_index(flat, values.shape), 1) if rng.random() < 0.5 else flat
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values.reshape(-1)[flat], name),
        numpy_helper.from_array(indices.astype(np.int64)),
        list(values.shape),
    )


def _some(items: list[NodeProto], rng: random.Random, most: int = 4) -> list[NodeProto]:
    return rng.sample(items, min(len(items), rng.randrange(1, most + 1)))


def _dense(graph: GraphProto) -> set[str]:
    """Tensors that onnxruntime would treat as sparse if their constants were: outputs, and inputs of Identity."""
    return {item.name for item in graph.output} | {
        name for node in _nodes(graph) if node.op_type == "Identity" for name in node.input
    }


def weights_as_constants(model: ModelProto, rng: random.Random) -> None:
    graph = model.graph
    for tensor in rng.sample(list(graph.initializer), rng.randrange(len(graph.initializer) + 1)):
        graph.node.insert(0, _constant(numpy_helper.to_array(tensor), tensor.name, rng, tensor.name in _dense(graph)))
        graph.initializer.remove(tensor)


def constants_as_weights(model: ModelProto, rng: random.Random) -> None:
    del rng
    for node in [item for item in model.graph.node if item.op_type == "Constant"]:
        if node.attribute[0].name == "value" and node.output[0] not in {item.name for item in model.graph.output}:
            tensor = model.graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            model.graph.node.remove(node)


def sparse_weights(model: ModelProto, rng: random.Random) -> None:
    graph = model.graph
    dense = _dense(graph)
    for tensor in [item for item in graph.initializer if item.name not in dense]:
        if tensor.data_type == TensorProto.FLOAT and 1 <= len(tensor.dims) <= 2 and rng.random() < 0.3:
            graph.sparse_initializer.append(_sparse(numpy_helper.to_array(tensor), tensor.name, rng))
            graph.initializer.remove(tensor)


def typed_weights(model: ModelProto, rng: random.Random) -> None:
    """Numbers in the fields of their types instead of bytes."""
    for tensor in model.graph.initializer:
        if rng.random() < 0.5:
            values = numpy_helper.to_array(tensor)
            kind, dims = tensor.data_type, list(tensor.dims)
            tensor.CopyFrom(helper.make_tensor(tensor.name, kind, dims, values.reshape(-1).tolist()))


def node_names(model: ModelProto, rng: random.Random) -> None:
    """Odd or missing names, or those of tensors; not equal ones, which onnxruntime rejects."""
    for number, node in enumerate(model.graph.node):
        choice = rng.choice(["", node.output[0], f"{rng.choice(ODD)}/{number}", f"/a/{number}"])
        node.name = choice


def equal_node_names(model: ModelProto, rng: random.Random) -> None:
    name = rng.choice(["node", "/layer/Add", "PadfreeAttention", " "])
    for node in model.graph.node:
        node.name = name


def tensor_names(model: ModelProto, rng: random.Random) -> None:
    kept = {item.name for items in (model.graph.input, model.graph.output) for item in items}
    for old in rng.sample(sorted(_tensors(model) - kept - {""}), 6):
        _rename(model, old, _fresh(model, rng.choice([name for name in (*ODD, *PADFREE_NAMES) if name])))


def identities(model: ModelProto, rng: random.Random) -> None:
    """Chains of nodes that change nothing, after any tensors and before outputs."""
    for node in _some([item for item in model.graph.node if item.op_type != "Constant"], rng):
        location = rng.randrange(len(node.input))
        if node.input[location]:
            for _ in range(rng.randrange(1, 3)):
                name = _fresh(model, "same")
                at = list(model.graph.node).index(node)
                model.graph.node.insert(at, helper.make_node("Identity", [node.input[location]], [name]))
                node = model.graph.node[at + 1]
                node.input[location] = name
    output = rng.choice(model.graph.output).name
    _rename(model, output, inner := _fresh(model, f"{output}_inner"))
    middle = _fresh(model, "chain")
    model.graph.node.append(helper.make_node("Identity", [inner], [middle]))
    model.graph.node.append(helper.make_node("Identity", [middle], [output]))


def dead_nodes(model: ModelProto, rng: random.Random) -> None:
    name = _fresh(model, "dead")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), f"{name}_weight"))
    model.graph.node.insert(0, helper.make_node("Relu", [f"{name}_weight"], [name]))
    text = AttributeProto(name="value_string", s=b"x", type=AttributeProto.STRING)
    node = helper.make_node("Constant", [], [f"{name}_text"])
    node.attribute.append(text)
    model.graph.node.insert(rng.randrange(len(model.graph.node)), node)


def another_order(model: ModelProto, rng: random.Random) -> None:
    graph = model.graph
    result = {item.name for items in (graph.input, graph.initializer) for item in items} | {""}
    result |= {item.values.name for item in graph.sparse_initializer}
    left, ordered = list(graph.node), list[NodeProto]()
    while left:
        ready = [node for node in left if _reads(node) <= result]
        node = rng.choice(ready)
        ordered.append(node)
        left.remove(node)
        result |= set(node.output)
    del graph.node[:]
    graph.node.extend(ordered)


def _reads(node: NodeProto) -> set[str]:
    """The tensors that a node reads from outside itself."""
    results = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = {name for item in attribute.g.node for name in item.output} | {
                item.name for item in attribute.g.initializer
            }
            results |= set().union(*(_reads(item) for item in attribute.g.node)) - inner
    return results


def long_domains(model: ModelProto, rng: random.Random) -> None:
    for node in model.graph.node:  # onnxruntime does not know the domain's long name in subgraphs
        if not node.domain and rng.random() < 0.5:
            node.domain = "ai.onnx"
    version = _version(model)
    kept = [item for item in model.opset_import if item.domain not in ("", "ai.onnx")]
    del model.opset_import[:]
    spelled = [helper.make_opsetid(domain, version) for domain in rng.choice([("", "ai.onnx"), ("ai.onnx", "")])]
    model.opset_import.extend([*spelled, *kept, helper.make_opsetid("nobody.uses", 3)])


def functions(model: ModelProto, rng: random.Random) -> None:
    """Nodes in functions, some of which call others; functions with equal names have different overloads."""
    version = _version(model)
    if not any(item.domain == "own" for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid("own", 1))
    imports = [helper.make_opsetid("", version), helper.make_opsetid("own", 1)]
    plain = [item for item in model.graph.node if _is_plain(item)]
    if version < 17:  # onnxruntime crashes if a function holds one that the opset lacks
        plain = [item for item in plain if item.op_type != "LayerNormalization"]
    for number, node in enumerate(_some(plain, rng)):
        inputs = list(dict.fromkeys(name for name in node.input if name))
        names = {name: f"i{location}" for location, name in enumerate(inputs)} | {"": ""}
        inner = NodeProto()
        inner.CopyFrom(node)
        inner.name, inner.domain = "inner", ""
        inner.input[:] = [names[name] for name in node.input]
        inner.output[:] = [f"o{location}" for location in range(len(node.output))]
        overload = f"v{len(model.functions)}"
        body = [inner]
        values = [names[name] for name in inputs]
        if number % 2:  # a function that calls a function; onnxruntime does not support overloads there
            deep = f"Deep{len(model.functions)}"
            model.functions.append(_function(deep, values, list(inner.output), body, imports, ""))
            body = [_call(deep, values, list(inner.output), "")]
        model.functions.append(_function(f"F{node.op_type}", values, list(inner.output), body, imports, overload))
        called = _call(f"F{node.op_type}", inputs, list(node.output), overload)
        called.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="somewhere")
        node.CopyFrom(called)
    model.ir_version = max(model.ir_version, 10)


def _version(model: ModelProto) -> int:
    return next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))


def _is_plain(node: NodeProto) -> bool:
    return node.op_type not in ("Constant", "If") and node.domain in ("", "ai.onnx")


def _function(
    name: str, inputs: list[str], outputs: list[str], body: list[NodeProto], imports: list[onnx.OperatorSetIdProto],
    overload: str,
) -> onnx.FunctionProto:  # fmt: skip
    result = helper.make_function(
        "own", name, inputs, outputs, body, imports, overload=overload, doc_string="a function"
    )
    result.metadata_props.add(key="namespace", value="encoder")
    return result


def _call(name: str, inputs: list[str], outputs: list[str], overload: str) -> NodeProto:
    node = helper.make_node(name, inputs, outputs, domain="own")
    node.overload = overload
    return node


def branches(model: ModelProto, rng: random.Random) -> None:
    """Nodes inside an If whose condition is known: a weight, a constant, or folded from these."""
    kinds = {name: item.type for name, item in _infer(model).items()}
    plain = [item for item in model.graph.node if _is_plain(item) and item.output[0] in kinds and len(item.output) == 1]
    for node in _some(plain, rng, 2):
        taken = rng.random() < 0.5
        condition = _fresh(model, "condition")
        at = list(model.graph.node).index(node)
        form = rng.randrange(3)
        if form == 0:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(taken), condition))
        elif form == 1:
            value = numpy_helper.from_array(np.asarray([taken]))
            model.graph.node.insert(at, helper.make_node("Constant", [], [condition], value=value))
        else:
            source = f"{condition}_source"
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(not taken), source))
            model.graph.node.insert(at, helper.make_node("Not", [source], [condition]))
        inner = NodeProto()
        inner.CopyFrom(node)
        inner.output[:] = ["inside"]
        kind = kinds[node.output[0]]
        other = helper.make_tensor_value_info("inside", kind.tensor_type.elem_type, [])
        other.type.tensor_type.ClearField("shape")
        zero = np.zeros(1, helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
        weight = numpy_helper.from_array(zero, "inside_weight")
        graphs = [
            helper.make_graph([inner], "this", [], [other]),
            helper.make_graph(
                [helper.make_node("Identity", ["inside_weight"], ["inside"])], "that", [], [other], [weight]
            ),
        ]
        names = ("then_branch", "else_branch") if taken else ("else_branch", "then_branch")
        result = helper.make_node("If", [condition], list(node.output), **dict(zip(names, graphs, strict=True)))
        next(item for item in model.graph.node if item.output[:] == node.output[:]).CopyFrom(result)


def _infer(model: ModelProto) -> dict[str, onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {item.name: item for item in graph.value_info}


def more_outputs(model: ModelProto, rng: random.Random) -> None:
    """Inputs, weights and constants become outputs, or an output is listed twice."""
    graph = model.graph
    kinds = rng.sample(["input", "weight", "constant", "again"], rng.randrange(1, 4))
    for kind in kinds:
        if kind == "input":
            value = rng.choice(graph.input)
            graph.output.add().CopyFrom(value)
        elif kind == "again":
            graph.output.append(rng.choice(graph.output))
        elif kind == "weight":
            tensor = rng.choice([item for item in graph.initializer if item.data_type == TensorProto.FLOAT])
            graph.output.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            name = _fresh(model, "k")
            graph.node.insert(0, _constant(np.arange(3, dtype=np.float32), name, rng, True))
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]))


def descriptions(model: ModelProto, rng: random.Random) -> None:
    """Adds descriptions and inferred shapes, and removes outputs' shapes."""
    model.doc_string = model.graph.doc_string = "a model"
    model.metadata_props.add(key="padfree", value="{}")
    model.metadata_props.add(key="author", value="nobody")
    sparse = any(item.name == "sparse_value" for node in model.graph.node for item in node.attribute)
    if rng.random() < 0.5 and not sparse:  # for sparse constants ONNX infers types that their readers do not accept
        inferred = onnx.shape_inference.infer_shapes(model)
        del model.graph.value_info[:]
        model.graph.value_info.extend(inferred.graph.value_info)
    for value in model.graph.output:
        if rng.random() < 0.5:
            value.type.tensor_type.ClearField("shape")


def empty_inputs(model: ModelProto, rng: random.Random) -> None:
    """Optional inputs are left out by an empty name."""
    if _version(model) < 13:
        return  # they are attributes there
    for node in model.graph.node:
        if node.op_type in ("Clip", "Dropout", "Slice", "ReduceMean") and rng.random() < 0.7:
            most = {"Clip": 3, "Dropout": 3, "Slice": 5, "ReduceMean": 1}[node.op_type]
            node.input.extend([""] * (most - len(node.input)))


def narrow_ids(model: ModelProto, rng: random.Random) -> None:
    """Makes inputs int32."""
    value = rng.choice(model.graph.input)
    if value.type.tensor_type.elem_type != TensorProto.INT64:
        return
    value.type.tensor_type.elem_type = TensorProto.INT32
    wide = _fresh(model, f"{value.name}_wide")
    for node in _nodes(model.graph):
        node.input[:] = [wide if name == value.name else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Cast", [value.name], [wide], to=TensorProto.INT64))


def older_opset(model: ModelProto, rng: random.Random) -> None:
    """Attributes instead of inputs, and Softmax over all axes from one on."""
    if _version(model) != 17 or any(node.op_type == "Shape" and node.attribute for node in model.graph.node):
        return
    new = {"Range", "GreaterOrEqual", "LessOrEqual", "CumSum"} & {node.op_type for node in model.graph.node}
    version = rng.choice([12, 13] if new else [10, 11, 12, 13])
    values = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer} | {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in model.graph.node
        if node.op_type == "Constant"
    }
    for node in model.graph.node:
        if version < 13 and node.op_type in ("Squeeze", "Unsqueeze", "ReduceSum") and len(node.input) > 1:
            axes = [int(axis) for axis in values[node.input.pop()]]
            node.attribute.append(helper.make_attribute("axes", axes))
        if node.op_type == "Reshape":
            del node.attribute[:]  # allowzero=0
        if node.op_type == "Softmax" and version < 13:
            node.attribute[0].i = rng.choice([-1, 3]) if version > 10 else 3
        if node.op_type == "Clip" and version < 11:
            high, low = float(values[node.input.pop()]), float(values[node.input.pop()])
            node.attribute.extend([helper.make_attribute("min", low), helper.make_attribute("max", high)])
    for item in model.opset_import:
        item.version = version


def another_opset(model: ModelProto, rng: random.Random) -> None:
    """As ONNX's converter writes it; a later opset is declared where its operators are the same."""
    version = _version(model)
    if version != 17 or model.functions or model.graph.sparse_initializer:
        return
    model.CopyFrom(onnx.version_converter.convert_version(model, rng.choice([18, 19, 20, 21, 23])))
    if rng.random() < 0.5:
        for item in model.opset_import:
            item.version = max(item.version, rng.choice([24, 26])) if item.version == 23 else item.version


def weights_as_inputs(model: ModelProto, rng: random.Random) -> None:
    """As before IR version 4, when every weight was an input too; in later versions some of them are."""
    is_new = model.functions or any(node.op_type == "If" for node in model.graph.node)
    model.ir_version = model.ir_version if is_new else rng.choice([3, 4, 8])
    for tensor in model.graph.initializer:
        if model.ir_version == 3 or rng.random() < 0.5:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


Spelling = Callable[[ModelProto, random.Random], None]
# Each can follow those before it in this order; those of the second list come last, because onnxruntime or the
# comparison with the original cannot handle them.
SPELLINGS: tuple[Spelling, ...] = (
    older_opset, another_opset, narrow_ids, identities, dead_nodes, empty_inputs, more_outputs, tensor_names,
    branches, functions,
    weights_as_constants, constants_as_weights, sparse_weights, typed_weights, another_order, node_names, descriptions,
    long_domains,
)  # fmt: skip
LAST: tuple[Spelling, ...] = (weights_as_inputs, equal_node_names)
