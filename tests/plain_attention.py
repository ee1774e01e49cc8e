"""Attention over whole matrices, in NumPy: each step rounded to one dtype, as a plain
implementation in that dtype has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

NONE = -math.inf  # a sink that is none


def after(queries: int, keys: int) -> np.ndarray:
    """(M, N): how far each key is after the query's own token."""
    return np.arange(keys)[None, :] - (np.arange(queries)[:, None] + keys - queries)


def mask_of(queries: int, keys: int, causal: bool, window: int) -> np.ndarray:
    """(M, N): where a query sees a key."""
    far = after(queries, keys)
    seen = (far <= 0) | (not causal)
    return seen & (abs(far) < window) if window else seen


def plain(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dtype: Any = np.float64,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sink: float = NONE,
    slope: float = 0.0,
    product: Callable[[np.ndarray, np.ndarray], Any] = np.matmul,
) -> np.ndarray:
    """Attention over whole matrices, each step rounded to `dtype`, one head; float64.

    q: (M, D), k: (N, D), v: (N, E). `scale`: 1 / sqrt(D) where not given. `product`: of
    two matrices; a library's, to have the order in which it adds.
    """
    wide = np.float64 if dtype == np.float64 else np.float32

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(wide)

    (queries, dim), keys = q.shape, k.shape[0]
    q, k, v = (x.astype(wide) for x in (q, k, v))
    s = rounded(np.asarray(product(q, k.T)) * wide(scale or dim**-0.5))
    if softcap:
        s = rounded(np.tanh(rounded(s / wide(softcap))) * wide(softcap))
    s = rounded(s + rounded(wide(slope) * after(queries, keys).astype(wide)))
    s[~mask_of(queries, keys, causal, window)] = NONE
    m = np.maximum(s.max(axis=1, keepdims=True, initial=NONE), wide(sink))
    m = np.where(np.isneginf(m), 0, m)
    p = rounded(np.exp(s - m))
    total = p.sum(axis=1, keepdims=True) + np.exp(wide(sink) - m)
    p = rounded(np.divide(p, total, out=np.zeros_like(p), where=total != 0))
    return rounded(np.asarray(product(p, v))).astype(np.float64)


def error_bound(rough: np.ndarray, want: np.ndarray, dtype: Any) -> float:
    """How far an output may be off: twice the error of a plain attention of the same
    dtype, and two roundings of 0.3, as in FlashAttention's tests.

    Args:
      rough: by `plain` in the dtype.
      want: in float64.
    """
    out, some = want.astype(dtype), np.dtype(dtype).type(0.3)
    more = 2 * np.abs(out + some - some - out).max(initial=0)
    return 2 * float(np.abs(rough - want).max(initial=0)) + float(more)
