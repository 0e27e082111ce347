"""Evaluate a submission: mean fraction error over 1,001 mixtures of the five primaries; 0 is perfect."""

import argparse
import csv
import itertools
import json
from pathlib import Path

import numpy as np

METRIC, CLASSES, MIXTURE, SEED = "MeanFractionError", 5, 5000, 2026


def read_submission(file: Path, n: int) -> np.ndarray:
    """Return (n,) labels 0..4; whatever is something else is refused."""
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))
    if not rows or rows[0] != ["label"] or len(rows) != n + 1:
        raise SystemExit(f"expected a header 'label' and {n} rows")
    if any(len(row) != 1 or row[0] not in {"0", "1", "2", "3", "4"} for row in rows[1:]):
        raise SystemExit("expected whole numbers 0..4, one a row")
    return np.array([int(row[0]) for row in rows[1:]])


def fraction_error(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean of |true - predicted fraction| over classes and mixtures in steps of a tenth."""
    rng = np.random.default_rng(SEED)
    members = [np.flatnonzero(truth == k) for k in range(CLASSES)]
    errors = []
    for parts in itertools.product(range(11), repeat=CLASSES - 1):
        left = 10 - sum(parts)
        if left < 0:
            continue
        counts = MIXTURE // 10 * np.array([*parts, left])
        drawn = [rng.choice(members[k], size=counts[k], replace=True) for k in range(CLASSES) if counts[k]]
        found = np.bincount(predicted[np.concatenate(drawn)], minlength=CLASSES)
        errors.append(np.abs(counts - found) / MIXTURE)
    return float(np.mean(errors))


score = fraction_error


def main() -> None:
    """Print the result as the format wants it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission-file", "--submission_file", type=Path, required=True)
    truth = np.load(Path("data") / "test_with_labels" / "labels.npy", allow_pickle=False).astype(int)
    result = score(truth, read_submission(parser.parse_args().submission_file, len(truth)))
    print("--- EVALUATION RESULT ---")
    print(json.dumps({METRIC: result}))


if __name__ == "__main__":
    main()
