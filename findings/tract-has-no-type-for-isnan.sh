#!/bin/bash
# tract 0.23.9 (PyPI) takes the result of IsNaN of a float64 for float64: And(Not(IsNaN(x)), mask), which exporters write
# for "known and wanted", is refused as a model ("No super type for F64 and Bool"); And(LessOrEqual(Abs(x), inf), mask)
# says the same and loads. Guess before running: both load, IsNaN is in tract's list of operators.
# Met where a graph replaces missing values before a network.
# Seen: the first is refused, the second gives onnxruntime's numbers.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q numpy onnx==1.23.2 onnxruntime==1.32.0 tract==0.23.9 2>/dev/null
"$W/v/bin/python" - "$W/m.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import tract
from onnx import TensorProto, helper

x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", 3]) for name in "xy")
constants = {"mask": np.array([True, True, False]), "zero": np.zeros(3), "inf": np.array(np.inf)}
ways = {
    "IsNaN": [("IsNaN", ["x"], "bad"), ("Not", ["bad"], "good")],
    "LessOrEqual": [("Abs", ["x"], "size"), ("LessOrEqual", ["size", "inf"], "good")],
}
values, found = np.array([[1.0, np.nan, 3.0]]), {}
for name, first in ways.items():
    steps = [*first, ("And", ["good", "mask"], "kept"), ("Where", ["kept", "x", "zero"], "y")]
    nodes = [helper.make_node(kind, inputs, [output]) for kind, inputs, output in steps]
    inits = [
        onnx.numpy_helper.from_array(value, one)
        for one, value in constants.items() if any(one in inputs for _, inputs, _ in steps)
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], inits)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), sys.argv[1])
    right = onnxruntime.InferenceSession(sys.argv[1]).run(None, {"x": values})[0]
    try:
        answer = tract.onnx().load(sys.argv[1]).into_model().into_runnable().run([values])[0].to_numpy()
        found[name] = bool(np.array_equal(answer, right))
    except tract.TractError as error:
        found[name] = next((line.split(": ")[1] for line in str(error).splitlines() if "No super type" in line), "else")
    print(f"{name}: {found[name]}")
sys.exit(0 if found == {"IsNaN": "No super type for F64 and Bool", "LessOrEqual": True} else "this has changed")
PY
