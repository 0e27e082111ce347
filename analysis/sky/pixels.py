"""Pixels of nearly equal size: bands of declination, each divided in right ascension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SkyPixels:
    """Pixels between two declinations, numbered from south to north and by right ascension."""

    dec_edges_deg: np.ndarray
    """(B + 1,) borders of the bands, increasing."""
    in_band: np.ndarray
    """(B,) pixels of each band, int64."""

    @classmethod
    def between(cls, low_deg: float, high_deg: float, size_deg: float) -> SkyPixels:
        """Return pixels of about ``size_deg`` squared between two declinations."""
        low, high = max(low_deg, -90.0), min(high_deg, 90.0)
        edges = np.linspace(low, high, max(round((high - low) / size_deg), 1) + 1)
        middle = np.radians((edges[1:] + edges[:-1]) / 2)
        return cls(edges, np.maximum(np.round(360.0 * np.cos(middle) / size_deg), 1).astype(np.int64))

    def __len__(self) -> int:
        return int(self.in_band.sum())

    def of(self, ra_deg: np.ndarray, dec_deg: np.ndarray) -> np.ndarray:
        """Return the pixel of each direction, (N,) int64; -1 for those beyond the declinations."""
        band = np.searchsorted(self.dec_edges_deg, dec_deg, side="right") - 1
        inside = (band >= 0) & (band < len(self.in_band))
        band = np.where(inside, band, 0)
        here = np.minimum((np.mod(ra_deg, 360.0) / 360.0 * self.in_band[band]).astype(np.int64), self.in_band[band] - 1)
        return np.where(inside, self._first[band] + here, -1)

    def counts(self, ra_deg: np.ndarray, dec_deg: np.ndarray) -> np.ndarray:
        """Return how many directions lie in each pixel, (P,) int64."""
        pixel = self.of(ra_deg, dec_deg)
        return np.bincount(pixel[pixel >= 0], minlength=len(self))

    def borders(self) -> np.ndarray:
        """Return (P, 4): lowest and highest right ascension, lowest and highest declination, degrees."""
        band = np.repeat(np.arange(len(self.in_band)), self.in_band)
        number = np.arange(len(self)) - self._first[band]
        width = 360.0 / self.in_band[band]
        low, high = self.dec_edges_deg[band], self.dec_edges_deg[band + 1]
        return np.column_stack([number * width, (number + 1) * width, low, high])

    def solid_angle_sr(self) -> np.ndarray:
        """Return the solid angle of each pixel, (P,) sr."""
        ra_low, ra_high, dec_low, dec_high = np.radians(self.borders()).T
        return (ra_high - ra_low) * (np.sin(dec_high) - np.sin(dec_low))

    @property
    def _first(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.in_band)[:-1]])
