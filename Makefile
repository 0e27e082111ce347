# make demo   simulate, features, stack, predict, verify, report: both tasks, minutes on 2 cores
# make test   the test suite in some three minutes, in as many processes as there are cores (at most 4); a part of it: make test TESTS=tests/scoring
# make test-all  with what takes longer: pages, notebooks, installations, scripts, toys in full size, kills and damages in full number
# make lint   ruff and mypy
# make docs   the documentation as a site in site/, with the API reference and executed notebooks; offline once its packages are installed
# make pictures  the figures of the documentation, from stored results and from the simulation
# make release  what a version consists of, in dist/: wheel, sdist, documentation, task cards, SHA-256 of each
# make clean  remove the virtual environment, caches and what the demo wrote
PYTHON ?= python3
VENV   := .venv
# Versions of the libraries to install.
CONSTRAINTS ?= constraints.txt
BIN    := $(VENV)/bin
# Where Linux has no GPU, XGBoost without CUDA: 700 MB less.
TESTED ?= $(if $(shell command -v nvidia-smi),test,test-cpu)

# One numerical thread a process and several processes, for which modules are compiled once; LightGBM's OpenMP threads would otherwise spin while they wait.
export OMP_WAIT_POLICY := passive

.PHONY: demo test test-all lint docs pictures release clean env
demo: env
	$(BIN)/python cli.py demo

# Tests of a file share what they make: one process takes them (the groups of pytest-xdist 3.8 mean nothing to pytest 9.2).
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: env
	$(PYTEST) $(TESTS)

# A part of it: make test-all SELECT=slow
SELECT ?=
test-all: env
	$(PYTEST) -m "$(SELECT)" $(TESTS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Notebooks become pages with their outputs, in a copy of docs/; links to them follow.
define LINKS_TO_PAGES
import re
from pathlib import Path
for page in Path("build/docs").rglob("*.md"):
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"\]\(([^() :]*)\.ipynb\)", r"](\1.md)", text), encoding="utf-8")
endef
export LINKS_TO_PAGES
docs: $(VENV)/.docs
	rm -rf build/docs build/notebooks
	mkdir -p build/notebooks
	cp -R docs build/docs
	TMPDIR=$(CURDIR)/build/notebooks $(BIN)/jupyter-nbconvert --execute --to markdown build/docs/notebooks/*.ipynb
	rm -rf build/notebooks build/docs/notebooks/*.ipynb
	$(BIN)/python -c "$$LINKS_TO_PAGES"
	$(BIN)/zensical build --strict
	@echo "open site/index.html"

pictures: env
	$(BIN)/python -m benchmarks.figures
	$(BIN)/python -m benchmarks.world.simulation_pictures

# The same bytes from the same files: names in order, nobody's, of the time of the commit. Tables of features are left out.
define ARCHIVE
import gzip, os, sys, tarfile
from pathlib import Path
target, top, name = sys.argv[1:]
def plain(one):
    one.uid, one.gid, one.uname, one.gname, one.mtime = 0, 0, "", "", int(os.environ["SOURCE_DATE_EPOCH"])
    return None if one.name.endswith(".features") else one
with open(target, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(Path(top, name), name, filter=plain)
endef
define SUMS
import hashlib
from pathlib import Path
for file in sorted(Path().iterdir()):
    if file.name != "SHA256SUMS":
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")
endef
export ARCHIVE SUMS
# A tag v0.1.0 is of that version, and of a repository that has an address.
define TAGGED
import subprocess, sys, tomllib
from pathlib import Path
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
command = ["git", "describe", "--exact-match", "--match", "v*"]
tag = subprocess.run(command, capture_output=True, text=True).stdout.strip()
if tag and tag != f"v{project['version']}":
    sys.exit(f"the tag {tag} is of another version than pyproject.toml, {project['version']}")
if tag and "example.org" in project["urls"]["Repository"]:
    sys.exit(f"{tag} has no address: give the repository's in pyproject.toml (docs/release.md)")
endef
export TAGGED
# Files carry the time of the commit where their formats allow it.
release: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct)
release: docs
	$(BIN)/python -c "$$TAGGED"
	rm -rf dist build
	mkdir -p dist build/release
	$(BIN)/python -c "from setuptools import build_meta as b; print(b.build_sdist('build/release'), b.build_wheel('dist'))"
	for sdist in build/release/*.tar.gz; do tar xzf $$sdist -C build/release && rm $$sdist && \
	  $(BIN)/python -c "$$ARCHIVE" dist/$$(basename $$sdist) build/release $$(basename $$sdist .tar.gz) || exit 1; done
	for task in composition gamma; do \
	  $(BIN)/python cli.py simulate --task $$task --out build/release/data --train 8000 --test 4000 --seed 1 || exit 1; done
	$(BIN)/python cli.py taskcard --data build/release/data --out build/release/cards
	$(BIN)/python -c "$$ARCHIVE" dist/showerstack-cards.tar.gz build/release cards
	$(BIN)/python -c "$$ARCHIVE" dist/showerstack-docs.tar.gz . site
	cd dist && $(CURDIR)/$(BIN)/python -c "$$SUMS" > SHA256SUMS && cat SHA256SUMS

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "showerstack needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (choose another with: make PYTHON=python3.12 ...)")'
	@echo "Setting up $(VENV) (once; 750 MB of downloads with a CPU build of torch, several GB with the Linux build of the package index) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[$(TESTED)]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis catboost_info demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
