"""The report: one self-contained file with everything in it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from report.public.submission import write_submission, yaml_lines
from report.run_page import write_report
from runtime.errors import InputError
from stacking.run.folder import write_run_checksums


@pytest.mark.parametrize("task", ["composition", "gamma"])
def test_report_is_one_self_contained_file(task: str, request: pytest.FixtureRequest) -> None:
    file = request.getfixturevalue(f"{task}_report")
    assert file == request.getfixturevalue(f"{task}_world")[0] / "report.html"
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', text)
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style).*?</\1>", "", text, flags=re.DOTALL))
    assert not {"nan", "none", "inf"} & set(words.lower().split())
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert reference in identifiers, reference
    assert "#102a31" not in text, "ink must take the page's colour"


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *place: False)  # permissions do not bind the superuser
    with pytest.raises(InputError, match=f"{tmp_path} cannot be written: choose another place"):
        write_report(tmp_path, tmp_path / "nothing is read")


def test_composition_report_has_its_sections(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    for key in (
        "summary",
        "learners",
        "confusion",
        "fractions",
        "reliability",
        "gallery",
        "cost",
        "provenance",
    ):
        assert f'<section id="{key}">' in text
    assert "The showers are simulated" in text
    assert "lenet failed and was left out: out of memory" in text
    assert text.count("<figure>") >= 15


def test_gamma_report_has_its_sections(gamma_report: Path) -> None:
    text = gamma_report.read_text(encoding="utf-8")
    for key in ("summary", "learners", "survival", "reliability", "gallery"):
        assert f'<section id="{key}">' in text
    assert "drawn for orientation only" in text
    for words in (
        "Q-factor at 75 % gamma efficiency",
        "gamma efficiency at hadron survival 0.001",
        "area under the ROC",
    ):
        assert words in text
    assert "accuracy" not in re.sub(
        r"<svg.*?</svg>", "", text[text.index("<h1>") : text.index("<nav>")], flags=re.DOTALL
    )
    assert "hadrons left, one threshold" in text


def test_the_headline_says_what_its_number_means(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    top = text[text.index("<h1>") : text.index("<nav>")]
    for words in ("composition: mass composition", "0 perfect, 0.158 random", "the best published is 0.105"):
        assert words in top
    assert "mean difference between the true and the predicted fraction" in " ".join(top.split())


def test_tables_scroll_with_a_hint_on_a_phone(composition_report: Path) -> None:
    style = composition_report.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert 'content: "tables scroll sideways \\2192"' in style
    assert "overflow-x: auto" in style


NAME = "$_$<img src=x onerror=alert(1)>|`[a](b)`"
"""Broken mathematics, a picture that calls a script, a table's border and a link: yet a name of a file."""
HOSTILE = NAME + "\x1b[2J\n# x"


def _renamed(run: Path, target: Path) -> Path:
    """Copy a run and call its forest something hostile (file names cannot hold a slash)."""
    shutil.copytree(run, target)
    text = (target / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    manifest["learners"][0]["name"] = NAME
    manifest["learners"][-1] |= {"error": HOSTILE}
    manifest["gate"]["reason"] = HOSTILE
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (target / "test" / "random_forest.npz").rename(target / "test" / f"{NAME}.npz")
    write_run_checksums(target)
    return target


def test_hostile_names_in_report_and_submission(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run = _renamed(composition_world[0], tmp_path / "run")
    data = composition_world[1]
    text = write_report(run, data).read_text(encoding="utf-8")
    assert "<img" not in text
    assert "$_$&lt;img" in text, "the picture shows the name as it is"
    assert "\x1b" not in re.sub(r"<(p|td|li)\b.*?</\1>", "", text, flags=re.DOTALL)
    folder = write_submission([run], "mine", data=data, out=tmp_path)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<img|^# x|\x1b", readme, flags=re.MULTILINE)
    metadata = (folder / "metadata.yaml").read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", metadata)


def test_yaml_holds_what_yaml_forbids_as_escapes() -> None:
    (line,) = yaml_lines({"name": "a\x9b\x7f\u2028\ufeffb"})
    assert line == 'name: "a\\u009b\\u007f\\u2028\\ufeffb"'


def test_report_loads_and_runs_nothing(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'")
    assert "script" not in policy[1]
    assert text.index("Content-Security-Policy") < text.index("<title>")
