#!/bin/bash
#SBATCH --job-name=runs --array=0-19 --cpus-per-task=1 --mem-per-cpu=2G --time=01:00:00 --requeue
# Predictions of many measured runs by a job array: each of its tasks takes every twentieth folder, in one program, whose
# start costs as much as half a run. Submitted again, it does what is missing:
#   sbatch examples/slurm/runs.sh runs/composition data/measured predictions
set -euo pipefail
part=$3/part-$SLURM_ARRAY_TASK_ID
rm -rf "$part"
mkdir -p "$part"
mapfile -t folders < <(find "$2" -mindepth 1 -maxdepth 1 -type d ! -name '*.features' | sort)
for ((k = SLURM_ARRAY_TASK_ID; k < ${#folders[@]}; k += SLURM_ARRAY_TASK_COUNT)); do
    [ -e "$3/$(basename "${folders[k]}").npz" ] || ln -s "$(realpath "${folders[k]}")" "$part"
done
if [ -n "$(ls "$part")" ]; then
    showerstack predict --run "$1" --data "$part" --out "$3" --no-table
fi
rm -r "$part"
