#!/usr/bin/env python3
"""One kernel over two processes: GQA decode, its KV heads split over the CPU devices of
both, against the same call in one process; the bits must be equal.

    python scripts/two_processes.py [--devices N] [--context S] [--pes P]

Starts both processes on this machine, joined by `jax.distributed` at a free port of the
loopback interface, and exits with 0 where the bits are equal.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

PROCESSES = 2
GROUP, DIM = 8, 64


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def take_part(process: int, port: int, devices: int, context: int, pes: int) -> bool:
    """One of the processes: whether all bits are those of one process. Process 0 says
    so."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, process)

    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh

    import kbjax as kb
    from kbjax.kernels.gqa_decode import gqa_decode

    rng = np.random.default_rng(0)  # the same arrays on each process
    shapes = [(pes, n, DIM) for n in (GROUP, context, context)]
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    decode = partial(
        kb.kernel_call,
        partial(gqa_decode, tile=min(128, context)),
        jax.ShapeDtypeStruct((GROUP, DIM), "float32"),
        num_pes=pes,
    )
    everywhere = Mesh(jax.devices(), ("pe",))
    mine = Mesh(jax.local_devices()[:1], ("pe",))
    want = np.asarray(decode(mesh=mine)(*arrays))
    spread = decode(mesh=everywhere)(*arrays)
    got = multihost_utils.process_allgather(spread, tiled=True)
    differ = int((got.view(np.uint32) != want.view(np.uint32)).sum())
    if process == 0:
        print(
            f"{PROCESSES} processes, CPU devices in each: {devices}, PEs: {pes}, "
            f"context: {context}: {differ} of {got.size} elements differ from those of "
            "one process"
        )
    jax.distributed.shutdown()
    return differ == 0


def ended(started: Sequence[subprocess.Popen[bytes]], limit_s: float = 300) -> int:
    """The exit status of processes that need each other: 0 where all have ended well;
    else that of the first that has not, 1 past the limit. None of them is left."""
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            codes = [child.poll() for child in started]
            if any(codes) or None not in codes:
                return next((code for code in codes if code), 0)
            time.sleep(0.1)
        return 1
    finally:
        for child in started:
            child.kill()
            child.wait()


def main(
    devices: Annotated[int, typer.Option(min=1, help="CPU devices a process")] = 1,
    context: Annotated[int, typer.Option(min=1, help="keys of each KV head")] = 4096,
    pes: Annotated[int, typer.Option(min=1, help="one KV head each")] = 8,
    process: Annotated[int, typer.Option(hidden=True)] = -1,
    port: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Run both processes and exit with 0 where the bits are equal."""
    if pes % (PROCESSES * devices):
        raise typer.BadParameter(f"--pes is a multiple of {PROCESSES * devices}")
    if process >= 0:
        sys.exit(not take_part(process, port, devices, context, pes))
    port = free_port()
    options = [f"--devices={devices}", f"--context={context}", f"--pes={pes}"]
    command = [sys.executable, __file__, *options, f"--port={port}"]
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    started = [
        subprocess.Popen([*command, f"--process={n}"], env=env)
        for n in range(PROCESSES)
    ]
    sys.exit(ended(started))


if __name__ == "__main__":
    typer.run(main)
