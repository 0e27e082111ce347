#!/bin/bash
# joblib 1.6.0: Parallel(initializer=...) calls the initializer in worker processes alone. With n_jobs=1, and with the
# threading backend, it is never called, and nothing is said: what it was to set is missing in every task.
# Guess before running: it is called once in this process, or refused, where there are no worker processes.
# Met where a run with one worker, as one debugs it or as a small machine chooses it, behaves otherwise than with two.
# What to do: call the initializer by hand if n_jobs is 1 or the backend has no processes.
# Seen: loky and multiprocessing with 2 jobs set the variable in all tasks; the other four ways in none.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q joblib==1.6.0 2>/dev/null
cat > "$W/ask.py" <<'PY'
import os

import joblib


def prepare(value):
    os.environ["PREPARED"] = value


def look(_):
    return os.environ.get("PREPARED")


if __name__ == "__main__":
    for jobs in (1, 2):
        for backend in ("loky", "multiprocessing", "threading"):
            os.environ.pop("PREPARED", None)
            pool = joblib.Parallel(n_jobs=jobs, backend=backend, initializer=prepare, initargs=("yes",))
            found = pool(joblib.delayed(look)(k) for k in range(4))
            print(f"joblib {joblib.__version__}, {jobs} jobs, {backend}: {found.count('yes')} of 4 tasks are prepared")
            assert found.count("yes") == (4 if jobs == 2 and backend != "threading" else 0)
PY
cd "$W" && "$W/v/bin/python" ask.py
