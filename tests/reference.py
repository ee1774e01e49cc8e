"""An oracle for recorded programs: NumPy, one command and one PE at a time.

It takes a `Program` as plain data (classes by name, attributes by name) and shares no
code with kbjax: its own evaluation of symbolic integers, addresses, promotion and every
op, on a NumPy byte array. Slow and obvious on purpose; where the two differ, one of
them is wrong about the conventions of the design.

Bit for bit: everything but `exp exp2 log softmax dot`, which have several acceptable
last bits and are computed here in float64 and rounded. Unspecified, and so not to be
compared: NaN payloads, and which zero wins in `maximum(-0.0, 0.0)` and its kin.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray
DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
F32, I32, BOOL = DTYPES["float32"], DTYPES["int32"], DTYPES["bool"]
FLOATS = (F32, DTYPES["float16"], DTYPES["bfloat16"])
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class Result:
    """What a program leaves behind.

    Attributes:
      outputs: an array an output, (P, *shape) where each of P > 1 PEs has its own.
      memory: the scratch region, (T,) or (P, T) uint8.
    """

    outputs: tuple[Array, ...]
    memory: Array


def run(program: Any, inputs: Sequence[Any], poison: bool = False) -> Result:
    """Execute `program` on `inputs` (the caller's arrays, as `kernel_call` takes them).

    With `poison`, the bytes that a scope gives back become 0xFF at its end.

    Raises:
      AssertionError: when a command reads or writes outside its memory, or its result
        has not the shape and dtype that the program says.
    """
    pes = program.num_pes
    tensors = [np.array(x) for x in inputs]  # copies: an aliased input is stored to
    for slot, spec in enumerate(program.slots):
        split = pes > 1 and spec.pe_axis is not None
        if slot < program.num_inputs:
            if split:
                tensors[slot] = np.moveaxis(tensors[slot], spec.pe_axis, 0)
        else:
            dtype = DTYPES[spec.dtype.name]
            shape = (pes, *spec.shape) if split else spec.shape
            tensors.append(np.full(shape, _never_stored(dtype), dtype))
    size = program.hardware.pe_tcm.scratch_bytes
    memory = np.full((pes, size), 0xFF, np.uint8)
    for pe in range(pes):
        mine = [
            tensor[pe] if pes > 1 and spec.pe_axis is not None else tensor
            for tensor, spec in zip(tensors, program.slots, strict=True)
        ]
        env = {program.program_id.uid: pe}
        machine = Machine(program, memory[pe], mine, env, poison)
        with np.errstate(all="ignore"):
            machine.block(program.commands)
    outputs = tuple(tensors[slot] for slot in program.output_slots)
    return Result(outputs, memory if pes > 1 else memory[0])


def _never_stored(dtype: np.dtype) -> float | int | bool:
    if dtype in FLOATS:
        return float("nan")
    return INT_MIN if dtype == I32 else False


# --- symbolic integers and addresses -------------------------------------------------

_NODES: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: bool(a) and bool(b),
}


def evaluate(expr: Any, env: Mapping[int, int]) -> int:
    """The value of ``const + sum(k * atom)`` where variable `uid` is ``env[uid]``."""
    total = expr.const
    for atom, k in expr.terms:
        if hasattr(atom, "uid"):
            total += k * env[atom.uid]
        else:
            total += k * int(_NODES[atom.op](*(evaluate(a, env) for a in atom.args)))
    return total


def offset(program: Any, ref: Any, env: Mapping[int, int]) -> int:
    """Bytes from the start of the scratch region to what `ref` names."""
    made = program.allocations[ref.root]
    climbed = grown(program, [loop.uid for loop in made.loops], env)
    return made.cursor_bytes + climbed + evaluate(ref.offset, env)


def grown(program: Any, loops: Sequence[int], env: Mapping[int, int]) -> int:
    """By how many bytes the iterations of `loops` so far have moved the cursor."""
    growth = {loop.uid: nbytes for loop, nbytes in program.growth_bytes.items()}
    return sum(growth[uid] * env[uid] for uid in loops if growth.get(uid))


# --- commands ------------------------------------------------------------------------


@dataclass
class Machine:
    """One PE: its bytes, the HBM tensors as it sees them, and the loop indices. Those
    of a loop that has ended stay at its last iteration, as Python's would; `open_loops`
    are the others."""

    program: Any
    memory: Array
    tensors: list[Array]
    env: dict[int, int] = field(default_factory=dict)
    poison: bool = False
    open_loops: list[int] = field(default_factory=list)

    def block(self, block: Sequence[Any]) -> None:
        for item in block:
            getattr(self, f"do_{type(item).__name__}")(item)

    def do_Scope(self, scope: Any) -> None:
        self.block(scope.body)
        if self.poison:
            mark = scope.mark_bytes + grown(self.program, self.open_loops, self.env)
            self.memory[mark : mark + scope.rewound_bytes] = 0xFF

    def do_Loop(self, loop: Any) -> None:
        self.open_loops.append(loop.index.uid)
        for i in range(evaluate(loop.index.trip, self.env)):
            self.env[loop.index.uid] = i
            self.block(loop.body)
        self.open_loops.pop()

    def do_LoadCmd(self, load: Any) -> None:
        view, tensor = load.view, self.tensors[load.view.slot]
        wanted, exists = self.elements(view, tensor)
        other = 0 if load.other is None else load.other
        tile = convert(np.full([span.size for span in view.spans], other), tensor.dtype)
        found = [w[e] for w, e in zip(wanted, exists, strict=True)]
        tile[np.ix_(*exists)] = tensor[np.ix_(*found)]
        self.write(load.out, tile.transpose(_shown_last(view)).reshape(view.shape))

    def do_StoreCmd(self, store: Any) -> None:
        view, tensor = store.view, self.tensors[store.view.slot]
        wanted, exists = self.elements(view, tensor)
        order = _shown_last(view)
        tile = self.read(store.src).reshape([view.spans[axis].size for axis in order])
        tile = tile.transpose(np.argsort(order))
        kept = [w[e] for w, e in zip(wanted, exists, strict=True)]
        tensor[np.ix_(*kept)] = tile[np.ix_(*exists)]

    def do_CopyCmd(self, copy: Any) -> None:
        src, dst = (offset(self.program, r, self.env) for r in (copy.src, copy.dst))
        moved = self.memory[src : src + copy.nbytes].copy()
        self.memory[dst : dst + copy.nbytes] = moved

    def do_OpCmd(self, command: Any) -> None:
        operands: list[Any] = []
        for x in command.operands:
            if hasattr(x, "root"):
                operands.append(self.read(x))
            else:
                operands.append(evaluate(x, self.env) if hasattr(x, "terms") else x)
        self.write(command.out, OPS[command.op](*operands, **dict(command.attrs)))

    def elements(self, view: Any, tensor: Array) -> tuple[list[Array], list[Array]]:
        """Along each axis of the tensor: the elements that the view asks for, and
        which of them exist."""
        wanted, exists = [], []
        for span, length in zip(view.spans, tensor.shape, strict=True):
            at = evaluate(span.start, self.env) + np.arange(span.size)
            low, high = 0, length
            if span.valid is not None:
                low, high = (evaluate(end, self.env) for end in span.valid)
                assert low >= high or (low >= 0 and high <= length), view
            inside = (at >= low) & (at < high)
            assert span.valid is not None or inside.all(), f"{view} is out of bounds"
            wanted.append(at)
            exists.append(inside)
        return wanted, exists

    def read(self, ref: Any) -> Array:
        dtype, at = DTYPES[ref.dtype.name], offset(self.program, ref, self.env)
        raw = self.memory[at : at + ref.nbytes].copy()
        assert raw.size == ref.nbytes, f"{ref} leaves the scratch region"
        values = raw != 0 if dtype == BOOL else raw.view(dtype)
        return values.reshape(ref.shape)

    def write(self, ref: Any, value: Array) -> None:
        value = np.asarray(value)
        got, said = (value.shape, value.dtype), (ref.shape, DTYPES[ref.dtype.name])
        assert got == said, f"{ref}: the oracle makes {got}, the program says {said}"
        at = offset(self.program, ref, self.env)
        raw = np.frombuffer(value.tobytes(), np.uint8)
        self.memory[at : at + raw.size] = raw


def _shown_last(view: Any) -> list[int]:
    """The tensor's axes: those that the view hides (of size 1), then its own."""
    return [a for a in range(len(view.spans)) if a not in view.axes] + list(view.axes)


# --- element types -------------------------------------------------------------------


def convert(x: Any, dtype: np.dtype) -> Array:
    """`x` in another dtype with one rounding; float to integer truncates and
    saturates, NaN gives 0."""
    x = np.asarray(x)
    if dtype == BOOL:
        return x != 0
    if dtype == I32 and x.dtype != BOOL and x.dtype.kind not in "iu":
        whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        return np.clip(whole, INT_MIN, INT_MAX).astype(np.int32)
    if dtype == DTYPES["bfloat16"] and x.dtype.kind in "iuf":
        return _round_to_odd(x.astype(np.float64)).astype(dtype)
    return x.astype(dtype)


def _round_to_odd(x: Array) -> Array:
    """float64 -> float32, inexact results with an odd last bit: rounding these again
    to a shorter type is the same as rounding `x` to it once."""
    near = x.astype(np.float32)
    toward_x = np.where(x > near, np.inf, -np.inf).astype(np.float32)
    inexact_and_even = (near != x) & (np.atleast_1d(near).view(np.uint32) % 2 == 0
                                      ).reshape(near.shape)  # fmt: skip
    return np.where(
        inexact_and_even & np.isfinite(x), np.nextafter(near, toward_x), near
    )


def meet(*operands: Any) -> list[Array]:
    """The operands in their common dtype: tiles promote as in `jax.numpy`, Python
    scalars are weak."""
    tiles = [x.dtype for x in operands if isinstance(x, Array)]
    scalars = [type(x) for x in operands if not isinstance(x, Array)]
    floats = {dtype for dtype in tiles if dtype in FLOATS}
    if floats:  # the one float type, or what two of them have in common
        common = floats.pop() if len(floats) == 1 else F32
    elif float in scalars:
        common = F32
    else:
        common = I32 if I32 in tiles or int in scalars else BOOL
    return [convert(x, common) for x in operands]


# --- THE OPS -------------------------------------------------------------------------
# Each takes tiles as arrays and scalars as Python numbers, and the command's attrs.


def _in_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` on 16-bit floats by way of float32, rounded once at the end."""

    def apply(*xs: Array) -> Array:
        if xs[0].dtype in FLOATS[1:]:
            return function(*(x.astype(F32) for x in xs)).astype(xs[0].dtype)
        return function(*xs)

    return apply


def _arithmetic(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: _in_float32(function)(*meet(a, b))


def _div(a: Any, b: Any) -> Array:
    a, b = meet(a, b)
    if a.dtype not in FLOATS:
        a, b = convert(a, F32), convert(b, F32)
    return _in_float32(np.divide)(a, b)


def _compare(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: function(*meet(a, b))


def _where(cond: Array, a: Any, b: Any) -> Array:
    return np.where(cond, *meet(a, b))


def _in_float64(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x: function(x.astype(np.float64)).astype(F32).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return _in_float32(lambda y: np.float32(1) / np.sqrt(y))(x)


def _sum(x: Array, axis: int | None, keepdims: bool) -> Array:
    if axis is None:
        total = _sum(x.reshape(-1), 0, False)
        return total.reshape((1,) * x.ndim) if keepdims else total
    if x.dtype not in FLOATS:  # modulo 2**32
        return x.sum(axis, dtype=np.int64, keepdims=keepdims).astype(I32)
    parts = list(np.moveaxis(x.astype(F32), axis, 0))
    while len(parts) & (len(parts) - 1):  # not a power of two yet
        parts.append(np.full_like(parts[0], -0.0))
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [parts[k] + parts[half + k] for k in range(half)]
    total = np.asarray(parts[0]).astype(x.dtype)
    return np.expand_dims(total, axis) if keepdims else total


def _max(x: Array, axis: int | None, keepdims: bool) -> Array:
    return _in_float32(lambda y: np.max(y, axis=axis, keepdims=keepdims))(x)


def _softmax(x: Array, axis: int) -> Array:
    y = x.astype(F32)
    weights = _in_float64(np.exp)(y - _max(y, axis, True))
    return (weights / _sum(weights, axis, True)).astype(x.dtype)


def _dot(a: Array, b: Array, **how: object) -> Array:
    del how  # the lowering, which is not the meaning
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(F32)


def _full(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, convert(value, DTYPES[dtype]))


OPS: dict[str, Callable[..., Array]] = {
    "add": _arithmetic(np.add),
    "sub": _arithmetic(np.subtract),
    "mul": _arithmetic(np.multiply),
    "div": _div,
    "maximum": _arithmetic(np.maximum),
    "minimum": _arithmetic(np.minimum),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "where": _where,
    "exp": _in_float64(np.exp),
    "exp2": _in_float64(np.exp2),
    "log": _in_float64(np.log),
    "sqrt": _in_float32(np.sqrt),
    "rsqrt": _rsqrt,
    "sum": _sum,
    "max": _max,
    "softmax": _softmax,
    "dot": _dot,
    "trans": lambda x: x.swapaxes(0, 1),
    "cast": lambda x, dtype: convert(x, DTYPES[dtype]),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "zeros": lambda shape, dtype: np.zeros(shape, DTYPES[dtype]),
    "full": _full,
    "arange": lambda shape, dtype, start: np.arange(
        start, start + shape[0], dtype=DTYPES[dtype]
    ),
}
