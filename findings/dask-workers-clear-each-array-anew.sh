#!/usr/bin/env bash
# distributed 2026.8.0 on Linux with glibc: a worker faults in the pages of nearly every temporary array again. Its nanny
# starts it with MALLOC_TRIM_THRESHOLD_=65536 (config distributed.nanny.pre-spawn-environ), so that free memory goes back
# to the system. One expects that to matter for memory alone. But any threshold that is set switches off glibc's own,
# moving ones (mallopt(3)): each array of 128 KiB or more is mapped and unmapped for itself, or its pages are given back
# when it is freed, and the system clears them for the next one.
# The variable also stays in the environment of a process that has started a LocalCluster, and goes to its children.
# Met when training was spread over workers: a loop of a small torch network took 1.2 to 1.5 times the processor time of
# the same loop outside; larger fits differed by less than they scatter.
# Remedy: mallopt at the start of a task, or another value in the config of whoever starts the workers.
# Seen: 200 pairs of arrays of a megabyte, after larger ones: 102,800 page faults in a worker and in a process with that
# variable, none without it.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'distributed==2026.8.0' 'dask==2026.8.0' 'numpy==2.4.6'
cat > "$work/look.py" <<'PY'
import os
import resource
import subprocess
import sys

import numpy as np


def faults() -> int:
    larger = [np.ones(1 << 18) for _ in range(3)]
    del larger  # glibc moves its thresholds by what is freed
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(200):
            pair = np.ones(1 << 17), np.ones(1 << 17)
            del pair
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


if __name__ == "__main__":
    if sys.argv[1:] == ["alone"]:
        print(faults())
        sys.exit()
    import distributed

    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ, "unset it first"
    alone, alike = (
        int(subprocess.run([sys.executable, __file__, "alone"], env=os.environ | more, capture_output=True, check=True).stdout)
        for more in ({}, {"MALLOC_TRIM_THRESHOLD_": "65536"})
    )
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        setting = client.submit(os.environ.get, "MALLOC_TRIM_THRESHOLD_").result()
        in_worker = client.submit(faults).result()
    print(f"distributed {distributed.__version__}, MALLOC_TRIM_THRESHOLD_={setting}: page faults of 200 pairs of arrays")
    left = os.environ.get("MALLOC_TRIM_THRESHOLD_")
    print(f"left in the environment of the process that started the cluster: {left}")
    print(f"in a worker {in_worker:,}; in a process with that variable {alike:,}; without it {alone:,}")
    assert setting == "65536" and in_worker > 40_000 and alike > 40_000 and alone < 5_000 and left == "65536", "this has changed"
PY
"$work/venv/bin/python" "$work/look.py"
