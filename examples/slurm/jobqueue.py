"""A stack by workers that SLURM starts as they are needed, by dask-jobqueue 0.9 (pip install dask-jobqueue).

    python examples/slurm/jobqueue.py composition data runs/composition

Each worker is a job of its own: one that ends, killed or out of time, is replaced, and what it did is done again.
"""

import subprocess
import sys

from dask_jobqueue import SLURMCluster

if __name__ == "__main__":
    task, data, run = sys.argv[1:4]
    # With several processes in a job adapt() does not replace what is lost.
    with SLURMCluster(cores=1, processes=1, memory="3GB", walltime="01:00:00") as cluster:
        cluster.adapt(minimum=1, maximum=16)
        cluster.wait_for_workers(1)
        command = ["showerstack", "stack", "--task", task, "--data", data, "--run", run]
        sys.exit(subprocess.run([*command, "--scheduler", cluster.scheduler_address], check=False).returncode)
