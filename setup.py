"""No build without the links in ``showerstack/``, which stay links in a source distribution."""

import sys
from pathlib import Path

from setuptools import setup
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


setup(cmdclass={"sdist": LinkedSdist})
