"""What a run is going to do, decided once, before its folder is touched: configuration, identity, fits, processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import devices_for
from showerstack.runtime.code import command_line, git_revision, machine, now_utc, versions
from showerstack.runtime.context import Context
from showerstack.runtime.files import hash_json
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.showers.nuclei import groups_entry
from showerstack.stacking.config import SECOND_LEVEL, RunConfig, StackConfig, TableConfig
from showerstack.stacking.events import Data, open_showers
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import Folds
from showerstack.stacking.stated import Begun, Configuration, Identity, Inputs
from showerstack.stacking.tables.data import open_table
from showerstack.stacking.training.budget import Budget
from showerstack.stacking.training.fits import FoldTask
from showerstack.stacking.training.schedule import Processes

OPEN: Mapping[type[RunConfig], Callable[..., Data]] = {StackConfig: open_showers, TableConfig: open_table}


@dataclass(frozen=True)
class Plan:
    """A run before its fits."""

    data: Data
    """With the final configuration."""
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    budget: Budget
    identity: Mapping[str, Any]
    """Everything that can change a prediction."""

    @classmethod
    def of(cls, config: RunConfig, ctx: Context, *, strict: bool = False) -> Self:
        """Open the data of a configuration and decide what is done with them; ``strict`` as for :func:`stack`."""
        data = OPEN[type(config)](config, ctx, strict=strict)
        budget = Budget.of(data.config, data.costs, ctx)
        data = replace(data, config=budget.configured(data.config))
        devices = devices_for(data.config.learner_specs(data.task), data.config.device)
        data = data.pinned()
        return cls(data, devices, budget, identity_of(data, devices))

    @property
    def run(self) -> RunFolder:
        """Where it is written."""
        return RunFolder(self.data.config.run)

    @cached_property
    def processes(self) -> Processes:
        """Processes that fit; rows of a table are counted once they are written."""
        return Processes.of(self.data.config, self.data.task, self.data.train, self.devices)

    @property
    def of_fits(self) -> dict[str, Any]:
        """What of the identity can change a fit of a learner."""
        return {name: value for name, value in self.identity.items() if name not in SECOND_LEVEL}

    @property
    def versions(self) -> dict[str, Any]:
        """Version numbers of ours that can change a prediction."""
        return {
            "stacking_version": STACKING_VERSION,
            "features_version": self.data.train.origin().features_version,
            "learner_versions": {spec.name: spec.version for spec in self.data.config.learner_specs(self.data.task)},
        }

    @property
    def finished(self) -> dict[str, Any]:
        """What the manifest of such a run says when it is finished."""
        return {"config_hash": hash_json(self.identity), **self.versions}

    @property
    def n_fits(self) -> int:
        """Fits of each learner."""
        return self.data.config.n_folds * self.data.config.repeats

    def tasks(self) -> list[FoldTask]:
        """Return every (learner, fold), in the order in which they begin."""
        data, config = self.data, self.data.config
        # A fit does not depend on how often the folds are repeated: more repetitions keep those that are there.
        fits_hash = hash_json({name: value for name, value in self.of_fits.items() if name != "repeats"})
        specs, workers = self.budget.in_order(config.learner_specs(data.task)), sum(self.processes.by_device.values())

        def registered(spec: LearnerSpec) -> list[Any]:
            return [spec.learner, spec.version, spec.features, spec.settings_for(config.preset)]

        return [
            FoldTask(
                run=self.run,
                spec=spec,
                fold=fold,
                n_folds=config.n_folds,
                train=data.train,
                test=data.test,
                columns=data.train.columns_for(spec),
                classes=data.task.classes,
                preset=config.preset,
                settings=config.settings_of(spec.name),
                seed=config.seed,
                device=self.devices[spec.name],
                threads=config.threads,
                valid_fraction=config.valid_fraction,
                off_cut_weight=config.off_cut_weight,
                rows=config.rows_of(spec.name),
                time=self.budget.of_fit(spec, fold, self.n_fits, workers, specs),
                context_hash=hash_json([fits_hash, STACKING_VERSION, registered(spec)]),
            )
            for spec in specs
            for fold in range(self.n_fits)
        ]

    def begun(self, folds: Folds, remarks: list[str]) -> Begun:
        """Return the manifest before the fits."""
        data, train, test, origin = self.data, self.data.train, self.data.test, self.data.train.origin()
        inputs = Inputs(
            train=str(train.location),
            test=str(test.location) if test is not None else None,
            train_fingerprint=self.identity["train_fingerprint"],
            test_fingerprint=test.events_fingerprint() if test is not None else None,
            train_source=origin.source,
            train_scalars=origin.scalars_type,
            train_quantities=dict(data.quantities),
            test_source=test.origin().source if test is not None else None,
            n_train=len(train),
            n_judged=int(folds.in_evaluation.sum()),
            n_holdout=int(folds.holdout.sum()),
            n_test=len(test) if test is not None else 0,
            grouped=folds.groups is not None,
        )
        more: dict[str, Any] = {"label_type": data.label_type} if data.label_type else {}
        more |= groups_entry(data.task) if data.task.has_own_groups else {}
        return Begun(
            complete=False,
            task=data.task.name,
            classes=list(data.task.classes),
            config=Configuration(**data.config.model_dump(mode="json")),
            identity=Identity(**self.identity),
            **self.finished,
            seed=data.config.seed,
            data=inputs,
            remarks=remarks,
            versions=versions(),
            started=now_utc(),
            machine=machine(),
            command=command_line(),
            git_revision=git_revision(),
            device=self.identity["device"],
            **more,
        )


def identity_of(data: Data, devices: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that can change a prediction."""
    task, train, test = data.task, data.train, data.test
    content = {**data.config.identity(), "task": task.name, "classes": list(task.classes)}
    content["device"] = "cuda" if "cuda" in devices.values() else "cpu"
    content["train_fingerprint"] = train.fingerprint()
    content["test_fingerprint"] = test.fingerprint() if test is not None else None
    if task.target:
        content["target"] = asdict(task.target) | {"limits": list(task.target.limits)}
    if task.has_own_groups:
        content |= groups_entry(task)
    if content["device"] == "cuda":
        content["devices"] = dict(devices)
    uses_truth = any(spec.uses_truth for spec in data.config.learner_specs(task))
    if uses_truth and (fingerprint := train.targets_fingerprint()):
        content["targets_fingerprint"] = fingerprint
    return content
