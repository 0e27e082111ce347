"""Prepare the data: ``data/train`` with labels, ``data/test`` without."""

import argparse
import shutil
from pathlib import Path


def main() -> None:
    """Copy arrays; the test's labels stay behind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-shared-data-dir", type=Path, required=True)
    parser.add_argument("--agent-data-mount-dir", type=Path, required=True)
    parser.add_argument("--agent-log-dir", type=Path)
    options = parser.parse_args()
    source = options.global_shared_data_dir / "DATASET" / "CONFIG"
    for split in ("train", "test"):
        target = options.agent_data_mount_dir / split
        target.mkdir(parents=True, exist_ok=True)
        for name in ("matrices.npy", "features.npy", *(("labels.npy",) if split == "train" else ())):
            shutil.copyfile(source / split / name, target / name)


if __name__ == "__main__":
    main()
