#!/bin/bash
# openvino 2026.4.1 on the processor, f32 asked for: Clip, Max, Min and Relu of NaN are a number, Exp of NaN is infinite,
# and Softmax of a row with a NaN has NaN in that place alone; onnxruntime 1.32.0 gives NaN in all of them. Guess before
# running: NaN stays NaN in element-wise operators.
# Met where a graph looks for missing values after it has limited them (isnan of a clamp): they are none any more, and a
# prediction is wrong by any amount. Look for NaN in the raw inputs, before anything is made of them.
# Seen: Clip(NaN, -4, 4) = -4, Relu(NaN) = 0, Exp(NaN) = inf; IsNaN, Abs and sums are right.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q numpy onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 2>/dev/null
"$W/v/bin/python" - "$W/m.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper

x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
limits = [onnx.numpy_helper.from_array(np.float32(value), name) for value, name in ((-4, "low"), (4, "high"))]
values, seen = np.array([[np.nan, 1.0]], np.float32), {}
for kind, inputs in (("Clip", ["x", "low", "high"]), ("Relu", ["x"]), ("Exp", ["x"]), ("Abs", ["x"])):
    needed = limits if kind == "Clip" else []
    graph = helper.make_graph([helper.make_node(kind, inputs, ["y"])], "g", [x], [y], needed)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), sys.argv[1])
    one = onnxruntime.InferenceSession(sys.argv[1]).run(None, {"x": values})[0][0, 0]
    compiled = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    seen[kind] = float(one), float(np.array(compiled({"x": values})[0])[0, 0])
    print(f"{kind}: onnxruntime {seen[kind][0]}, openvino {seen[kind][1]}")
as_seen = {kind: other for kind, (_, other) in seen.items() if kind != "Abs"} == {"Clip": -4.0, "Relu": 0.0, "Exp": np.inf}
right = all(np.isnan(one) for one, _ in seen.values()) and np.isnan(seen["Abs"][1])
sys.exit(0 if as_seen and right else "this has changed")
PY
