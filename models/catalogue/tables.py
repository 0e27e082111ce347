"""Learners for tables of any origin: textbook settings that depend on the number of rows and on nothing else.

Chosen on tables that come with public packages, and tested on others: ``benchmarks/`` and ``docs/tables.md``.
"""

from __future__ import annotations

from showerstack.models.base.presets import PRESETS
from showerstack.models.base.spec import LearnerSpec

SMALL, MIDDLE, LARGE = 0, 2_000, 10_000
"""Training rows from which settings change."""

LEAST_GAIN = 1e-3
"""Log-loss that ``patience`` rounds must gain where there are few rows: a separable table gains a little for ever."""

_NUMBERS = "showerstack.models.tables.categories:AsNumbers"

LEARNERS: tuple[LearnerSpec, ...] = (
    LearnerSpec(
        "table.lightgbm",
        "showerstack.models.tables.lightgbm:LightGBM",
        "boosted trees, settings by rows",
        "all",
        settings={
            "rounds": 1500,
            "patience": 50,
            "lambda_l2": 1.0,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.8,
            "native": {"min_data_per_group": 20, "cat_smooth": 10.0},
        },
        by_rows=(
            (SMALL, {"num_leaves": 7, "min_data_in_leaf": 5, "learning_rate": 0.08, "least_gain": LEAST_GAIN}),
            (MIDDLE, {"num_leaves": 15, "min_data_in_leaf": 10, "learning_rate": 0.04}),
            (LARGE, {"num_leaves": 31, "min_data_in_leaf": 20, "learning_rate": 0.05}),
        ),
        best={"rounds": 4000, "patience": 120, "learning_rate": 0.02},
        source="LightGBM",
        presets=PRESETS,
        for_tables=True,
    ),
    LearnerSpec(
        "table.catboost",
        "showerstack.models.tables.catboost:CatBoost",
        "boosted symmetric trees, settings by rows",
        "all",
        settings={"rounds": 1500, "patience": 50, "l2_leaf_reg": 3.0, "rsm": 1.0, "border_count": 128},
        by_rows=(
            (SMALL, {"depth": 4, "learning_rate": 0.1, "border_count": 64, "least_gain": LEAST_GAIN}),
            (MIDDLE, {"depth": 6, "learning_rate": 0.06}),
            (LARGE, {"depth": 6, "learning_rate": 0.1}),
        ),
        best={"rounds": 4000, "patience": 120, "learning_rate": 0.03, "border_count": 254},
        source="CatBoost",
        presets=PRESETS,
        for_tables=True,
    ),
    LearnerSpec(
        "table.xgboost",
        "showerstack.models.tables.xgboost:XGBoost",
        "boosted trees on quantile bins, settings by rows",
        "all",
        settings={
            "rounds": 1500,
            "patience": 50,
            "learning_rate": 0.05,
            "min_child_weight": 1.0,
            "subsample": 0.8,
            "colsample_bytree": 0.7,
            "reg_lambda": 1.0,
        },
        by_rows=(
            (SMALL, {"max_depth": 3, "least_gain": LEAST_GAIN}),
            (MIDDLE, {"max_depth": 5}),
            (LARGE, {"max_depth": 6}),
        ),
        best={"rounds": 4000, "patience": 120, "learning_rate": 0.02},
        source="XGBoost",
        presets=("good", "best"),
        for_tables=True,
    ),
    LearnerSpec(
        "table.hist_boosting",
        "showerstack.models.tables.sklearn:HistBoosting",
        "histogram gradient boosting, settings by rows",
        "all",
        settings={"rounds": 1000, "patience": 40, "l2": 1.0, "column_share": 0.7},
        by_rows=(
            (SMALL, {"max_leaf_nodes": 7, "min_samples_leaf": 5}),
            (MIDDLE, {"max_leaf_nodes": 15, "min_samples_leaf": 10}),
            (LARGE, {"max_leaf_nodes": 31, "min_samples_leaf": 20}),
        ),
        source="scikit-learn",
        presets=("best",),
        for_tables=True,
    ),
    LearnerSpec(
        "table.random_forest",
        _NUMBERS,
        "bagged trees, categories as numbers",
        "all",
        settings={"learner": "showerstack.models.tables.sklearn:RandomForest", "trees": 300, "smoothing": 0.5},
        by_rows=(
            (SMALL, {"min_samples_leaf": 1}),
            (MIDDLE, {"min_samples_leaf": 2}),
            (LARGE, {"min_samples_leaf": 3}),
        ),
        quick={"trees": 200},
        best={"trees": 1000},
        source="scikit-learn",
        presets=("good", "best"),
        for_tables=True,
    ),
    LearnerSpec(
        "table.extra_trees",
        _NUMBERS,
        "extremely randomised trees, categories as numbers",
        "all",
        settings={
            "learner": "showerstack.models.tables.sklearn:ExtraTrees",
            "trees": 300,
            "smoothing": 0.5,
            "max_features": "sqrt",
        },
        by_rows=(
            (SMALL, {"min_samples_leaf": 1}),
            (MIDDLE, {"min_samples_leaf": 2}),
            (LARGE, {"min_samples_leaf": 3}),
        ),
        quick={"trees": 100},
        best={"trees": 1000},
        source="scikit-learn",
        presets=PRESETS,
        for_tables=True,
    ),
    LearnerSpec(
        "table.logistic",
        _NUMBERS,
        "logistic regression, categories as numbers",
        "all",
        settings={
            "learner": "showerstack.models.tables.logit:QuadraticLogit",
            "degree": 1,
            "strengths": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
            "max_iterations": 300,
        },
        source="scikit-learn",
        presets=PRESETS,
        for_tables=True,
    ),
    LearnerSpec(
        "table.quadratic_logit",
        _NUMBERS,
        "logistic regression with squares and products, categories as numbers",
        "all",
        settings={
            "learner": "showerstack.models.tables.logit:QuadraticLogit",
            "strengths": (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
            "max_terms": 600,
        },
        source="scikit-learn",
        presets=("good", "best"),
        for_tables=True,
    ),
    LearnerSpec(
        "table.mlp",
        _NUMBERS,
        "residual MLP, categories as numbers",
        "all",
        settings={"learner": "showerstack.models.networks.physics:TabularMLP", "weight_decay": 0.05},
        by_rows=(
            (
                SMALL,
                {
                    "width": 64,
                    "blocks": 1,
                    "hidden": 64,
                    "batch_size": 64,
                    "learning_rate": 2e-3,
                    "epochs": 50,
                    "patience": 12,
                },
            ),
            (MIDDLE, {"width": 128, "blocks": 2, "batch_size": 64, "epochs": 40, "patience": 10, "dropout": 0.15}),
            (LARGE, {"width": 128, "batch_size": 256, "epochs": 40, "patience": 8, "dropout": 0.15}),
        ),
        presets=PRESETS,
        for_tables=True,
    ),
)
