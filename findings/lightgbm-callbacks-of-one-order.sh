#!/usr/bin/env bash
# lightgbm 4.7.0: callbacks whose attribute `order` is the same run in no order that the caller can know. train() puts
# them into a set before it sorts them, so that among equals addresses in memory decide. One expects the order of the
# list, since sorting is stable in Python and callbacks without the attribute do keep that order.
# Met with a callback that ends training at a time limit beside early stopping, both of order 30: which of them raises
# first decides best_iteration. It also changes what a callback reads that another one is to have written before.
# Remedy: an order of its own for each callback; those without the attribute run in the order of the list, before others.
# Guess written down before: the order of the list. Seen: six of order 25 ran as 4 1 5 3 0 2, then as 0 1 2 3 5 4 and
# 0 1 2 5 3 4 in one process; without the attribute as 0 1 2 3 4 5.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'lightgbm==4.7.0' 'numpy==2.4.6' 'scipy==1.17.1'
cat > "$work/look.py" <<'PY'
import lightgbm
import numpy as np


def ran(order):
    said = []

    def make(number):
        def callback(env):
            if env.iteration == 0:
                said.append(number)

        if order is not None:
            callback.order = order
        return callback

    x = np.random.default_rng(0).random((100, 3))
    data = lightgbm.Dataset(x, (x[:, 0] > 0.5).astype(int))
    lightgbm.train({"objective": "binary", "verbosity": -1}, data, 1, callbacks=[make(k) for k in range(6)])
    return said


without, equal = ran(None), [ran(25) for _ in range(3)]
print(f"lightgbm {lightgbm.__version__}: six callbacks without an order ran as {without}, of one order as {equal}")
assert without == [0, 1, 2, 3, 4, 5] and any(one != without for one in equal), "this has changed"
PY
"$work/venv/bin/python" "$work/look.py"
