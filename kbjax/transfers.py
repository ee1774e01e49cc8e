"""The part of `tl` that moves bytes: load, store, load_async, circular_buffer, send,
recv."""

from __future__ import annotations

import math
from dataclasses import replace

from kbjax import errors, expr, signatures
from kbjax.aliases import Aliases
from kbjax.buffers import CircularBuffer
from kbjax.dtypes import DType, Shape
from kbjax.emitter import python_scalar
from kbjax.flight import Transfer
from kbjax.futures import LoadFuture, SendFuture
from kbjax.handle import TensorHandle
from kbjax.program import LoadCmd, RecvCmd, SendCmd, StoreCmd
from kbjax.queues import Count, Slot
from kbjax.refs import HbmRef, Ref, Scalar
from kbjax.site import Site
from kbjax.views import HbmView

# What takes a tile to a later iteration, where something but a tile made outside does.
_CARRIED = {
    "load_async": "; tl.circular_buffer carries loads from one to the next",
    "push": ", or take the tile with the buffer's pop()",
}
_PAST_THE_END = "Pass {} to say what happens past the end"


class Transfers(Aliases):
    """Between HBM and TCM, and between PEs."""

    def load(self, view: HbmView, other: Scalar | None = None) -> TensorHandle:
        """Bring an HBM view into a fresh tile: `load_async` and its `wait`.

        Args:
          view: a kernel argument or a slice of one.
          other: fills elements outside the tensor; without it the view must be proven
            to lie inside.

        Raises:
          MemorySpaceError: when `view` is already a tile.
          OutOfBoundsError: when the view leaves its tensor in an iteration that runs.
          ScratchOverflowError: when the tile does not fit.
        """
        site = self._recorder.enter_call()
        source, filling = self._source("load", view, other, site)
        out = self._allocate("load", source.shape, source.dtype, site)
        self._emit_load(source, out.ref, filling, site)
        return out

    def load_async(
        self,
        view: HbmView,
        out: TensorHandle | None = None,
        other: Scalar | None = None,
    ) -> LoadFuture:
        """Begin to bring an HBM view into a tile; the DMA runs beside other engines.

        Until the future's `wait()`, the load owns the tile's bytes: no command may read
        or write them, and no scope give them back.

        Args:
          view, other: as of `load`.
          out: the tile to write, of the view's shape and dtype; a fresh one where None.

        Raises:
          HazardError: where another transfer owns bytes of `out`.
          MemorySpaceError, ShapeError, DTypeError: as `load`, and where `out` does not
            match.
          OutOfBoundsError, ScratchOverflowError: as `load`.
        """
        site = self._recorder.enter_call()
        source, filling = self._source("load_async", view, other, site)
        if out is None:
            out = self._allocate("load", source.shape, source.dtype, site)
            write = out.ref
        else:
            write = self._tile("load_async", out, site)
            moved = source.shape, source.dtype
            self._match("load_async", view.spec.name, *moved, write, site)
        self._emit_load(source, write, filling, site)
        return LoadFuture(self, out, self._issue("load_async", write, site))

    def store(
        self, view: HbmView, tile: TensorHandle, boundary_check: bool = False
    ) -> None:
        """Write a tile to an HBM view of the same shape and dtype.

        Args:
          view: an output, or an input that an output aliases, or a slice of one.
          tile: what to write.
          boundary_check: drop the elements that fall outside the tensor; without it
            the view must be proven to lie inside.

        Raises:
          MemorySpaceError, ShapeError, DTypeError, OutOfBoundsError: at this line.
          KernelError: for an input that no output aliases.
        """
        site = self._recorder.enter_call()
        self._require_hbm("store", view)
        self._require_writable("store", view, site)
        src = self._read("store", tile, site)
        if src.shape != view.shape:
            raise errors.ShapeError(
                "store needs a tile of the view's shape",
                site=site,
                got=f"tile {src.shape}, view {view.shape} of {view.spec.name}",
                remedy="Slice the view with tl.ds, or reshape the tile",
            )
        if src.dtype != view.dtype:
            raise errors.DTypeError(
                f"store of {src.dtype} to the {view.dtype} tensor {view.spec.name}",
                site=site,
                remedy=f'Convert with tile.to("{view.dtype}")',
            )
        if view.pointers:
            raise errors.KernelError(
                f"store to {view.spec.name} where data says",
                site=site,
                got=str(view),
                allowed="places that are known when the kernel is recorded",
            )
        remedy = _PAST_THE_END.format("boundary_check=True")
        ref = self._proven("store", view, remedy, fill=boundary_check)
        self._emit(StoreCmd(view=ref, src=src, **self._now(site)))

    # --- circular buffers ------------------------------------------------------------

    def circular_buffer(
        self, depth: int, shape: object, dtype: object = "float32"
    ) -> CircularBuffer:
        """`depth` tiles that are loaded and used in turn, so that the next loads run
        while a tile is used. Takes `depth` tiles of scratch here, one after the other.

        Args:
          depth: static, at least 1.
          shape, dtype: of a tile.
        """
        site = self._recorder.enter_call()
        slots = self._static(depth, "circular_buffer", site)
        if slots < 1:
            raise errors.ShapeError(
                "a circular_buffer has at least one slot", site=site, got=slots,
                allowed=">= 1",
            )  # fmt: skip
        kind = self._dtype(dtype, site)
        whole = (slots, *self._shape(shape, site))
        tile = self._allocate("circular_buffer", whole, kind, site, slots)
        recorder = self._recorder
        recorder.counts = {**recorder.counts, tile.ref.root: Count()}
        return CircularBuffer(self, tile)

    def push(
        self, buffer: CircularBuffer, view: HbmView, other: Scalar | None
    ) -> LoadFuture:
        """What `buffer.push(view, other)` calls."""
        site = self._recorder.enter_call()
        source, filling = self._source("push", view, other, site)
        count = self._count_of(buffer, "push", site)
        write = self._slot(buffer, count.pushed)
        moved = source.shape, source.dtype
        self._match("push", view.spec.name, *moved, write, site)
        recorder = self._recorder
        if recorder.runs and recorder.knows_the_iteration:
            room = expr.const(buffer.depth - 1)
            problem = recorder.domain.violation(count.held, room)
            if problem is not None:
                state = "is full" if problem.decided else "is not certain to have room"
                raise errors.HazardError(
                    f"push into the circular_buffer of {buffer.site}, which {state}"
                    f"{problem}: its {buffer.depth} tiles have not been popped",
                    site=site,
                    got=f"{count.pushed} pushed before, {count.popped} popped",
                    remedy="Pop a tile before, make the buffer deeper, or push under "
                    "a tl.when",
                )
        self._emit_load(source, write, filling, site)
        pushed = expr.add(count.pushed, expr.const(1))
        self._set_count(buffer, replace(count, pushed=pushed))
        tile = self._in_slot(buffer, write, count.pushed, site)
        transfer = Transfer("push", write, site, recorder.domain, recorder.body)
        return LoadFuture(self, tile, transfer)

    def pop(self, buffer: CircularBuffer) -> TensorHandle:
        """What `buffer.pop()` calls."""
        site = self._recorder.enter_call()
        count = self._count_of(buffer, "pop", site)
        read = self._slot(buffer, count.popped)
        recorder = self._recorder
        if recorder.runs and recorder.knows_the_iteration:
            problem = recorder.domain.violation(expr.const(1), count.held)
            if problem is not None:
                state = "is empty" if problem.decided else "is not certain to hold one"
                raise errors.HazardError(
                    f"pop from the circular_buffer of {buffer.site}, which {state}"
                    f"{problem}",
                    site=site,
                    got=f"{count.pushed} pushed, {count.popped} popped before",
                    remedy="Push a tile for each pop, before it",
                )
        recorder.mark_written(read)  # by the push
        popped = expr.add(count.popped, expr.const(1))
        self._set_count(buffer, replace(count, popped=popped))
        return self._in_slot(buffer, read, count.popped, site)

    def _count_of(self, buffer: CircularBuffer, op: str, site: Site) -> Count:
        if buffer.tile.ref.root not in self._recorder.counts:
            self._tile(op, buffer.tile, site)  # raises, where its scope has ended
            raise errors.KernelError(
                f"{op} on the circular_buffer of {buffer.site} after the block that "
                "made it",
                site=site,
                remedy="Make it outside the block",
            )
        self._tile(op, buffer.tile, site)
        return self._recorder.counts[buffer.tile.ref.root]

    def _set_count(self, buffer: CircularBuffer, count: Count) -> None:
        recorder = self._recorder
        recorder.counts = {**recorder.counts, buffer.tile.ref.root: count}

    def _slot(self, buffer: CircularBuffer, number: expr.Expr) -> Ref:
        """The bytes of the tile that push `number` fills."""
        ref, shape = buffer.tile.ref, buffer.tile.shape[1:]
        number = expr.settled(number, self._recorder.domain.conditions)
        slot = expr.mod(number, expr.const(buffer.depth))
        nbytes = math.prod(shape) * ref.dtype.nbytes
        return replace(ref, offset=expr.scale(slot, nbytes), shape=shape)

    def _in_slot(
        self, buffer: CircularBuffer, ref: Ref, number: expr.Expr, site: Site
    ) -> TensorHandle:
        whole, loops = buffer.tile, self._recorder.domain.loops
        body = self._recorder.body
        lease = Slot(whole.lease, number, buffer.depth, site, body, loops)
        return TensorHandle(self, whole.allocation, ref, "pop", lease, loops)

    # --- messages --------------------------------------------------------------------

    def send(self, src: TensorHandle, offset: int) -> SendFuture:
        """Send a tile to PE (i + offset) % n, on the link; a `recv` of that offset
        takes it there. Runs beside the other engines.

        The message owns its source until the future's `wait()` or the kernel's end:
        it may be read, not written.

        Args:
          src: the tile.
          offset: static; negative ones go the other way around. Of one PE, or for 0, it
            is to itself.
        """
        site = self._recorder.enter_call()
        step = self._offset(offset, "send", site)
        read = self._read("send", src, site)
        self._emit(SendCmd(src=read, offset=step, **self._now(site)))
        return SendFuture(self, self._issue("send", read, site))

    def _offset(self, offset: object, op: str, site: Site) -> int:
        each = f"tl.when(tl.program_id() == pe): tl.{op}(...)"
        return self._static(
            offset,
            f"the offset of {op}",
            site,
            if_symbolic=f"Write one {op} for each offset, under a condition where they "
            f"differ by PE or iteration: with {each}",
        )

    def recv(
        self,
        shape: object,
        dtype: object,
        offset: int,
        out: TensorHandle | None = None,
    ) -> LoadFuture:
        """Take the next message of PE (i - offset) % n that was sent with that offset.

        Every message is received, in the order of the sends, by a `recv` of its shape
        and dtype. Until the future's `wait()`, which is in the iterations and under the
        conditions of the `recv`, no command may read or write the tile.

        Args:
          shape, dtype: of the message.
          offset: that of the send.
          out: the tile to write; a fresh one where None.

        Raises:
          KernelError: when the kernel has been recorded, for messages that do not
            match, and for a wait that never ends.
          HazardError: where another transfer owns bytes of `out`.
        """
        site = self._recorder.enter_call()
        step = self._offset(offset, "recv", site)
        sizes, kind = self._shape(shape, site), self._dtype(dtype, site)
        if out is None:
            out = self._allocate("recv", sizes, kind, site)
        write = self._tile("recv", out, site)
        self._match("recv", "message", sizes, kind, write, site)
        command = RecvCmd(out=write, offset=step, **self._now(site))
        recorder = self._recorder
        if recorder.runs:
            recorder.flights.check_write("recv", write, recorder.domain, site)
        return LoadFuture(self, out, self._issue("recv", write, site, command))

    # --- what they share -------------------------------------------------------------

    def wait_for(self, transfer: Transfer) -> None:
        """What `wait()` of a future calls."""
        site = self._recorder.enter_call()
        recorder = self._recorder
        if not recorder.is_open(transfer.body):
            raise errors.KernelError(
                f"the {transfer.op} of {transfer.site} is waited for in another "
                "iteration of its tl.range than the one that issued it, or after the "
                "loop: Python carries its future there",
                site=site,
                remedy=f"Wait in the same iteration{_CARRIED.get(transfer.op, '')}",
            )
        if transfer.receive is not None:
            recorder.receive(transfer, site)
        else:
            recorder.flights.land(transfer)

    def _issue(
        self, op: str, ref: Ref, site: Site, receive: RecvCmd | None = None
    ) -> Transfer:
        recorder = self._recorder
        transfer = Transfer(op, ref, site, recorder.domain, recorder.body, receive)
        recorder.flights.issue(transfer)
        return transfer

    def _source(
        self, op: str, view: HbmView, other: Scalar | None, site: Site
    ) -> tuple[HbmRef, Scalar | None]:
        """What a load reads, and what it fills the tail with, if there may be one."""
        self._require_hbm(op, view)
        if other is not None:
            other = python_scalar(other)
            if other is None:
                raise errors.DTypeError(
                    f"{op} takes a number as other", site=site, remedy="Pass other=0.0"
                )
            signatures.check_value(f"other of {op}", other, view.dtype)
        if view.pointers and other is None:
            raise errors.OutOfBoundsError(
                f"{op} of {view.spec.name} starts where data says, perhaps outside",
                site=site,
                got=str(view),
                remedy="Pass other= to say what is loaded there",
            )
        remedy = _PAST_THE_END.format("other=")
        ref = self._proven(op, view, remedy, fill=other is not None)
        if 0 in ref.shape:
            raise errors.ShapeError(
                f"{op} of an empty view: a tile has at least one element",
                site=site,
                got=f"{view}, shape {ref.shape}",
                remedy=f"Skip the {op} where there is nothing to load",
            )
        return ref, other if ref.has_tail else None

    def _match(
        self, op: str, what: str, shape: Shape, dtype: DType, out: Ref, site: Site
    ) -> None:
        """Refuse a destination of another type than what is moved."""
        made, taken = "tile", "it after the wait"
        if op == "push":
            made, taken = "circular_buffer", "its tiles after the pop"
        if out.shape != shape:
            raise errors.ShapeError(
                f"{op} needs a tile of the shape of what it moves",
                site=site,
                got=f"tile {out.shape}, {shape} of {what}",
                remedy=f"Make the {made} in that shape, or slice what is moved",
            )
        if out.dtype != dtype:
            raise errors.DTypeError(
                f"{op} of the {dtype} {what} into a {out.dtype} tile",
                site=site,
                remedy=f"Make the {made} in {dtype}, and convert {taken} with "
                f'.to("{out.dtype}")',
            )

    def _emit_load(
        self, source: HbmRef, out: Ref, filling: Scalar | None, site: Site
    ) -> None:
        self._emit(LoadCmd(view=source, out=out, other=filling, **self._now(site)))
