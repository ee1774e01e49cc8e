"""Attention of one KV head as each peer has it, in the same tiles where it has tiles.

A peer is a function from a problem and its arrays to a `Run`, which gives the output
(rows, dim). It imports what it needs: ImportError says that it is missing.

Knows no times. The benchmarks share it: bench_peers, bench_data_phase and bench_pes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import kbjax as kb
from kbjax import dtypes
from kbjax.kernels._attention import attention_reference

Run = Callable[[], Any]
DIM = 128


@dataclass(frozen=True)
class Problem:
    """o (rows, dim) of q (rows, dim), k and v (keys, dim), swept `tile` keys at a time;
    `keys` is a multiple of `tile`."""

    rows: int
    keys: int
    dtype: str = "float32"
    tile: int = 128
    dim: int = DIM

    @property
    def out_shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.rows, self.dim), self.dtype)


def data(
    rows: int,
    keys: int,
    lead: tuple[int, ...] = (),
    dtype: str = "float32",
    dim: int = DIM,
) -> list[Any]:
    """q, k and v: (*lead, rows or keys, dim), drawn from one seed."""
    rng = np.random.default_rng(0)
    shapes = [(*lead, n, dim) for n in (rows, keys, keys)]
    return [
        jnp.asarray(rng.standard_normal(s, np.float32), dtypes.of(dtype).numpy)
        for s in shapes
    ]


def arrays_of(problem: Problem) -> list[Any]:
    return data(problem.rows, problem.keys, (), problem.dtype, problem.dim)


def reference(arrays: list[Any]) -> np.ndarray:
    """(rows, dim) float64, in NumPy."""
    return attention_reference(*map(np.asarray, arrays))


def as_float64(output: Any) -> np.ndarray:
    """What a `Run` gives, of JAX or PyTorch."""
    if hasattr(output, "detach"):  # NumPy has no bfloat16 of PyTorch's
        output = output.double()
    return np.asarray(output).astype(np.float64)


# --- kbjax ---------------------------------------------------------------------------


def flash_sweep(tl: Any, q: Any, k: Any, v: Any, o: Any, *, tile: int) -> None:
    """The kernel that is compared: one sweep, q (M, D), k and v (S, D)."""
    qh = tl.load(q)
    m = tl.full((q.shape[0], 1), float("-inf"))
    l = tl.zeros((q.shape[0], 1))  # noqa: E741
    acc = tl.zeros(q.shape)
    for j in tl.range(k.shape[0] // tile):
        with tl.scratch_scope():
            kt = tl.load(k[tl.ds(j * tile, tile), :])
            s = tl.dot(qh, tl.trans(kt)) * q.shape[1] ** -0.5
            m_new = tl.maximum(m, tl.max(s, axis=1, keepdims=True))
            p = tl.exp(s - m_new)
            scale = tl.exp(m - m_new)
            vt = tl.load(v[tl.ds(j * tile, tile), :])
            tl.copy_to(l, l * scale + tl.sum(p, axis=1, keepdims=True))
            tl.copy_to(acc, acc * scale + tl.dot(p.to(v.dtype), vt))
            tl.copy_to(m, m_new)
    tl.store(o, (acc / l).to(o.dtype))


def sweep(rows: int, tile: int = 128, **options: Any) -> kb.KernelCall:
    """`flash_sweep` on float32 of dimension DIM; the options are `kernel_call`'s."""
    return kb.kernel_call(
        partial(flash_sweep, tile=tile),
        jax.ShapeDtypeStruct((rows, DIM), "float32"),
        **options,
    )


def exact_of(call: kb.KernelCall, arrays: list[Any]) -> Run:
    return lambda: call.run(*arrays, fidelity="exact").outputs


def _kernel_call(problem: Problem) -> kb.KernelCall:
    return kb.kernel_call(partial(flash_sweep, tile=problem.tile), problem.out_shape)


def kbjax_live(problem: Problem, arrays: list[Any]) -> Run:
    call = _kernel_call(problem)
    return lambda: call(*arrays)


def kbjax_exact(problem: Problem, arrays: list[Any]) -> Run:
    return exact_of(_kernel_call(problem), arrays)


# --- JAX -----------------------------------------------------------------------------


@partial(jax.jit, static_argnames="tile")
def flash_scan(q: Any, k: Any, v: Any, tile: int) -> Any:
    """Flash attention as one would write it in JAX: q (M, D), k and v (S, D)."""
    rows, dim = q.shape

    def fold(carry: Any, start: Any) -> Any:
        kt = lax.dynamic_slice_in_dim(k, start, tile)
        vt = lax.dynamic_slice_in_dim(v, start, tile)
        m, l, acc = carry  # noqa: E741
        return _folded(m, l, acc, q, kt, vt), None

    first = (
        jnp.full((rows, 1), -jnp.inf),
        jnp.zeros((rows, 1)),
        jnp.zeros((rows, dim)),
    )
    starts = jnp.arange(0, k.shape[0], tile)
    (_, l, acc), _ = lax.scan(fold, first, starts)  # noqa: E741
    return (acc / l).astype(q.dtype)


def _folded(m: Any, l: Any, acc: Any, q: Any, k: Any, v: Any) -> Any:  # noqa: E741
    """m, l and acc with one tile of keys folded in: the online softmax."""
    product = partial(jnp.dot, precision="highest", preferred_element_type=jnp.float32)
    s = product(q, k.T) * q.shape[1] ** -0.5
    m_new = jnp.maximum(m, s.max(axis=1, keepdims=True))
    p = jnp.exp(s - m_new)
    scale = jnp.exp(m - m_new)
    l = l * scale + p.sum(axis=1, keepdims=True)  # noqa: E741
    acc = acc * scale + product(p.astype(v.dtype), v)
    return m_new, l, acc


@partial(jax.jit, static_argnames="tile")
def products_scan(q: Any, k: Any, v: Any, tile: int) -> Any:
    """The two matrix products of each tile of `flash_scan`, nothing else: (M, D)."""
    product = partial(jnp.dot, precision="highest", preferred_element_type=jnp.float32)

    def both(acc: Any, start: Any) -> Any:
        kt = lax.dynamic_slice_in_dim(k, start, tile)
        vt = lax.dynamic_slice_in_dim(v, start, tile)
        return acc + product(product(q, kt.T), vt), None

    return lax.scan(both, jnp.zeros(q.shape), jnp.arange(0, k.shape[0], tile))[0]


def hand_written(problem: Problem, arrays: list[Any]) -> Run:
    return lambda: flash_scan(*arrays, tile=problem.tile)


def jax_nn(problem: Problem, arrays: list[Any]) -> Run:
    """(keys, heads, dim) is its layout."""
    del problem

    @jax.jit
    def attend(q: Any, k: Any, v: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # it relies on that for bfloat16
            heads = jax.nn.dot_product_attention(q[:, None], k[:, None], v[:, None])
        return heads[:, 0]

    return lambda: attend(*arrays)


# --- Pallas --------------------------------------------------------------------------


def _pallas(problem: Problem, arrays: list[Any], interpret: Any) -> Run:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, dim, tile = problem.rows, problem.dim, problem.tile

    def kernel(q: Any, k: Any, v: Any, o: Any, m: Any, l: Any, acc: Any) -> None:  # noqa: E741
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            m[...] = jnp.full_like(m, -jnp.inf)
            l[...] = jnp.zeros_like(l)
            acc[...] = jnp.zeros_like(acc)

        m[...], l[...], acc[...] = _folded(
            m[...], l[...], acc[...], q[...], k[...], v[...]
        )

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _() -> None:
            o[...] = (acc[...] / l[...]).astype(o.dtype)

    tiles = pl.BlockSpec((tile, dim), lambda j: (j, 0))
    whole = pl.BlockSpec((rows, dim), lambda j: (0, 0))
    run = jax.jit(
        pl.pallas_call(
            kernel,
            out_shape=problem.out_shape,
            grid=(problem.keys // tile,),
            in_specs=[whole, tiles, tiles],
            out_specs=whole,
            scratch_shapes=[pltpu.VMEM((rows, n), jnp.float32) for n in (1, 1, dim)],
            interpret=interpret,
        )
    )
    return lambda: run(*arrays)


def pallas(problem: Problem, arrays: list[Any]) -> Run:
    """Pallas as JAX itself interprets it: one traced function."""
    return _pallas(problem, arrays, interpret=True)


def pallas_tpu(problem: Problem, arrays: list[Any]) -> Run:
    """The interpreter of TPU kernels: memories, DMAs and semaphores as buffers."""
    from jax.experimental.pallas import tpu as pltpu

    return _pallas(problem, arrays, interpret=pltpu.InterpretParams())


# --- PyTorch and Triton --------------------------------------------------------------


def _tensors(arrays: list[Any]) -> list[Any]:
    """The same bits as PyTorch tensors."""
    import torch

    return [
        torch.from_numpy(np.array(x).view(f"int{8 * x.dtype.itemsize}")).view(
            getattr(torch, x.dtype.name)
        )
        for x in arrays
    ]


def _torch_sdpa(problem: Problem, arrays: list[Any], threads: int | None) -> Run:
    del problem
    import torch

    q, k, v = (x[None, None] for x in _tensors(arrays))
    attend = torch.nn.functional.scaled_dot_product_attention
    wanted = threads or torch.get_num_threads()

    def run() -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(wanted)
        try:
            return attend(q, k, v)[0, 0]
        finally:
            torch.set_num_threads(before)

    return run


def torch_sdpa(problem: Problem, arrays: list[Any]) -> Run:
    """In as many threads as PyTorch takes by itself, one a core."""
    return _torch_sdpa(problem, arrays, None)


def torch_sdpa_1_thread(problem: Problem, arrays: list[Any]) -> Run:
    """One head is one piece of its work, whose products alone are spread."""
    return _torch_sdpa(problem, arrays, 1)


def triton_interpreter(problem: Problem, arrays: list[Any]) -> Run:
    import triton_flash

    q, k, v = _tensors(arrays)
    return lambda: triton_flash.flash(q, k, v, tile=problem.tile)


# --- all of them ---------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """One way to the same attention.

    Attributes:
      make: a `Run` of a problem and its arrays.
      install: what gives the packages that it imports.
      interpreter: runs a command at a time, in Python or nearly so.
      wrong_for: element types that it gets wrong, and why.
    """

    make: Callable[[Problem, list[Any]], Run]
    install: str = "pip install kbjax"
    interpreter: bool = False
    wrong_for: Mapping[str, str] = field(default_factory=dict)


LIVE = "kbjax live"
_WITNESS = "pip install 'kbjax[witness]'"
PEERS: dict[str, Peer] = {
    LIVE: Peer(kbjax_live),
    "kbjax exact": Peer(kbjax_exact),
    "hand-written JAX": Peer(hand_written),
    "jax.nn.dot_product_attention": Peer(jax_nn),
    "PyTorch SDPA": Peer(torch_sdpa, _WITNESS),
    "PyTorch SDPA, 1 thread": Peer(torch_sdpa_1_thread, _WITNESS),
    "Pallas, interpret=True": Peer(pallas, interpreter=True),
    "Pallas TPU interpreter": Peer(pallas_tpu, interpreter=True),
    "Triton interpreter": Peer(
        triton_interpreter,
        _WITNESS,
        interpreter=True,
        wrong_for={"bfloat16": "its dot of bfloat16 multiplies bits (docs/triton.md)"},
    ),
}
