"""Folds: which fit may learn from which events.

Folds are stratified: events sorted by class and energy bin, in random order inside, go to the folds in turn. Every fold
gets the same share of each class and of each class's energy bins to within one event. Events of one group (the same
simulated shower) stay together, so no shower is ever in two folds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.stacking.sample import Labelled, Sample

MIN_PER_CLASS = 100
"""With fewer events of any class passing the evaluation cuts, all events count as passing. Bins of a true quantity,
which are classes of such a task, need so many together: the outermost have few under any cuts."""
EVALUATION_FOLDS = 5
"""Folds of the holdout, where something is both fitted and scored there."""
LG_ENERGY_EDGES = (15.0, 15.5, 16.0, 16.5, 17.0)
"""Borders of the benchmark's energy bins, lg(E/eV)."""


def assign_folds(
    labels: np.ndarray,
    n_folds: int,
    *,
    seed: int,
    energy: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    classes: tuple[str, ...] | None = None,
) -> np.ndarray:
    """Assign events to two folds or more, stratified by class and energy bin, groups kept together.

    Same seed, same events: same folds.

    Parameters
    ----------
    labels
        (N,) integer class numbers.
    energy
        (N,) lg(E/eV), or None for no stratification in energy.
    groups
        (N,) integers; equal values stay together. A group counts as one of the rarest class that it holds.
    classes
        Class names, for messages.

    Returns
    -------
    (N,) int8, 0..n_folds-1.
    """
    labels = np.asarray(labels)
    refuse_small_classes(labels, n_folds, classes, groups)
    first, group_of_event = _groups_of(groups, labels)
    group_energy = None if energy is None else np.asarray(energy)[first]
    order = _stratified_order(labels[first], group_energy, np.random.SeedSequence([seed, n_folds]))
    fold_of_group = np.empty(len(first), dtype=np.int8)
    # One round through the classes: what does not divide evenly starts where the last class stopped.
    fold_of_group[order] = np.arange(len(first)) % n_folds
    return fold_of_group[group_of_event]


def class_counts(labels: np.ndarray, groups: np.ndarray | None, n_classes: int = 0) -> np.ndarray:
    """Return the number of events of each class, or of groups that hold it, (C,) int64."""
    if groups is None:
        return np.bincount(labels, minlength=n_classes)
    _, group_of_event = np.unique(groups, return_inverse=True)
    class_of_pair = np.unique(np.stack([group_of_event, labels]), axis=1)[1]
    return np.bincount(class_of_pair, minlength=n_classes)


def evaluation_events(
    passing: np.ndarray,
    labels: np.ndarray,
    n_classes: int,
    usable: np.ndarray | None = None,
    *,
    of_bins: bool = False,
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, str]:
    """Return the events for calibration, meta-learner and decision, (N,) bool, and a remark if it is all of them.

    They are the events that pass the evaluation cuts; where a class has fewer than :data:`MIN_PER_CLASS` of those,
    all events that are ``usable``, (N,) bool. Classes that are bins of a true quantity need so many together, and one
    each: of showers that fail the cuts the energy would be corrected by another bias. Of these, events of one of the
    ``groups`` (N,) count once.
    """
    counts = np.bincount(labels[passing], minlength=n_classes)
    together = of_bins and counts.min() > 0
    showers = np.flatnonzero(passing) if groups is None else np.unique(groups[passing])
    fewest, what = (len(showers), "showers") if together else (counts.min(), "events of one class")
    if fewest >= MIN_PER_CLASS or passing.all():
        return passing, ""
    remark = (
        f"only {fewest} {what} pass the evaluation cuts (fewer than {MIN_PER_CLASS}): "
        "all training events are used for calibration, meta-learner and decision"
    )
    return np.ones(len(labels), dtype=bool) if usable is None else usable, remark


def choose_holdout(
    in_evaluation: np.ndarray,
    labels: np.ndarray,
    share: float,
    *,
    seed: int,
    energy: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    least: int = MIN_PER_CLASS,
) -> tuple[np.ndarray, str]:
    """Return the events that no learner is trained on, (N,) bool, and a remark if there are none.

    They are assigned by the rules of :func:`assign_folds`: stratified by class and energy bin, groups kept together.

    Parameters
    ----------
    in_evaluation
        (N,) bool: events of the kind that predictions are scored on; only these, and all events of their groups, are
        taken.
    labels, energy, groups
        One value per event.
    share
        Of those events (or their groups), 0 to 0.5; 0 takes none.
    least
        With fewer events of a class none are taken: so few would decide nothing, and training needs them.
    """
    none = np.zeros(len(labels), dtype=bool)
    if share == 0:
        return none, "without an outer holdout single fits are scored out-of-fold, but their average predicts"
    rows = np.flatnonzero(in_evaluation)
    first, group_of_row = _groups_of(None if groups is None else groups[rows], labels[rows])
    group_energy = None if energy is None else energy[rows][first]
    order = _stratified_order(labels[rows][first], group_energy, np.random.SeedSequence([seed]))
    # Evenly spread along the order: every class and energy bin gives its share to within one group.
    taken = np.empty(len(first), dtype=bool)
    taken[order] = np.diff(np.floor(np.arange(len(first) + 1) * share + 0.5)) > 0
    holdout = none.copy()
    holdout[rows] = taken[group_of_row]
    n_classes = int(labels.max()) + 1
    minima = [(int(np.bincount(labels[holdout], minlength=n_classes).min()), least, "events")]
    if groups is not None:
        n_groups = class_counts(labels[holdout], groups[holdout], n_classes)
        minima.append((int(n_groups.min()), EVALUATION_FOLDS, "groups"))
    for fewest, needed, what in minima:
        if fewest < needed:
            return none, (
                f"too few {what} for an outer holdout ({fewest} of one class, fewer than {needed}): single fits are "
                "scored out-of-fold, but their average predicts, so the gain stated for the stack is too large"
            )
    if groups is not None:
        holdout = np.isin(groups, np.unique(groups[holdout]))
    return holdout, ""


def _groups_of(groups: np.ndarray | None, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the event that stands for each group, the first of its rarest class, and the group number of each event.

    The rarest class is that of fewest events: a patient of many visits, one of them ill, counts as one who is ill.
    """
    n_events = len(labels)
    if groups is None:
        return np.arange(n_events), np.arange(n_events)
    _, group_of_event = np.unique(groups, return_inverse=True)
    order = np.lexsort((np.arange(n_events), np.bincount(labels)[labels], group_of_event))
    first = order[np.searchsorted(group_of_event[order], np.arange(int(group_of_event.max()) + 1))]
    return first, group_of_event


def _stratified_order(label: np.ndarray, energy: np.ndarray | None, seed: np.random.SeedSequence) -> np.ndarray:
    """Return the order in which groups are distributed: by class and energy bin, at random inside."""
    energy_bin = np.zeros(len(label)) if energy is None else _energy_bins(energy)
    return np.lexsort((np.random.default_rng(seed).permutation(len(label)), energy_bin, label))


def _energy_bins(energy: np.ndarray) -> np.ndarray:
    """Return the benchmark's bin of each energy (n,); where all lie in one of them, bins of equal content."""
    known = energy[np.isfinite(energy)]
    if len(known) and len(np.unique(np.digitize(known, LG_ENERGY_EDGES))) == 1:
        return np.digitize(energy, np.quantile(known, np.arange(1, 6) / 6))
    return np.digitize(energy, LG_ENERGY_EDGES)


def early_stopping_rows(
    rows: np.ndarray,
    labels: np.ndarray,
    fraction: float,
    *,
    seed: int,
    energy: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Return which training ``rows`` serve early stopping, (n,) bool, chosen by the rules of :func:`assign_folds`.

    Parameters
    ----------
    rows
        (n,) positions in the full arrays.
    labels, energy, groups
        Full arrays, one value per event of the dataset.
    fraction
        Wanted share, between 0 and 1: kept to within one event or group.
    """
    label = np.asarray(labels)[rows]
    first, group_of_row = _groups_of(None if groups is None else groups[rows], label)
    seeds = np.random.SeedSequence([seed, max(2, round(1.0 / fraction))])
    order = _stratified_order(label[first], None if energy is None else energy[rows][first], seeds)
    taken = np.empty(len(first), dtype=bool)
    taken[order] = np.diff(np.floor(np.arange(-1, len(first)) * fraction + 1e-9)) > 0
    for_stopping = taken[group_of_row]
    # A class of one shower is for learning, not for stopping.
    for k in np.setdiff1d(label, label[~for_stopping]):
        for_stopping[label == k] = False
    return for_stopping


def refuse_small_classes(
    labels: np.ndarray, n_folds: int, classes: tuple[str, ...] | None, groups: np.ndarray | None, where: str = ""
) -> None:
    """Refuse a class of fewer events, or groups that hold it, than folds; ``where`` begins the message."""
    counts = class_counts(labels, groups, len(classes) if classes else 0)
    counted = "events" if groups is None else "groups of events"
    for number in np.flatnonzero(counts < n_folds):
        if classes is None and counts[number] == 0:
            continue
        name = classes[number] if classes else str(number)
        raise InputError(f"{where}class {name!r} has {counts[number]} {counted}, fewer than the {n_folds} folds")


@dataclass
class Folds:
    """The fold of every training event, and what choices need of the events."""

    partitions: np.ndarray
    """(R, N) int8, one row a repetition; -1 in the holdout, the same in every repetition."""
    in_evaluation: np.ndarray
    """(N,) bool: events of the kind that predictions are scored on."""
    labels: np.ndarray
    """(N,) int64."""
    weights: np.ndarray | None = None
    """(N,) importance weights, where the events have any."""
    groups: np.ndarray | None = None
    """(N,) groups, where the events have any."""
    remarks: tuple[str, ...] = ()

    def sample(self, rows: np.ndarray) -> Sample:
        """Return the events that ``rows`` (N,) bool names, with the folds of the first partition."""
        return Sample(self.labels, self.partitions[0], self.groups, self.weights).take(rows)

    @property
    def out_of_fold(self) -> np.ndarray:
        """(N,) bool: events under the evaluation cuts that are predicted out-of-fold."""
        return self.in_evaluation & (self.partitions[0] >= 0)

    @property
    def holdout(self) -> np.ndarray:
        """(N,) bool: events under the evaluation cuts that no fit learns from."""
        return self.in_evaluation & (self.partitions[0] < 0)


def make_folds(
    events: Labelled,
    classes: tuple[str, ...],
    *,
    n_folds: int,
    repeats: int,
    holdout: float,
    least: int,
    seed: int,
) -> Folds:
    """Set the holdout apart and assign the other events to folds, or to those that are given.

    Events that are not usable are in no fold and not scored, so nothing is trained or measured on them. For the others
    see :func:`choose_holdout`, which wants ``least`` events of each class, and :func:`assign_folds`.
    """
    labels, usable, energy, groups = events.labels, events.usable, events.energy, events.groups
    of_bins = events.offsets is not None
    in_evaluation, cuts_remark = evaluation_events(
        events.passing, labels, len(classes), usable, of_bins=of_bins, groups=groups
    )
    outer, holdout_remark = choose_holdout(
        in_evaluation, labels, holdout, seed=seed, energy=energy, groups=groups, least=least
    )
    partitions = np.full((repeats, len(labels)), -1, dtype=np.int8)
    if events.folds is not None:
        partitions[:] = events.folds
    else:
        rows = np.flatnonzero(~outer if usable is None else ~outer & usable)
        for repeat in range(repeats):
            partitions[repeat, rows] = assign_folds(
                labels[rows],
                n_folds,
                seed=seed + 1_000_003 * repeat,
                energy=None if energy is None else energy[rows],
                groups=None if groups is None else groups[rows],
                classes=classes,
            )
    remarks = tuple(filter(None, (cuts_remark, holdout_remark)))
    return Folds(partitions, in_evaluation, labels, events.weights, groups, remarks)
