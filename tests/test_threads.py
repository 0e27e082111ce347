"""What threads share is listed, with who guards it, and grows nowhere unseen."""

from __future__ import annotations

import ast
import re

import pytest

from tests.shared_state import ROOT, _objects, _switches, found

ROW = re.compile(r"\| (?P<file>[\w/]+\.py) \| (?P<names>`[^|]+`) \| (?P<guard>[^|]+) \|")


@pytest.mark.slow
def test_all_that_is_shared_is_listed() -> None:
    rows = [
        match for line in (ROOT / "tests/shared_state.md").read_text().splitlines() if (match := ROW.fullmatch(line))
    ]
    listed = {f"{row['file']}:{name}" for row in rows for name in re.findall(r"`([^`]+)`", row["names"])}
    new, gone = sorted(found() - listed), sorted(listed - found())
    assert not new, f"shared by all threads and not in tests/shared_state.md: say there who guards {new}"
    assert not gone, f"in tests/shared_state.md, and no longer in the sources: {gone}"


def test_what_is_shared_is_found() -> None:
    tree = ast.parse(
        "SEEN = {}\nTABLE = {1: 2}\nFIRST = Lock()\n"
        "@lru_cache(maxsize=1)\ndef opened(): ...\n"
        "def remember(x):\n    SEEN[x] = TABLE[x]\n    own = {}\n    own[x] = 1\n"
        "def turn():\n    os.environ['A'] = '1'\n    torch.manual_seed(1)\n    warnings.simplefilter('ignore')\n"
        "    LOG.propagate = False\n    os.environ.get('A')\n    warnings.warn('x')\n"
    )
    assert set(_objects(tree)) == {"SEEN", "FIRST", "opened"}
    assert set(_switches(tree)) == {"os.environ", "torch.manual_seed", "warnings.simplefilter", "LOG.propagate"}
