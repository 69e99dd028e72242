# SPDX-License-Identifier: Apache-2.0
"""Bayer mosaics of 8 bits to rgb, by bilinear interpolation.

A pixel has one colour; each of the other two is the mean of its nearest neighbours of that colour,
two or four, halves rounded up. At an edge the mosaic is mirrored without repeating the edge, which
keeps its pattern.
"""

from __future__ import annotations

import numpy as np

PATTERNS = {
    "bayer_rggb8": (0, 0),
    "bayer_grbg8": (0, 1),
    "bayer_gbrg8": (1, 0),
    "bayer_bggr8": (1, 1),
}
"""Encoding to row and column of the first red pixel."""


def to_rgb(mosaic: np.ndarray, encoding: str) -> np.ndarray:
    """uint8 `[height, width]` to uint8 `[height, width, 3]`.

    Raises ValueError for an image of a single row or column, which lacks a colour.
    """
    height, width = mosaic.shape
    if min(height, width) < 2:
        raise ValueError(f"{encoding} image is {width} x {height} pixels, expected at least 2 x 2")
    row, column = PATTERNS[encoding]
    red, blue = (row, column), (1 - row, 1 - column)
    wide = np.pad(mosaic, 1, mode="reflect").astype(np.uint16)
    rgb = np.empty((height, width, 3), dtype=np.uint8)
    for y in (0, 1):
        for x in (0, 1):
            site = _Site(wide, y, x, height, width)
            target = rgb[y::2, x::2]
            if (y, x) == red:
                target[..., 0], target[..., 1], target[..., 2] = site.own, site.cross, site.diagonal
            elif (y, x) == blue:
                target[..., 0], target[..., 1], target[..., 2] = site.diagonal, site.cross, site.own
            elif y == red[0]:  # green in a row of red
                target[..., 0], target[..., 1], target[..., 2] = site.beside, site.own, site.above
            else:
                target[..., 0], target[..., 1], target[..., 2] = site.above, site.own, site.beside
    return rgb


class _Site:
    """One of the four places in the pattern, everywhere in the image, and its neighbours."""

    def __init__(self, wide: np.ndarray, y: int, x: int, height: int, width: int) -> None:
        self._wide, self._y, self._x, self._height, self._width = wide, y, x, height, width

    def _at(self, down: int, right: int) -> np.ndarray:
        top, left = 1 + self._y + down, 1 + self._x + right
        rows = slice(top, top + self._height - self._y, 2)
        columns = slice(left, left + self._width - self._x, 2)
        return self._wide[rows, columns]

    @property
    def own(self) -> np.ndarray:
        return self._at(0, 0)

    @property
    def beside(self) -> np.ndarray:
        return (self._at(0, -1) + self._at(0, 1) + 1) // 2

    @property
    def above(self) -> np.ndarray:
        return (self._at(-1, 0) + self._at(1, 0) + 1) // 2

    @property
    def cross(self) -> np.ndarray:
        total = self._at(0, -1) + self._at(0, 1) + self._at(-1, 0) + self._at(1, 0)
        return (total + 2) // 4

    @property
    def diagonal(self) -> np.ndarray:
        total = self._at(-1, -1) + self._at(-1, 1) + self._at(1, -1) + self._at(1, 1)
        return (total + 2) // 4
