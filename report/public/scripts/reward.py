"""Score a submission: prints the metric, writes the reward (0 to 1) into a file; nothing valid is worth 0."""

import argparse
from pathlib import Path

import numpy as np
from evaluate import METRIC, read_submission, reward, score  # type: ignore[import-not-found]


def main() -> None:
    """Write the reward."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission-file", type=Path, required=True)
    parser.add_argument("--reward-file", type=Path, required=True)
    options = parser.parse_args()
    truth = np.load(Path(__file__).parent / "labels.npy", allow_pickle=False).astype(int)
    try:
        result = score(truth, read_submission(options.submission_file, len(truth)))
        value = reward(result, truth)
        print(f"{METRIC} {result}, reward {value}")
    except (OSError, UnicodeDecodeError, SystemExit) as reason:
        value = 0.0
        print(f"no valid submission: {reason}; reward 0")
    options.reward_file.write_text(f"{value}\n")


if __name__ == "__main__":
    main()
