"""Kernels that ask for more scratch than there is: 1 MiB, unless said otherwise."""

from __future__ import annotations

from typing import Any

import jax

import kbjax as kb
from tests.mistakes.catalogue import N, mistake


@mistake(kb.ScratchOverflowError, "TLContext scratch overflow:", "zeros")
def too_much(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((1 << 20,))  # <-


BIG = jax.ShapeDtypeStruct((2048, 256), "float32")
SMALL = kb.Hardware(pe_tcm=kb.hardware.PeTcm(kernel_scratch_mb=0.5))


@mistake(kb.ScratchOverflowError, "1,048,580 B (+12 B padding)", "smaller tile")
def one_element_too_many(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.empty(((1 << 18) + 1,))  # <-


@mistake(kb.ScratchOverflowError, "4 B (+12 B padding)", "0 B free", "scratch_scope")
def third_tile(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((256, 512))
    tl.zeros((256, 512))
    tl.zeros((1,))  # <-


@mistake(kb.ScratchOverflowError, "load", "2,097,152 B", arrays=(BIG, N))
def a_whole_tensor(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.load(x)  # <-


@mistake(kb.ScratchOverflowError, "add", "4,194,304 B", "No scope can help")
def outer_sum(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((1024, 1)) + tl.zeros((1, 1024))  # <-


@mistake(kb.ScratchOverflowError, "dot", "4,194,304 B")
def outer_product(tl: Any, x: Any, n: Any, o: Any) -> None:
    column = tl.zeros((1024, 1))
    tl.dot(column, tl.reshape(column, (1, 1024)))  # <-


@mistake(kb.ScratchOverflowError, "broadcast_to")
def broadcast_too_far(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.broadcast_to(tl.zeros((1, 1024)), (512, 1024))  # <-


@mistake(kb.ScratchOverflowError, "add", "(mul float32[256,512], outside any scope)")
def temporaries_of_operators(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.zeros((256, 512))
    tl.store(o[0], tl.sum(t * 2.0 + 1.0, axis=0))  # <-


@mistake(kb.ScratchOverflowError, "trans")
def transposed_copy(tl: Any, x: Any, n: Any, o: Any) -> None:
    t = tl.zeros((512, 512), "bool").to("float16")
    tl.dot(t, t.T)  # <-


@mistake(kb.ScratchOverflowError, "cast")
def widened_copy(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((256, 1024), "bfloat16").to("float32")  # <-


@mistake(kb.ScratchOverflowError, "1 x 196,608 B", "scratch_scope")
def straight_line(tl: Any, x: Any, n: Any, o: Any) -> None:
    a = tl.zeros((192, 256))
    b = a + 1.0
    c = b + 1.0
    d = c + 1.0
    e = d + 1.0
    tl.exp(e)  # <-


@mistake(kb.ScratchOverflowError, "in iteration 4 of the loop at", "tl.scratch_scope()")
def loop_without_a_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(5):
        tl.zeros((256, 256))  # <-


@mistake(kb.ScratchOverflowError, "in iteration 2 of the loop at", "exp")
def second_tile_of_an_iteration(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(4):
        t = tl.zeros((200, 256))
        tl.exp(t)  # <-


@mistake(kb.ScratchOverflowError, "load", "in iteration 8 of", arrays=(BIG, N))
def loads_in_a_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for j in tl.range(16):
        tl.load(x[tl.ds(j * 128, 128)])  # <-


@mistake(kb.ScratchOverflowError, "in iteration 1 of the loop at")
def nested_loops(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(3):
        for _ in tl.range(3):
            tl.zeros((256, 256))  # <-


@mistake(kb.ScratchOverflowError, "in iteration 1 of the loop at", "iteration 0 of")
def after_an_inner_loop_that_is_scoped(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(3):
        tl.zeros((256, 400))
        for _ in tl.range(3):
            with tl.scratch_scope():
                tl.zeros((256, 300))  # <-


@mistake(kb.ScratchOverflowError, "4 x 262,144 B", "0 B free")
def python_loop_without_a_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in range(5):
        tl.zeros((256, 256))  # <-


@mistake(kb.ScratchOverflowError, "5 x 204,800 B")
def list_of_tiles(tl: Any, x: Any, n: Any, o: Any) -> None:
    [tl.zeros((200, 256)) for _ in range(16)]  # <-


@mistake(kb.ScratchOverflowError, "nested in scope", "in scope scratch_overflow.py:")
def inside_an_open_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        tl.zeros((256, 768))
        tl.zeros((256, 512))  # <-


@mistake(kb.ScratchOverflowError, "Put the body of the loop", "in iteration 4")
def scope_around_the_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    with tl.scratch_scope():
        for _ in tl.range(8):
            tl.zeros((256, 256))  # <-


@mistake(kb.ScratchOverflowError, "in iteration 3 of the loop at", "3 x 307,200 B")
def scope_around_part_of_the_body(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(8):
        with tl.scratch_scope():
            tl.zeros((64, 256))
        tl.zeros((300, 256))  # <-


@mistake(kb.ScratchOverflowError, "outside any scope", "zeros")
def persistent_tiles_and_a_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.static_range(3):
        tl.zeros((256, 256))
    with tl.scratch_scope():
        t = tl.zeros((128, 256))
        tl.zeros((256, 256)) + t[tl.ds(0, 1)]  # <-


@mistake(kb.ScratchOverflowError, "0 B free")
def after_a_caught_overflow(tl: Any, x: Any, n: Any, o: Any) -> None:
    try:
        tl.zeros((1 << 20,))
    except kb.ScratchOverflowError:
        tl.zeros((256, 1024))
    tl.zeros((4,))  # <-


@mistake(kb.ScratchOverflowError, "3 x 262,144 B", "0 B free")
def after_a_loop(tl: Any, x: Any, n: Any, o: Any) -> None:
    for _ in tl.range(3):
        tl.zeros((256, 256))
    tl.zeros((256, 256))
    tl.zeros((4,))  # <-


@mistake(kb.ScratchOverflowError, "4 x 262,144 B")
def recursion_without_a_scope(tl: Any, x: Any, n: Any, o: Any) -> None:
    def recursion(depth: int) -> None:
        tl.zeros((256, 256))  # <-
        recursion(depth + 1)

    recursion(0)


@mistake(kb.ScratchOverflowError, "0.5 MiB", hardware=SMALL)
def on_smaller_hardware(tl: Any, x: Any, n: Any, o: Any) -> None:
    tl.zeros((256, 256))
    tl.zeros((256, 257))  # <-
