#!/bin/bash
# pytest 9.2.0 with pytest-xdist 3.8.0: --dist loadgroup takes no notice of xdist_group. The plugin appends the group to
# an attribute of the test, _nodeid, which pytest 9.2 no longer reads: its identifiers are objects. Nothing is said,
# everything passes, and each test is a group of its own. With pytest 9.1.1 groups are kept.
# Guess before running: tests of one group run in one process, as the plugin's page says.
# Met where tests of a file share what takes a minute to make: each process made it again. --dist loadfile and loadscope
# read the file's name and work; so does a scheduler of one's own (pytest_xdist_make_scheduler).
# Seen, 40 tests of one group, two processes: 9.1.1 ran them in 1, 9.2.0 in 2.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
cat > "$W/test_group.py" <<'PY'
import os
import time

import pytest


@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("k", range(40))
def test_it(k):
    time.sleep(0.02)
    with open(os.environ["PROCESSES"], "a") as file:
        print(os.getpid(), file=file)
PY
for version in 9.1.1 9.2.0; do
  python3 -m venv "$W/$version"; "$W/$version/bin/pip" install -q pytest==$version pytest-xdist==3.8.0 2>/dev/null
  (cd "$W" && PROCESSES="$W/$version.txt" "$W/$version/bin/python" -m pytest -q -n 2 --dist loadgroup test_group.py >/dev/null)
  echo "pytest $version, pytest-xdist 3.8.0: $(sort -u "$W/$version.txt" | wc -l) processes ran the tests of one group"
done
[ "$(sort -u "$W/9.1.1.txt" | wc -l)" = 1 ] && [ "$(sort -u "$W/9.2.0.txt" | wc -l)" = 2 ]
