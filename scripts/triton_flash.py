"""Flash attention in Triton, run by Triton's own interpreter on NumPy, without a GPU.

Triton reads TRITON_INTERPRET when it is imported, when a kernel is decorated and when
one is launched: it is set for just these moments. The interpreter writes names of its
own into the globals of the module that holds a kernel, hence this module. Importing it
raises ImportError where PyTorch or Triton is missing.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import numpy as np

INTERPRET = {"TRITON_INTERPRET": "1"}

with mock.patch.dict(os.environ, INTERPRET):
    import torch
    import triton
    import triton.language as tl

if isinstance(tl.sum, triton.JITFunction):
    raise ImportError("triton was imported before, without TRITON_INTERPRET=1")


def _flash(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    keys: Any,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SCALE: tl.constexpr,
) -> None:
    """One program: q, o (ROWS, DIM), k and v (keys, DIM), row-major."""
    rows = tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tile = tl.arange(0, TILE)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    qh = tl.load(q + rows)
    m = tl.full((ROWS, 1), float("-inf"), tl.float32)
    l = tl.zeros((ROWS, 1), tl.float32)  # noqa: E741
    acc = tl.zeros((ROWS, DIM), tl.float32)
    for j in range(0, keys, TILE):
        kt = tl.load(k + j * DIM + tile)
        vt = tl.load(v + j * DIM + tile)
        s = tl.dot(qh, tl.trans(kt), input_precision="ieee") * SCALE
        m_new = tl.maximum(m, tl.max(s, axis=1, keep_dims=True))
        p = tl.exp(s - m_new)
        scale = tl.exp(m - m_new)
        l = l * scale + tl.sum(p, axis=1, keep_dims=True)  # noqa: E741
        acc = acc * scale + tl.dot(p.to(vt.dtype), vt, input_precision="ieee")
        m = m_new
    tl.store(o + rows, (acc / l).to(o.dtype.element_ty))


def flash(q: Any, k: Any, v: Any, tile: int) -> Any:
    """PyTorch tensors on the CPU: q (M, D), k and v (S, D), S a multiple of `tile`; M,
    D and `tile` are powers of two."""
    rows, dim = q.shape
    out = torch.empty_like(q)
    with mock.patch.dict(os.environ, INTERPRET), np.errstate(all="ignore"):
        kernel = triton.jit(_flash)
        kernel[(1,)](q, k, v, out, k.shape[0], rows, dim, tile, dim**-0.5)
    return out
