"""Arguments that a method does not take, and what is no tile used as one."""

from __future__ import annotations

from typing import Any

import numpy as np

import kbjax as kb
from tests.mistakes.catalogue import mistake

WRONG = "is called with wrong arguments: "


@mistake(kb.KernelError, f"tl.load {WRONG}missing", "'view'", "tl.load(view, other=")
def load_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load()  # <-


@mistake(kb.KernelError, f"tl.load {WRONG}", "'mask'", "tl.load(view, other=None)")
def load_with_tritons_mask(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x, mask=None)  # <-


@mistake(kb.KernelError, f"tl.store {WRONG}", "'tile'", "boundary_check=False")
def store_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.store(o)  # <-


@mistake(kb.KernelError, f"tl.send {WRONG}missing", "'offset'", "tl.send(src, offset)")
def send_to_no_one(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.send(tl.load(x))  # <-


@mistake(kb.KernelError, f"tl.recv {WRONG}", "'offset'", "(shape, dtype, offset, out=")
def receive_from_no_one(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.recv((8, 4), "float32")  # <-


@mistake(kb.KernelError, f"buffer.pop {WRONG}too many", "Allowed: buffer.pop().")
def pop_by_number(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.circular_buffer(2, (4,))
    rows.push(x[0])
    rows.pop(1)  # <-


@mistake(kb.KernelError, f"buffer.push {WRONG}missing", "buffer.push(view, other=None)")
def push_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.circular_buffer(2, (4,)).push()  # <-


@mistake(kb.KernelError, f"tl.circular_buffer {WRONG}", "'shape'", "(depth, shape, ")
def buffer_of_no_shape(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.circular_buffer(2)  # <-


@mistake(kb.KernelError, f"future.wait {WRONG}too many", "Allowed: future.wait().")
def wait_for_a_time(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load_async(x).wait(3)  # <-


@mistake(kb.KernelError, f"future.wait {WRONG}", "'timeout'", "Allowed: future.wait().")
def wait_for_a_send_for_a_time(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.send(tl.load(x), 1).wait(timeout=3)  # <-


@mistake(kb.KernelError, f"tile.to {WRONG}missing", "'dtype'", "tile.to(dtype)")
def convert_to_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x).to()  # <-


@mistake(kb.KernelError, f"tl.ds {WRONG}missing", "'size'", "tl.ds(start, size)")
def slice_of_no_size(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x[tl.ds(4)])  # <-


@mistake(kb.KernelError, f"tl.sum {WRONG}", "'dim'", "axis=None, keepdims=False")
def sum_by_torchs_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.sum(tl.load(x), dim=0)  # <-


@mistake(kb.KernelError, f"tl.dot {WRONG}", "'allow_tf32'", "tl.dot(a, b, acc=None")
def dot_by_tritons_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.dot(t, tl.trans(t), allow_tf32=False)  # <-


@mistake(kb.KernelError, f"tl.program_id {WRONG}too many", "Allowed: tl.program_id().")
def axis_of_the_grid(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.program_id(0)  # <-


@mistake(kb.KernelError, f"tl.copy_to {WRONG}multiple", "'dst'", "tl.copy_to(dst, src)")
def copy_to_two_places(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    tl.copy_to(t, dst=t)  # <-


@mistake(kb.KernelError, f"tl.when {WRONG}missing", "tl.when(condition)")
def when_of_nothing(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.when():  # <-
        tl.load(x)


@mistake(kb.KernelError, f"tl.range {WRONG}", "'num_stages'", "(start, stop=None, step")
def range_with_tritons_stages(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(8, num_stages=2):  # <-
        tl.load(x[i])


@mistake(kb.KernelError, f"tl.range {WRONG}too many")
def wrong_call_in_a_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for i in tl.range(2):
        with tl.scratch_scope():
            for j in tl.range(0, 4, 1, i):  # <-
                tl.load(x[j])


# --- no tiles ------------------------------------------------------------------------


@mistake(kb.KernelError, "no sequence of its tiles", "2 tiles made at", "with pop()")
def slot_of_a_buffer(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.circular_buffer(2, (4,))
    rows[0]  # <-


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def tiles_of_a_buffer_in_turn(tl: Any, x: Any, n: Any, o: Any) -> None:
    for t in tl.circular_buffer(2, (4,)):  # <-
        tl.store(o[0], t)


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def while_a_buffer_holds_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.circular_buffer(2, (4,))
    while rows:  # <-
        rows.pop()


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def arithmetic_on_a_buffer(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.circular_buffer(2, (4,)) * 2.0  # <-


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def numpy_scalar_times_a_buffer(tl: Any, x: Any, n: Any, o: Any) -> None:
    np.float32(2.0) * tl.circular_buffer(2, (4,))  # <-


@mistake(
    kb.KernelError, "a send gives no tile", "the send of wrong_call.py:", "tl.recv"
)
def arithmetic_on_a_send(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.send(tl.load(x), 1) + 1.0  # <-


@mistake(kb.KernelError, "a send gives no tile", "tl.recv")
def element_of_a_send(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.send(tl.load(x), 1)[0]  # <-


@mistake(kb.KernelError, "a send gives no tile", "tl.recv")
def size_of_a_send(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.where(tl.send(tl.load(x), 1) < 0, 1.0, 0.0)  # <-


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def function_of_a_buffer(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.circular_buffer(2, (4,)))  # <-


@mistake(kb.KernelError, "circular_buffer is no tile", "with pop()")
def copy_of_a_buffer(tl: Any, x: Any, n: Any, o: Any) -> None:
    rows = tl.circular_buffer(2, (4,))
    tl.copy_to(tl.zeros((2, 4)), rows)  # <-


@mistake(kb.KernelError, "a send gives no tile", "tl.recv")
def tile_plus_a_send(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.load(x)
    t + tl.send(t, 1)  # <-


@mistake(kb.KernelError, "exp takes 1 operand", "exp(x)", "name")
def function_with_a_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.exp(tl.load(x), name="e")  # <-


@mistake(kb.KernelError, "takes the name", "Got 'gem'", "nearest is 'gemm'")
def no_such_composite(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gem", x, x, o)  # <-


@mistake(kb.KernelError, "takes the name", "Got None", "'flash', ...).")
def composite_of_no_name(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite(None, x, x, o)  # <-


@mistake(kb.KernelError, "Got 2 views", "composite('gemm', a, b, out")
def operand_left_out(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", x, o)  # <-


@mistake(kb.KernelError, "3 views, causal", "tile, buffers")
def option_of_another_composite(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", x, x, o, causal=True)  # <-


@mistake(kb.KernelError, "to the input x", "input_output_aliases")
def output_that_is_an_input(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("flash", x, x, x, x)  # <-


@mistake(kb.KernelError, "where it may still read a", "an output of its own")
def composite_in_place(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.composite("gemm", o[:4, :], x[:4, :], o[2:6, :])  # <-
