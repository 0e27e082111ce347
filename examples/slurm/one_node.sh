#!/bin/bash
#SBATCH --job-name=stack --cpus-per-task=16 --mem=32G --time=04:00:00 --signal=TERM@120 --requeue --open-mode=append
# A stack on one node. What the time limit or a preemption ends goes on when the job runs again:
#   sbatch examples/slurm/one_node.sh composition data runs/composition
set -euo pipefail
export OMP_WAIT_POLICY=passive SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun showerstack stack --task "$1" --data "$2" --run "$3" --time-limit 3h45m
