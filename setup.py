"""Where the packages lie: top-level folders here, inside of ``showerstack`` in an installation."""

from setuptools import find_packages, setup

INSIDE = "showerstack.packages"
OWN = ("showers", "features", "models", "stacking", "scoring", "analysis", "report", "commands")
found = find_packages(include=[pattern for name in OWN for pattern in (name, f"{name}.*")])

setup(
    packages=["showerstack", INSIDE, *(f"{INSIDE}.{name}" for name in found)],
    package_dir={"showerstack": "showerstack", INSIDE: "."} | {f"{INSIDE}.{name}": name for name in OWN},
    package_data={
        "": ["*.cu", "*.json", "*.toml", "weights/*", "py.typed"],
        INSIDE: ["cli.py", "verify.py", "pyproject.toml", "constraints.txt", "LICENSE", "README.md"],
    },
)
