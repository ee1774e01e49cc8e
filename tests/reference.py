"""An oracle for recorded programs: NumPy, one command and one PE at a time.

It takes a `Program` as plain data (classes by name, attributes by name) and shares no
code with kbjax: its own evaluation of symbolic integers, addresses, promotion and every
op, on a NumPy byte array. Slow and obvious on purpose; where the two differ, one of
them is wrong about the conventions of the design.

Bit for bit: everything but `exp exp2 log log2 sigmoid tanh erf softmax`, and `pow` and
`dot` of floats, which have several acceptable last bits and are computed here in
float64 and rounded. Unspecified, and so not to be compared: NaN payloads, and which
zero wins in `maximum(-0.0, 0.0)` and its kin.
"""

from __future__ import annotations

import contextvars
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray
DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
F32, I32, BOOL = DTYPES["float32"], DTYPES["int32"], DTYPES["bool"]
FLOATS = (F32, DTYPES["float16"], DTYPES["bfloat16"])
FLOAT8S = (DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"])
INTS = tuple(DTYPES[name] for name in ("int32", "int16", "int8", "uint8"))


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
    offsets = {c.offset for c in _commands(program.commands) if c.op == "send"}
    boxes = {(pe, k): SimpleQueue[Array]() for pe in range(pes) for k in offsets}
    machines = []
    for pe in range(pes):
        mine = [
            tensor[pe, ...] if pes > 1 and spec.pe_axis is not None else tensor
            for tensor, spec in zip(tensors, program.slots, strict=True)
        ]
        env = {program.program_id.uid: pe}
        machines.append(Machine(program, memory[pe], mine, env, poison))
        machines[-1].boxes = boxes
    with np.errstate(all="ignore"), ThreadPoolExecutor(pes) as threads:
        # A thread each, where one waits for the messages of another.
        ended = [
            threads.submit(contextvars.copy_context().run, one.block, program.commands)
            for one in machines
        ]
        for one in ended:
            one.result()
    outputs = tuple(tensors[slot] for slot in program.output_slots)
    return Result(outputs, memory if pes > 1 else memory[0])


def _commands(block: Sequence[Any]) -> Iterator[Any]:
    """Each once, as the program lists them."""
    for item in block:
        if hasattr(item, "body"):
            yield from _commands(item.body)
        else:
            yield item


def _never_stored(dtype: np.dtype) -> float | int | bool:
    if dtype in INTS:
        return int(np.iinfo(dtype).min)
    return False if dtype == BOOL else float("nan")


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
    are the others. `boxes` hold what was sent, by receiver and offset."""

    program: Any
    memory: Array
    tensors: list[Array]
    env: dict[int, int] = field(default_factory=dict)
    poison: bool = False
    open_loops: list[int] = field(default_factory=list)
    boxes: Mapping[tuple[int, int], SimpleQueue[Array]] = field(default_factory=dict)

    def block(self, block: Sequence[Any]) -> None:
        for item in block:
            getattr(self, f"do_{type(item).__name__}")(item)

    def do_Scope(self, scope: Any) -> None:
        self.block(scope.body)
        if self.poison:
            mark = scope.mark_bytes + grown(self.program, self.open_loops, self.env)
            self.memory[mark : mark + scope.rewound_bytes] = 0xFF

    def do_When(self, when: Any) -> None:
        if evaluate(when.condition, self.env):
            self.do_Scope(when)

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

    def do_SendCmd(self, send: Any) -> None:
        to = (
            self.env[self.program.program_id.uid] + send.offset
        ) % self.program.num_pes
        self.boxes[to, send.offset].put(self.read(send.src))

    def do_RecvCmd(self, recv: Any) -> None:
        pe = self.env[self.program.program_id.uid]
        self.write(recv.out, self.boxes[pe, recv.offset].get(timeout=60))

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
            if span.by is not None:
                at = at + int(self.read(span.by).item())
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
    saturates, NaN gives 0; integer to integer wraps."""
    x = np.asarray(x)
    if x.dtype == dtype:
        return x
    whole = x.dtype == BOOL or x.dtype.kind in "iu"
    if dtype == BOOL:
        return (x if whole else x.astype(np.float64)) != 0
    if dtype in INTS:
        if whole:
            return x.astype(dtype)
        limits = np.iinfo(dtype)
        truncated = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        return np.clip(truncated, limits.min, limits.max).astype(dtype)
    exact = x.astype(np.float64)  # every element type fits
    if dtype in (DTYPES["bfloat16"], *FLOAT8S):  # ml_dtypes takes float32
        return _round_to_odd(exact).astype(dtype)
    return exact.astype(dtype)


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
    common = BOOL
    for x in operands:
        if isinstance(x, Array):
            common = _promoted(common, x.dtype)
    scalars = [type(x) for x in operands if not isinstance(x, Array)]
    if float in scalars and common in (*INTS, BOOL):
        common = F32
    elif int in scalars and common == BOOL:
        common = I32
    return [convert(x, common) for x in operands]


def _promoted(a: np.dtype, b: np.dtype) -> np.dtype:
    """What two tiles have in common: bool < integer < float, wider within a kind, and
    the next wider where neither holds the other. A float8 meets itself and bool."""
    if a == b:
        return a
    for kind in (FLOAT8S, FLOATS, INTS):
        if (a in kind) != (b in kind):
            assert kind != FLOAT8S or BOOL in (a, b), f"{a} and {b} do not meet"
            return a if a in kind else b
        if a in kind:
            assert kind != FLOAT8S, f"{a} and {b} do not meet"
            if a.itemsize != b.itemsize:
                return a if a.itemsize > b.itemsize else b
            return F32 if kind == FLOATS else DTYPES["int16"]
    raise AssertionError(f"no common type of {a} and {b}")


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
    """Of the values, which float64 holds for every element type."""
    return lambda a, b: function(*(x.astype(np.float64) for x in meet(a, b)))


def _divided(of_ints: Callable[..., Array], of_floats: Callable[..., Array]) -> Any:
    """`//` and `%`: of integers as in Python, 0 where the divisor is; of floats
    NumPy's."""

    def apply(a: Any, b: Any) -> Array:
        a, b = meet(a, b)
        if a.dtype in FLOATS:
            return _in_float32(of_floats)(a, b)
        wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
        safe = of_ints(wide_a, np.where(wide_b == 0, 1, wide_b))
        return np.where(wide_b == 0, 0, safe).astype(a.dtype)

    return apply


def _pow(a: Any, b: Any) -> Array:
    a, b = meet(a, b)
    if a.dtype in FLOATS:
        return _in_float64(np.power)(a, b)
    a, b = np.broadcast_arrays(a, b)
    square, power = a.astype(np.uint64), np.ones(a.shape, np.uint64)  # modulo 2**64
    left = b.astype(np.int64)
    while (left > 0).any():
        power = np.where((left > 0) & (left % 2 == 1), power * square, power)
        square, left = square * square, left >> 1
    unit = np.where(b % 2 == 0, a * a, a)  # 1 and -1 to a negative power
    inverse = np.where((a == 1) | (a.astype(np.int64) == -1), unit, 0)
    return np.where(b.astype(np.int64) < 0, inverse, power.astype(a.dtype)).astype(
        a.dtype
    )


def _bitwise(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *xs: function(*meet(*xs))


def _clamp(x: Any, low: Any, high: Any) -> Array:
    return _in_float32(lambda x, a, b: np.minimum(np.maximum(x, a), b))(
        *meet(x, low, high)
    )


def _fma(a: Any, b: Any, c: Any) -> Array:
    """The product of two float32 is a float64; the sum is rounded to odd in float64,
    and so once only in the end."""
    a, b, c = meet(a, b, c)
    p, q = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = np.asarray(p + q)
    q_seen = total - p  # the error of a sum, exactly: Knuth's TwoSum
    error = (p - (total - q_seen)) + (q - q_seen)
    even = np.atleast_1d(total).view(np.uint64).reshape(total.shape) % 2 == 0
    other = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    odd = np.where(np.isfinite(total) & (error != 0) & even, other, total)
    return convert(odd, a.dtype)


def _where(cond: Array, a: Any, b: Any) -> Array:
    return np.where(cond, *meet(a, b))


def _in_float64(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *xs: convert(
        function(*(x.astype(np.float64) for x in xs)), xs[0].dtype
    )


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


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


def _extreme(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, axis, keepdims: _in_float32(
        lambda y: np.asarray(function(y, axis=axis, keepdims=keepdims))
    )(x)


def _position(function: Callable[..., Array]) -> Callable[..., Array]:
    """Of the first of equals; the first NaN wins, as NumPy has it for both."""

    def apply(x: Array, axis: int | None, keepdims: bool) -> Array:
        y = x.astype(np.float64)
        return np.asarray(function(y, axis=axis, keepdims=keepdims)).astype(I32)

    return apply


def _softmax(x: Array, axis: int) -> Array:
    y = x.astype(F32)
    weights = _in_float64(np.exp)(y - np.max(y, axis=axis, keepdims=True))
    return (weights / _sum(weights, axis, True)).astype(x.dtype)


def _dot(
    a: Array, b: Array, acc: Array | None = None, *, out_dtype: str | None, **how: Any
) -> Array:
    """The product rounded once to the accumulator's type, `acc` added with one more
    rounding, and one to `out_dtype`."""
    del how  # the lowering, which is not the meaning
    if a.dtype in FLOAT8S or b.dtype in FLOAT8S:
        a, b = convert(a, F32), convert(b, F32)
    a, b = meet(a, b)
    if a.dtype in FLOATS:
        total = (a.astype(np.float64) @ b.astype(np.float64)).astype(F32)
    else:  # modulo 2**32
        total = (a.astype(np.int64) @ b.astype(np.int64)).astype(I32)
    if acc is not None:
        assert acc.dtype == total.dtype, f"{acc.dtype} is no accumulator"
        total = total + acc
    return total if out_dtype is None else convert(total, DTYPES[out_dtype])


def _full(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, convert(value, DTYPES[dtype]))


OPS: dict[str, Callable[..., Array]] = {
    "add": _arithmetic(np.add),
    "sub": _arithmetic(np.subtract),
    "mul": _arithmetic(np.multiply),
    "div": _div,
    "floordiv": _divided(np.floor_divide, np.floor_divide),
    "mod": _divided(np.remainder, np.remainder),
    "pow": _pow,
    "maximum": _arithmetic(np.maximum),
    "minimum": _arithmetic(np.minimum),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "invert": _bitwise(np.invert),
    "neg": _in_float32(np.negative),
    "abs": _in_float32(np.abs),
    "where": _where,
    "clamp": _clamp,
    "fma": _fma,
    "floor": _in_float32(np.floor),
    "ceil": _in_float32(np.ceil),
    "exp": _in_float64(np.exp),
    "exp2": _in_float64(np.exp2),
    "log": _in_float64(np.log),
    "log2": _in_float64(np.log2),
    "sigmoid": _in_float64(_sigmoid),
    "tanh": _in_float64(np.tanh),
    "erf": _in_float64(_erf),
    "sqrt": _in_float32(np.sqrt),
    "rsqrt": _rsqrt,
    "sum": _sum,
    "max": _extreme(np.max),
    "min": _extreme(np.min),
    "argmax": _position(np.argmax),
    "argmin": _position(np.argmin),
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
