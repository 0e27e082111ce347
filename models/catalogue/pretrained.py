"""Learners that start from the shower network pretrained on simulated showers (:mod:`models.pretraining`)."""

from __future__ import annotations

from models.spec import LearnerSpec

LEARNERS: tuple[LearnerSpec, ...] = (
    LearnerSpec(
        "pretrained",
        "models.pretraining.learner:PretrainedLearner",
        "shower network of randomised worlds, fine-tuned",
        "fits+profile",
        presets=("good", "best"),
        only_showers=True,
        uses_truth=True,
        last_out=True,  # docs/methods/pretraining.md, docs/benchmarks/scale.md: best with 5,000 to 1.2 million showers
    ),
    LearnerSpec(
        "pretrained_features",
        "models.pretraining.features:PretrainedFeatures",
        "CatBoost on the fits and on what the pretrained network says, which stays as it is",
        "fits+profile",
        settings={"members": ({"learner": "models.tables.catboost:CatBoost"},)},
        only_showers=True,
    ),
)
