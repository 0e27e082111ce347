#!/usr/bin/env bash
# threadpoolctl 3.8.0: threadpool_limits(limits=1, user_api="openmp") limits OpenMP alone, and gives back the numbers of
# threads of all libraries when it ends, those of BLAS too, as they were when it began. One expects it to leave alone what
# it was not asked to limit.
# Met with threads of one process, of which one limits OpenMP while another one has BLAS at 1 for a moment: the first ends
# last, and BLAS stays at 1 in the whole process. A limit on BLAS that was meant to stay is likewise undone.
# Remedy: ThreadpoolController().select(user_api="openmp").limit(limits=1), which gives back those of OpenMP alone.
# Guess written down before: BLAS stays at 1. Seen on two cores: BLAS at 2, at 1 inside, at 2 again afterwards; with
# select at 1.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'threadpoolctl==3.8.0' 'numpy==2.4.6'
cat > "$work/look.py" <<'PY'
import numpy  # brings OpenBLAS
import threadpoolctl


def number() -> int:
    return next(pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")


first = number()
assert first > 1, "a machine with two cores or more is needed"
with threadpoolctl.threadpool_limits(limits=1, user_api="openmp"):
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")  # to stay
    inside = number()
after = number()
with threadpoolctl.ThreadpoolController().select(user_api="openmp").limit(limits=1):
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")
selected = number()
print(f"threadpoolctl {threadpoolctl.__version__}, threads of BLAS: {first}, inside {inside}, afterwards {after}; with select {selected}")
assert (inside, after, selected) == (1, first, 1), "this has changed"
PY
"$work/venv/bin/python" "$work/look.py"
