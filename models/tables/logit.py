"""Multinomial logit with squares and products of the inputs: the smoothest borders, exact for Gaussian classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from showerstack.models.base.inputs import InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import event_log_loss, log_of_margins
from showerstack.models.tables.base import TableLearner, TableRows, goes_on
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_npz
from showerstack.runtime.processes import limited_threads
from showerstack.runtime.shared import ignored

MODEL_FILE = "quadratic_logit.npz"
TERM_ROWS = 1 << 14
"""Rows whose terms are in memory at once in a prediction: 90 MB for 700 of them."""


class QuadraticLogit(TableLearner):
    """Regularised multinomial logistic regression (scikit-learn) on linear and quadratic terms.

    Settings: ``strengths``, the inverse penalties C tried from strong to weak until validation gets worse;
    ``degree``, 2, or 1 for linear terms alone;
    ``max_terms``, above which products, then squares are left out (most important is what comes first in the table);
    linear terms stay. ``max_events``, a random subset of the training events; with more linear terms than ``max_terms``
    it is smaller by as much, so that memory is bounded. ``max_iterations`` of L-BFGS.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "degree": 2,
        "strengths": (1e-4, 1e-3, 1e-2),
        "max_terms": 700,
        "max_events": 200_000,
        "max_iterations": 120,
    }

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        rows = _at_most(int(self.chosen["max_events"]), np.arange(len(train.labels)), seed)
        self.inputs_ = InputTransform.fit(_as_batch(train.table[rows], self.columns_), self.columns_)
        limit = self._most_events(self.inputs_.n_inputs)
        rows = _at_most(limit, rows, seed)
        x, weights = self._terms(train.table[rows]), None if train.weights is None else train.weights[rows]
        # Validation orders three strengths: a quarter as many events as training does it, at a fixed memory.
        valid_rows = _at_most(max(1, limit // 4), np.arange(len(valid.labels)), seed)
        x_valid, y_valid = self._terms(valid.table[valid_rows]), valid.labels[valid_rows]
        w_valid = None if valid.weights is None else valid.weights[valid_rows]
        strengths = [float(c) for c in self.chosen["strengths"]]
        model = LogisticRegression(max_iter=int(self.chosen["max_iterations"]), warm_start=True, tol=1e-4)
        best = np.inf
        for k, strength in enumerate(strengths):
            model.set_params(C=strength)
            # Stopping L-BFGS early is a mild regulariser too; validation decides between the strengths.
            with limited_threads(self.threads), ignored(ConvergenceWarning):
                model.fit(x, train.labels[rows], sample_weight=weights)
            log_q = log_of_margins(x_valid @ model.coef_.T + model.intercept_)
            loss = event_log_loss(log_q, y_valid, w_valid)
            if loss >= best:
                break
            best, self.weights_, self.bias_ = loss, model.coef_.copy(), model.intercept_.copy()
            if progress and not goes_on(progress, k + 1, len(strengths), loss):
                break

    inputs_: InputTransform
    weights_: np.ndarray
    bias_: np.ndarray

    def _terms(self, table: np.ndarray) -> np.ndarray:
        """Return (n, T) float64 linear terms, squares, and as many products as ``max_terms`` allows."""
        x = self.inputs_.apply(_as_batch(table, self.columns_)).astype(np.float64)
        if self.chosen["degree"] == 1:
            return x
        squared = x[:, : self.n_squares(x.shape[1])]
        first, second = self.products(x.shape[1])
        return np.hstack([x, squared * squared, x[:, first] * x[:, second]])

    def _most_events(self, n_inputs: int) -> int:
        """Return how many events may be learned from at once."""
        terms = int(self.chosen["max_terms"])
        return max(1, int(self.chosen["max_events"]) * terms // max(terms, n_inputs))

    def n_squares(self, n_inputs: int) -> int:
        """Return of how many inputs, from the first, the squares are terms."""
        return min(n_inputs, max(0, int(self.chosen["max_terms"]) - n_inputs))

    def products(self, n_inputs: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions (P,) int64 of both inputs of every product."""
        first, second = np.triu_indices(n_inputs, k=1)
        n_products = max(0, int(self.chosen["max_terms"]) - 2 * n_inputs)
        # In order of the later partner: products among the first inputs come first.
        order = np.lexsort((first, second))[:n_products]
        return first[order], second[order]

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        parts = [table[k : k + TERM_ROWS] for k in range(0, len(table), TERM_ROWS)]
        with limited_threads(self.threads):
            return np.concatenate([log_of_margins(self._margins(part)) for part in parts])

    def _margins(self, table: np.ndarray) -> np.ndarray:
        """Return (n, C) sums of all terms: products as quadratic forms of the inputs that have them."""
        x = self.inputs_.apply(_as_batch(table, self.columns_)).astype(np.float64)
        n_inputs, n_classes = x.shape[1], len(self.weights_)
        margins = x @ self.weights_[:, :n_inputs].T + self.bias_
        if self.chosen["degree"] == 1:
            return margins
        n_squares = self.n_squares(n_inputs)
        first, second = self.products(n_inputs)
        squared = x[:, :n_squares]
        margins += (squared * squared) @ self.weights_[:, n_inputs : n_inputs + n_squares].T
        if len(second):
            m = int(second.max()) + 1
            form = np.zeros((m, n_classes, m))
            form[first, :, second] = self.weights_[:, n_inputs + n_squares :].T
            inner = np.ascontiguousarray(x[:, :m])
            halves = (inner @ form.reshape(m, -1)).reshape(len(x), n_classes, m)
            margins += np.matmul(halves, inner[:, :, None])[:, :, 0]
        return margins

    @property
    def n_parameters(self) -> int:
        """Number of coefficients."""
        return int(self.weights_.size + self.bias_.size)

    def _write(self, folder: Path) -> None:
        write_npz(folder / MODEL_FILE, weights=self.weights_, bias=self.bias_)

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        self.inputs_ = InputTransform.from_state(header["inputs"])
        try:
            content = read_arrays(folder / MODEL_FILE, "weights", "bias")
            self.weights_, self.bias_ = content["weights"], content["bias"]
        except KeyError as error:
            raise InputError(f"{folder / MODEL_FILE} holds no quadratic logit: {error} is missing") from None

    def _state(self) -> dict[str, Any]:
        return {"inputs": self.inputs_.state()}


def _at_most(limit: int, rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows, or a random part of them in the same order."""
    return rows if len(rows) <= limit else np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))


def _as_batch(table: np.ndarray, columns: tuple[str, ...]) -> Batch:
    return Batch(index=np.arange(len(table)), table=table, columns=columns)
