"""Small arrays that the tests of attention kernels are made of."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def counting(n: int, dim: int = 1) -> np.ndarray:
    """v[i] = i in every column."""
    return np.repeat(np.arange(n, dtype=np.float32)[:, None], dim, 1)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)
