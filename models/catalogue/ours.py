"""Our own learners, among them those that start from the pretrained shower network
(:mod:`showerstack.models.pretraining`).

Settings are those that won on simulated events (``benchmarks/learning/peers.py``, documentation). In the presets
``quick`` and ``good`` are the three boosters, a network on grids and what a stack would miss
(``benchmarks/learning/marginal.py``, docs/benchmarks/peers.md).
"""

from __future__ import annotations

from showerstack.models.base.presets import PRESETS
from showerstack.models.base.spec import LearnerSpec

FITS = "fits+core"
"""Fits with the fitted core itself, for networks that turn with the array or place stations around it."""

ALWAYS, LONG, LONGEST = PRESETS, PRESETS[1:], PRESETS[2:]
"""Presets that train a learner."""

TREES = (
    LearnerSpec(
        "lightgbm",
        "showerstack.models.tables.lightgbm:LightGBM",
        "boosted trees, slow and shallow",
        "fits",
        quick={"learning_rate": 0.1, "rounds": 400, "patience": 25, "max_bin": 127},
        best={"learning_rate": 0.025, "rounds": 5000, "patience": 120},
        source="LightGBM",
        presets=ALWAYS,
    ),
    LearnerSpec(
        "lightgbm_linear",
        "showerstack.models.tables.lightgbm:LightGBM",
        "boosted trees with linear leaves",
        "fits",
        settings={"linear_tree": True, "num_leaves": 4, "learning_rate": 0.08, "lambda_l2": 10.0},
        quick={"learning_rate": 0.15, "rounds": 300, "patience": 20},
        best={"learning_rate": 0.04, "rounds": 4000, "patience": 100},
        source="LightGBM",
        presets=LONGEST,
    ),
    LearnerSpec(
        "xgboost",
        "showerstack.models.tables.xgboost:XGBoost",
        "boosted trees on quantile bins",
        "fits",
        quick={"learning_rate": 0.12, "rounds": 400, "patience": 25, "max_bin": 128},
        best={"learning_rate": 0.025, "rounds": 5000, "patience": 120},
        source="XGBoost",
        presets=ALWAYS,
    ),
    LearnerSpec(
        "catboost",
        "showerstack.models.tables.catboost:CatBoost",
        "boosted symmetric trees",
        "fits",
        quick={"learning_rate": 0.15, "rounds": 400, "patience": 25, "border_count": 64},
        best={"learning_rate": 0.03, "rounds": 5000, "patience": 120},
        source="CatBoost",
        presets=ALWAYS,
    ),
    LearnerSpec(
        "hist_boosting",
        "showerstack.models.tables.sklearn:HistBoosting",
        "histogram gradient boosting",
        "fits+profile",
        quick={"learning_rate": 0.1, "rounds": 200, "patience": 15},
        best={"learning_rate": 0.03, "rounds": 2000, "patience": 60},
        source="scikit-learn",
        presets=LONGEST,
    ),
    LearnerSpec(
        "random_forest",
        "showerstack.models.tables.sklearn:RandomForest",
        "bagged trees with smoothed leaves",
        "fits",
        quick={"trees": 80, "min_samples_leaf": 20},
        best={"trees": 1000},
        source="scikit-learn",
        presets=LONGEST,
    ),
    LearnerSpec(
        "extra_trees",
        "showerstack.models.tables.sklearn:ExtraTrees",
        "extremely randomised trees with smoothed leaves",
        "fits",
        quick={"trees": 150, "min_samples_leaf": 12},
        best={"trees": 1000},
        source="scikit-learn",
        presets=LONGEST,
    ),
)

SMOOTH = (
    LearnerSpec(
        "quadratic_logit",
        "showerstack.models.tables.logit:QuadraticLogit",
        "multinomial logit with squares and products",
        "fits",
        quick={"max_iterations": 60},
        source="scikit-learn",
        presets=LONGEST,
    ),
    LearnerSpec(
        "mlp",
        "showerstack.models.networks.physics:TabularMLP",
        "residual MLP on features",
        "fits",
        quick={"epochs": 10},
        presets=LONG,
        weights=107_525,
    ),
    LearnerSpec(
        "mlp_bag",
        "showerstack.models.base.average:LearnerAverage",
        "four residual MLPs of different seeds, pooled",
        "fits",
        settings={"members": ({"learner": "showerstack.models.networks.physics:TabularMLP"},) * 4},
        quick={"common": {"epochs": 8}},
        presets=LONGEST,
        weights=430_100,
    ),
)

GRID_NETWORKS = (
    LearnerSpec(
        "lenet",
        "showerstack.models.networks.images:LeNetLearner",
        "LeNet on log1p grids with 8 symmetries",
        None,
        quick={"epochs": 12},
        needs_grid=True,
        least_grid=12,
        source="JINST 19 (2024) P01025",
        presets=LONGEST,
        weights=37_050,
    ),
    LearnerSpec(
        "lenet_fits",
        "showerstack.models.networks.images:LeNetLearner",
        "the same with fitted quantities as scalars",
        FITS,
        settings={"dropout": 0.2, "epochs": 8},
        best={"epochs": 16},
        needs_grid=True,
        least_grid=12,
        presets=ALWAYS,
        weights=43_050,
    ),
    LearnerSpec(
        "hybrid",
        "showerstack.models.networks.images:HybridLearner",
        "CNN with channel attention + MLP on fits",
        FITS,
        quick={"epochs": 6},
        best={"epochs": 25, "patience": 8},
        needs_grid=True,
        presets=LONGEST,
        weights=738_977,
    ),
    LearnerSpec(
        "resnet",
        "showerstack.models.networks.images:ResNetLearner",
        "residual CNN with fits as scalars",
        FITS,
        quick={"epochs": 6},
        needs_grid=True,
        source="arXiv:1512.03385",
        presets=LONGEST,
        weights=719_365,
    ),
    LearnerSpec(
        "vit",
        "showerstack.models.networks.images:ViTLearner",
        "vision transformer with fits as a token",
        FITS,
        quick={"epochs": 8},
        needs_grid=True,
        least_grid=4,
        source="arXiv:2010.11929",
        presets=LONGEST,
        weights=572_645,
    ),
    LearnerSpec(
        "set_transformer",
        "showerstack.models.networks.stations:SetTransformerLearner",
        "attention over hit stations around the core",
        FITS,
        quick={"epochs": 6},
        needs_grid=True,
        source="arXiv:1810.00825",
        presets=LONGEST,
        weights=111_077,
    ),
    LearnerSpec(
        "physics",
        "showerstack.models.networks.physics:PhysicsLearner",
        "stations around the core + CNN, pooled; lg A head",
        FITS,
        quick={"epochs": 8},
        best={"epochs": 30, "patience": 8},
        needs_grid=True,
        presets=LONGEST,
        weights=887_179,
    ),
)

PRETRAINED: tuple[LearnerSpec, ...] = (
    LearnerSpec(
        "pretrained",
        "showerstack.models.pretraining.learner:PretrainedLearner",
        "shower network of randomised worlds, fine-tuned",
        "fits+profile",
        by_rows=((15_000, {"batch_size": 512, "learning_rate": 1.4e-3}),),
        in_float32={"batch_size": 256, "learning_rate": 1e-3},
        presets=ALWAYS,
        pretrained=True,
        uses_truth=True,
        one_network=True,
        weights=1_100_889,
        version=7,
    ),
)

LEARNERS: tuple[LearnerSpec, ...] = (*TREES, *SMOOTH, *GRID_NETWORKS, *PRETRAINED)
