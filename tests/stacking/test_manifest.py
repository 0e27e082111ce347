"""A run's manifest is what its JSON Schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from packaging.version import Version
from pydantic import ValidationError

from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.files import read_json
from showerstack.stacking.config import TableConfig
from showerstack.stacking.manifest import Manifest, schema
from showerstack.stacking.run import MANIFEST_FILE
from showerstack.stacking.train import stack

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "manifest.schema.json"


def test_the_documented_schema_is_made_from_the_source() -> None:
    message = "python -m showerstack.stacking.manifest > docs/manifest.schema.json"
    assert _plain(read_json(DOCUMENTED)) == _plain(schema()), message


def _plain(content: Any) -> Any:
    """Return a schema without what earlier versions of pydantic do not say of dataclasses."""
    if Version(pydantic.VERSION) >= Version("2.14"):
        return content
    if isinstance(content, dict):
        unsaid = ("additionalProperties", "description")
        return {name: _plain(value) for name, value in content.items() if name not in unsaid}
    return [_plain(value) for value in content] if isinstance(content, list) else content


@pytest.mark.parametrize("kind", ["composition_run", "gamma_run", "table_run"])
def test_manifests_hold_what_the_schema_says(kind: str, request: pytest.FixtureRequest) -> None:
    content = read_json(request.getfixturevalue(kind) / MANIFEST_FILE)
    manifest = Manifest.model_validate_json(json.dumps(content), strict=True)
    assert manifest.complete
    assert {row.name for row in manifest.learners or ()} == set(manifest.learner_versions)
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Manifest.model_validate(content | {"no_such_entry": 1})


@pytest.fixture
def table_run(fakes: dict[str, LearnerSpec], two_gaussians: tuple[Path, Path], tmp_path: Path) -> Path:
    """A finished run on a table; one of its learners failed."""
    learners = ("fake_linear", "fake_failing")
    config = TableConfig(
        run=tmp_path / "run", table=two_gaussians[0], label="kind", preset="quick", learners=learners, workers=1
    )
    return stack(config).run
