"""What a run is identified by besides its data and options: the code of its parts, and their libraries.

Imports nothing slow.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.code import imported_files, source_hash

TASK_MODULE, CODE_OF_FITS = "showerstack.stacking.fit.tasks", ("showerstack.models", "showerstack.stacking")


REGISTRY = "showerstack.models.registry"
"""Knows all learners; what it says of one is counted by itself."""


LIBRARIES = {
    "lightgbm": "lightgbm", "xgboost": "xgboost", "catboost": "catboost", "torch": "torch", "sklearn": "scikit-learn",
    "scipy": "scipy",
}  # fmt: skip
"""Packages whose version can change a fit, by the name under which they are imported."""


def fit_code_version(spec: LearnerSpec) -> str:
    """Return a hash of the code of a learner's fits, and of the libraries that they are done with.

    Counted are the modules of ours that the learner and the task around it import, directly or not: a change of another
    learner, of a meta-learner or of what follows leaves finished fits as they are.
    """
    members = [str(member.get("learner", "")) for member in spec.settings.get("members", ())]
    modules = [path.partition(":")[0] for path in (spec.learner, *members)]
    files = {file for module in (TASK_MODULE, *modules) for file in imported_files(module, CODE_OF_FITS, (REGISTRY,))}
    libraries = [name for start, name in LIBRARIES.items() if any(_uses(file, start) for file in files)]
    return source_hash(sorted(files), ("numpy", *libraries))


@cache
def stacking_code_version() -> str:
    """Return a hash of the source of learners and stacking: finished tasks of other code are done again."""
    source = Path(__file__).parents[2]
    return source_hash([source / "models", source / "stacking"])[:16]


@cache
def _uses(file: Path, library: str) -> bool:
    return bool(re.search(rf"^\s*(import|from) {library}\b", file.read_text(encoding="utf-8"), re.MULTILINE))
