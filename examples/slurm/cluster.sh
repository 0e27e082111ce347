#!/bin/bash
#SBATCH --job-name=cluster --ntasks=32 --cpus-per-task=1 --mem-per-cpu=3G --time=04:00:00
# Features, a stack and predictions by a Dask cluster that lives as long as the job, on one node or many. The folder must
# be the same on all of them (pip install 'showerstack[cluster]'):
#   sbatch examples/slurm/cluster.sh composition data runs/composition
set -euo pipefail
export FILE=scheduler-$SLURM_JOB_ID.json
trap 'kill $(jobs -p); rm -f "$FILE"' EXIT
dask scheduler --scheduler-file "$FILE" --port 0 --no-dashboard &
srun dask worker --scheduler-file "$FILE" --nthreads 1 --nworkers 1 --no-dashboard &
address=$(python -c '
import os
from distributed import Client
client = Client(scheduler_file=os.environ["FILE"])
client.wait_for_workers(1)
print(client.scheduler.address)')
for part in train test; do
    showerstack features "$2/$1_$part" --scheduler "$address"
done
showerstack stack --task "$1" --data "$2" --run "$3" --scheduler "$address"
showerstack predict --run "$3" --data "$2/$1_test" --out "$3-test.npz" --scheduler "$address"
