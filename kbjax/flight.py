"""Transfers in flight while a kernel is recorded: who owns which bytes from the issue
to the `wait`.

A load or a receive owns its destination: no command may read or write it. A send owns
its source: no command may write it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from kbjax import errors, expr
from kbjax.domain import Domain
from kbjax.program import RecvCmd
from kbjax.refs import Ref
from kbjax.site import Site


@dataclass(frozen=True, eq=False)
class Transfer:
    """What was issued.

    Attributes:
      op: as the kernel has it: load_async, push, recv, send.
      ref: the bytes that it owns.
      site: the kernel line that issued it.
      domain: the iterations that issue it.
      body: the recording of the innermost loop body, in which it must be waited for.
      receive: what takes the message, at the wait.
    """

    op: str
    ref: Ref
    site: Site
    domain: Domain
    body: object
    receive: RecvCmd | None = None

    @property
    def only_reads(self) -> bool:
        return self.op == "send"


@dataclass
class Flights:
    """The transfers in flight. Every change is logged, so that a block which may not
    run can be taken back.

    Attributes:
      never_waited_for: by line; those of a body that is recorded twice, once.
      forgotten: what its block has ended without.
    """

    never_waited_for: dict[Site, Transfer] = field(default_factory=dict)
    forgotten: set[Transfer] = field(default_factory=set)
    _open: dict[Transfer, None] = field(default_factory=dict)
    _log: list[tuple[Transfer, bool]] = field(default_factory=list)  # True: issued

    def mark(self) -> int:
        """What `rewind` and `rewind_waits` go back to."""
        return len(self._log)

    def issue(self, transfer: Transfer) -> None:
        self._open[transfer] = None
        self._log.append((transfer, True))

    def land(self, transfer: Transfer) -> None:
        """After its first `wait`."""
        if transfer in self._open:
            del self._open[transfer]
            self._log.append((transfer, False))

    def up_to(self, transfer: Transfer) -> list[Transfer]:
        """It, if in flight, after the receives of its offset that were issued before
        it: messages come in order."""
        found: list[Transfer] = []
        for one in self._open if transfer in self._open else ():
            if one is transfer:
                return [*found, one]
            first, last = one.receive, transfer.receive
            if first is not None and last is not None and first.offset == last.offset:
                found.append(one)
        return []

    def rewind(self, mark: int) -> None:
        """As it was at the mark."""
        while len(self._log) > mark:
            transfer, issued = self._log.pop()
            if issued:
                self._open.pop(transfer, None)
            else:
                self._open[transfer] = None

    def rewind_waits(self, mark: int) -> None:
        """After a block that may not run: what was in flight at the mark still is."""
        since = self._log[mark:]
        own = {transfer for transfer, issued in since if issued}
        for transfer, issued in since:
            if not issued and transfer not in own:
                self.issue(transfer)

    def find(self, wanted: Callable[[Transfer], bool]) -> list[Transfer]:
        """Those in flight that are wanted, in the order of issue."""
        return [transfer for transfer in self._open if wanted(transfer)]

    def receives_since(self, mark: int) -> list[Transfer]:
        """The receives in flight that were issued since the mark."""
        issued = {transfer for transfer, issued in self._log[mark:] if issued}
        return self.find(lambda t: t.receive is not None and t in issued)

    def drop(self, lost: Callable[[Transfer], bool]) -> list[Transfer]:
        """Take out those that are lost, and give them."""
        found = self.find(lost)
        for transfer in found:
            self.land(transfer)
        return found

    def forget(self, transfer: Transfer) -> None:
        """It will never be waited for. A send need not be."""
        self.forgotten.add(transfer)
        if not transfer.only_reads:
            self.never_waited_for.setdefault(transfer.site, transfer)

    def warn_of_never_waited_for(self) -> None:
        """Each at its own line."""
        for site, transfer in self.never_waited_for.items():
            warnings.warn_explicit(
                f"{site}: the {transfer.op} is never waited for. Call wait() on what "
                "it gives before the tile is used, or leave it out",
                UserWarning,
                site.file,
                site.line,
            )

    def check_read(self, op: str, ref: Ref, domain: Domain, site: Site) -> None:
        """Refuse a read of bytes that a transfer writes.

        Raises:
          HazardError: naming both lines.
        """
        for transfer in self._open:
            if not transfer.only_reads and _may_overlap(ref, transfer.ref, domain):
                raise _hazard(op, "reads", transfer, site)

    def check_write(self, op: str, ref: Ref, domain: Domain, site: Site) -> None:
        """Refuse a write of bytes that a transfer reads or writes.

        Raises:
          HazardError: naming both lines.
        """
        for transfer in self._open:
            if _may_overlap(ref, transfer.ref, domain):
                raise _hazard(op, "writes", transfer, site)


def _may_overlap(a: Ref, b: Ref, domain: Domain) -> bool:
    """False where it is proven that no iteration finds a byte in both."""
    if a.root != b.root:
        return False
    apart = expr.sub(a.offset, b.offset)
    low, high = expr.bounds(apart)
    if low >= b.nbytes or high <= -a.nbytes:
        return False
    known = {v for v in expr.variables(apart) if not v.is_pe} <= set(domain.loops)
    if apart.is_const or not known:
        return True
    meet = expr.predicate(
        "and",
        expr.predicate("lt", apart, expr.const(b.nbytes)),
        expr.predicate("lt", expr.const(-a.nbytes), apart),
    )
    return domain.find(meet) != (True, None)


def _hazard(op: str, verb: str, transfer: Transfer, site: Site) -> errors.HazardError:
    busy = "reads" if transfer.only_reads else "writes"
    return errors.HazardError(
        f"{op} {verb} bytes that the {transfer.op} of {transfer.site} still "
        f"{busy}: it is not certain to have been waited for",
        site=site,
        remedy=f"Call wait() on what the {transfer.op} gave before this line",
    )


def ended(transfer: Transfer, block: str, begun_at: Site) -> errors.HazardError:
    """For a scope that ends while a transfer uses its bytes."""
    made = "make the tile outside it and give it as out="
    if transfer.only_reads:
        made = "make the tile that is sent outside it"
    return errors.HazardError(
        f"the {block} of {begun_at} gives back bytes of the {transfer.op} of "
        f"{transfer.site}, which has not been waited for",
        site=transfer.site,
        remedy=f"Call wait() in the {block}, or {made}",
    )
