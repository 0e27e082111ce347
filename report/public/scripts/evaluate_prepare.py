"""Prepare the evaluation: ``data/test_with_labels`` and the submission."""

import argparse
import shutil
from pathlib import Path


def main() -> None:
    """Copy the test's labels and what was submitted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-shared-data-dir", type=Path, required=True)
    parser.add_argument("--agent-data-mount-dir", type=Path, required=True)
    parser.add_argument("--agent-log-dir", type=Path, required=True)
    options = parser.parse_args()
    target = options.agent_data_mount_dir / "test_with_labels"
    target.mkdir(parents=True, exist_ok=True)
    labels = options.global_shared_data_dir / "DATASET" / "CONFIG" / "test" / "labels.npy"
    shutil.copyfile(labels, target / "labels.npy")
    shutil.copyfile(options.agent_log_dir / "submission.csv", "submission.csv")


if __name__ == "__main__":
    main()
