"""No build without the links in ``showerstack/``, which stay links in a source distribution; links of the README.

On a page of a package index there are no files beside the README: what it links to is that of the version's tag.
"""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
try:
    import showerstack  # noqa: F401
except ImportError as error:
    sys.exit(f"error: {error}")  # a checkout without its links

LINKS = {
    path.as_posix(): str(path.readlink())
    for folder in (Path("showerstack"), Path("showerstack", "source"))
    for path in folder.iterdir()
    if path.is_symlink()
}


class LinkedSdist(sdist):
    """A source distribution that holds every file once."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and make links again where the checkout has links."""
        inside = tuple(f"{link}/" for link in LINKS)
        super().make_release_tree(base_dir, [file for file in files if not f"{file}/".startswith(inside)])
        for link, target in LINKS.items():
            Path(base_dir, link).parent.mkdir(parents=True, exist_ok=True)
            Path(base_dir, link).symlink_to(target)


def readme() -> str:
    """Return the README with absolute addresses."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = Path("README.md").read_text(encoding="utf-8")
    for mark, kind in (("!", "raw"), ("", "blob")):
        place = f"{project['urls']['Repository']}/{kind}/v{project['version']}/"
        text = re.sub(rf"({mark}\[[^\]]*\]\()(?!\w+:|#)", rf"\g<1>{place}", text)
    return text


class LinkedDistribution(Distribution):
    """Metadata with that README."""

    def parse_config_files(self, *given: object, **named: object) -> None:
        """Read ``pyproject.toml``."""
        super().parse_config_files(*given, **named)
        self.metadata.long_description = readme()


setup(cmdclass={"sdist": LinkedSdist}, distclass=LinkedDistribution)
