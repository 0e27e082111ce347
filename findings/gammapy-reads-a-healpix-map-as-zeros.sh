#!/bin/bash
# gammapy 2.1: Map.read of a HEALPix table whose columns have names of their own (COUNTS, SIGNIFICANCE) gives a map of
# zeros, without a word, unless the column is named: only columns that begin with CHANNEL are looked for (HPX_CONV is
# GADF or FGST-CCUBE). With HPX_CONV = HEALPY it ends in a TypeError instead, without the card in a ValueError; with
# colname= it reads the column in all conventions. healpy.read_map takes the first column.
# regions is pinned: gammapy 2.1 does not import with regions 0.12, which its requirement (>= 0.9) allows.
# Seen: GADF: sum 0, with colname="COUNTS" sum 767; HEALPY: TypeError, with colname 767.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 astropy==8.0.2 gammapy==2.1 regions==0.10 healpy==1.20.1 2>/dev/null
cd "$W"; "$W/v/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
from astropy.io import fits
from gammapy.maps import Map

counts = np.arange(768) % 2 + 0.0
counts[0] = 383.0
found = {}
for convention in ("GADF", "FGST-CCUBE", "HEALPY"):
    table = fits.BinTableHDU.from_columns([fits.Column("COUNTS", "D", array=counts)], name="SKY_MAP")
    table.header.update(PIXTYPE="HEALPIX", ORDERING="RING", NSIDE=8, FIRSTPIX=0, LASTPIX=767, INDXSCHM="IMPLICIT",
                        OBJECT="FULLSKY", COORDSYS="C", RADESYS="ICRS", HPX_CONV=convention)
    table.writeto("map.fits", overwrite=True)
    for options in ({}, {"colname": "COUNTS"}):
        try:
            found[convention, len(options)] = float(Map.read("map.fits", **options).data.sum())
        except (TypeError, ValueError) as error:
            found[convention, len(options)] = type(error).__name__
        print(f"gammapy {version('gammapy')}, {convention}, {options}: {found[convention, len(options)]}")
expected = {("GADF", 0): 0.0, ("GADF", 1): 767.0, ("FGST-CCUBE", 0): 0.0, ("FGST-CCUBE", 1): 767.0,
            ("HEALPY", 0): "TypeError", ("HEALPY", 1): 767.0}
sys.exit(0 if found == expected else "this has changed")
PY
