"""Where the packages lie: top-level folders in a checkout, inside of ``showerstack`` in an installation."""

import runpy
import sys

from setuptools import find_packages, setup

INSIDE = "showerstack.packages"
OWN = runpy.run_path("runtime/packages.py")["OWN"]
FILES = ["*.csv", "*.cu", "*.json", "*.toml", "weights/*", "worlds/*.toml", "scripts/*.py", "py.typed"]
found = find_packages(include=[pattern for name in OWN for pattern in (name, f"{name}.*")])

if "editable_wheel" in sys.argv:
    # pip install -e: the checkout itself, whose scripts import the packages by their own names.
    found += find_packages(include=["benchmarks", "benchmarks.*"])
    setup(packages=["showerstack", *found], py_modules=["cli", "verify"], package_data={"": FILES})
else:
    setup(
        packages=["showerstack", INSIDE, *(f"{INSIDE}.{name}" for name in found)],
        package_dir={"showerstack": "showerstack", INSIDE: "."} | {f"{INSIDE}.{name}": name for name in OWN},
        package_data={
            "": FILES,
            INSIDE: ["cli.py", "verify.py", "pyproject.toml", "constraints.txt", "LICENSE", "README.md"],
        },
    )
