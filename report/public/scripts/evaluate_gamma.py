"""Evaluate a submission: share of hadrons that survive a cut which keeps 75 % of the gammas; 0 is perfect."""

import argparse
import csv
import json
import math
from pathlib import Path

import numpy as np

METRIC, EFFICIENCY, GAMMA = "HadronSurvival", 0.75, 0


def read_submission(file: Path, n: int) -> np.ndarray:
    """Return (n,) finite scores, higher = more gamma-like; whatever is something else is refused."""
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))
    if not rows or rows[0] != ["gamma_score"] or len(rows) != n + 1 or any(len(row) != 1 for row in rows):
        raise SystemExit(f"expected a header 'gamma_score' and {n} rows")
    try:
        scores = np.array([float(row[0]) for row in rows[1:]])
    except ValueError:
        raise SystemExit("expected numbers, one a row") from None
    if not np.isfinite(scores).all():
        raise SystemExit("scores must be finite")
    return scores


def hadron_survival(truth: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of hadrons with at least the score of the gamma at 75 % efficiency; ties survive."""
    of_gammas = np.sort(scores[truth == GAMMA])[::-1]
    threshold = of_gammas[math.ceil(EFFICIENCY * len(of_gammas)) - 1]
    return float(np.mean(scores[truth != GAMMA] >= threshold))


score = hadron_survival


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
