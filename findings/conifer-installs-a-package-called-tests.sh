#!/bin/bash
# The wheel of conifer 1.11 installs its own tests as a top-level package, tests, beside conifer. A folder tests/ of one's
# own without an __init__.py is a namespace package, and any regular package of that name goes before it, wherever the
# folder stands in sys.path: import tests.helper fails. pytest still finds the files, since it imports them by path.
# Guess before running: a library installs the package that bears its name.
# Met where tests send functions of their own modules to other processes: with conifer installed these processes end with
# No module named 'tests.helper', everywhere else they work.
# What to do: an __init__.py in the folder, or conifer in an environment of its own.
# Seen: without conifer the module is imported, with it not; fifteen files lie in site-packages/tests.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
mkdir -p "$W/project/tests"; echo "WORD = 'mine'" > "$W/project/tests/helper.py"; cd "$W/project"
ask() { "$W/v/bin/python" -c "import tests.helper; print(tests.helper.WORD)" 2>/dev/null || echo "no module"; }
before=$(ask)
"$W/v/bin/pip" install -q --no-deps conifer==1.11 2>/dev/null
after=$(ask)
files=$(cd "$W"/v/lib/python3*/site-packages && find tests -type f -not -name '*.pyc' | wc -l)
echo "before conifer 1.11: $before; after: $after; $files files in site-packages/tests"
[ "$before" = mine ] && [ "$after" = "no module" ] && [ "$files" -gt 0 ]
