"""Published systems: a learner, its features and its settings under one name, to be compared on the same data.

They follow the published descriptions as far as those go; what is not described (schedules, mostly) is ours. Where a
system saw the shower age, it sees it here only if the protocol has it.
"""

from __future__ import annotations

from dataclasses import replace

from showerstack.models.base.spec import LearnerSpec
from showerstack.showers.schema import COMPOSITION, GAMMA, SCALAR_NAMES

BENCHMARK = "public benchmark (astro-bench)"
JINST_2024 = "JINST 19 (2024) P01025"
ICRC_2021 = "PoS(ICRC2021)"

_LENET = "showerstack.models.networks.images:LeNetLearner"
_FLAT = "showerstack.models.networks.images:FlatMLPLearner"
_HYBRID = "showerstack.models.networks.images:HybridLearner"
_RESNET = "showerstack.models.networks.images:ResNetLearner"
_VIT = "showerstack.models.networks.images:ViTLearner"
_AVERAGE = "showerstack.models.base.average:LearnerAverage"

COMPOSITION_SYSTEMS = (
    LearnerSpec(
        "published.rf5",
        "showerstack.models.tables.sklearn:RandomForest",
        "random forest on the 5 scalars",
        SCALAR_NAMES,
        settings={"trees": 500, "min_samples_leaf": 1, "smoothing": 0.5},
        quick={"trees": 150},
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
    ),
    LearnerSpec(
        "published.lenet",
        _LENET,
        "LeNet on raw MeV with an auxiliary head, 36.8 k weights with age",
        None,
        settings={"scalars": ("Ne", "Nmu", "Age", "Ze"), "grid": "raw", "augment": False, "ema": 0.0},
        quick={"epochs": 12},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=JINST_2024,
        weights=36_690,
    ),
    LearnerSpec(
        "published.lenet_wide",
        _LENET,
        "LeNet with batch norm and 32 channels, 139 k weights",
        None,
        settings={"channels": 32, "norm": True, "dense": (256, 128), "auxiliary": False, "augment": False},
        quick={"epochs": 8},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
        weights=139_397,
    ),
    LearnerSpec(
        "published.hybrid_sam",
        _HYBRID,
        "CNN with channel attention + MLP, log1p, SAM, 8 symmetries, 0.73 M weights",
        None,
        settings={"optimiser": "sam", "sam_radius": 0.05},
        quick={"epochs": 5},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
        weights=732_577,
    ),
    LearnerSpec(
        "published.mlp512",
        _FLAT,
        "MLP 512-512 on the flattened grid, ELU and batch norm",
        None,
        settings={"hidden": (512, 512), "activation": "elu", "norm": True, "augment": False},
        quick={"epochs": 8},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
        weights=532_997,
    ),
    LearnerSpec(
        "published.mlp517",
        _FLAT,
        "MLP on the 517 cells and scalars, 512-512",
        None,
        settings={"hidden": (512, 512), "activation": "relu", "norm": False, "augment": False},
        quick={"epochs": 8},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
        weights=530_949,
    ),
    LearnerSpec(
        "published.hgb54",
        "showerstack.models.tables.sklearn:HistBoosting",
        "histogram boosting on scalars and array-centred grid statistics",
        "published-grid",
        settings={"learning_rate": 0.1, "max_leaf_nodes": 31, "l2": 0.0, "column_share": 1.0},
        quick={"rounds": 100},
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
    ),
    LearnerSpec(
        "published.hgb24",
        "showerstack.models.tables.sklearn:HistBoosting",
        "histogram boosting on scalars and their expressions",
        "scalars",
        settings={"learning_rate": 0.1, "max_leaf_nodes": 31, "l2": 0.0, "column_share": 1.0},
        quick={"rounds": 100},
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
    ),
    LearnerSpec(
        "published.vit",
        _VIT,
        "vision transformer on 4 x 4 patches, 4 layers of 128, 0.57 M weights",
        None,
        quick={"epochs": 6},
        needs_grid=True,
        tasks=(COMPOSITION.name,),
        source=BENCHMARK,
        weights=567_845,
    ),
)

GAMMA_SYSTEMS = (
    LearnerSpec(
        "published.gamma_ensemble",
        _AVERAGE,
        "attention CNN, ResNet and ViT averaged",
        None,
        settings={"members": ({"learner": _HYBRID}, {"learner": _RESNET}, {"learner": _VIT}), "space": "probability"},
        quick={"common": {"epochs": 3}},
        needs_grid=True,
        tasks=(GAMMA.name,),
        source=BENCHMARK,
        weights=2_012_226,
    ),
    LearnerSpec(
        "published.gamma_rf",
        "showerstack.models.tables.sklearn:RegressionForest",
        "random-forest regressor of the label",
        SCALAR_NAMES,
        settings={"trees": 500, "min_samples_leaf": 1, "smoothing": 0.5},
        quick={"trees": 150},
        tasks=(GAMMA.name,),
        source=ICRC_2021,
    ),
    LearnerSpec(
        "published.gamma_mlp_ensemble",
        _AVERAGE,
        "four MLPs averaged, half of them trained with balanced classes",
        None,
        settings={
            "members": (
                {"learner": _FLAT, "settings": {"class_weights": "balanced"}},
                {"learner": _FLAT},
                {"learner": _FLAT, "settings": {"class_weights": "balanced"}},
                {"learner": _FLAT},
            ),
            "space": "probability",
        },
        quick={"common": {"epochs": 4}},
        needs_grid=True,
        tasks=(GAMMA.name,),
        source=BENCHMARK,
        weights=2_125_832,
    ),
    LearnerSpec(
        "published.gamma_dnn_physics",
        _AVERAGE,
        "MLP and boosted trees on scalars and their expressions, averaged",
        "scalars",
        settings={
            "members": (
                {"learner": "showerstack.models.networks.physics:TabularMLP"},
                {"learner": "showerstack.models.tables.lightgbm:LightGBM"},
            ),
            "space": "probability",
        },
        tasks=(GAMMA.name,),
        source=BENCHMARK,
        weights=101_890,
    ),
    LearnerSpec(
        "published.hit_transformer",
        "showerstack.models.networks.stations:HitTransformerLearner",
        "transformer encoder on raw hits, 2 layers, 2 heads, 16 dimensions, weighted loss",
        None,
        settings={"class_weights": "balanced"},
        quick={"epochs": 4},
        needs_grid=True,
        tasks=(GAMMA.name,),
        source=BENCHMARK,
        weights=5_506,
    ),
)

FEWER = 513 * (len(COMPOSITION.classes) - len(GAMMA.classes))
"""Weights of the last layer that two classes less do without."""
BOTH_TASKS = tuple(
    replace(entry, name=entry.name.replace(".", ".gamma_"), tasks=(GAMMA.name,), weights=(entry.weights or 0) - FEWER)
    for entry in COMPOSITION_SYSTEMS
    if entry.learner == _FLAT
)
"""The MLPs on the grid were published for both tasks."""

LEARNERS: tuple[LearnerSpec, ...] = (*COMPOSITION_SYSTEMS, *GAMMA_SYSTEMS, *BOTH_TASKS)
