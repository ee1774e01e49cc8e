"""PEs over devices. What needs several devices is in tests/eight_devices.py and
tests/eight_devices_messages.py, run here in one process that has them; and two
processes are joined to one mesh."""

from __future__ import annotations

import logging
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import kbjax as kb
from kbjax import data_phase
from kbjax.mesh import Pes
from tests.helpers import assert_same_bits

ROOT = Path(__file__).resolve().parents[1]
FLAG = "--xla_force_host_platform_device_count"


def run(*command: str, **env: str) -> str:
    """What a Python process says; it must end well."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_on_eight_devices() -> None:
    said = run(
        "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rN",
        "tests/eight_devices.py", "tests/eight_devices_messages.py",
        XLA_FLAGS=f"{FLAG}=8",
    )  # fmt: skip
    assert "100%" in said, said


def test_two_processes_of_two_devices_give_the_bits_of_one() -> None:
    script = str(ROOT / "scripts" / "two_processes.py")
    said = run(script, "--devices=2", "--context=64", "--pes=4")
    assert " 0 of 2048 elements differ" in said, said


def test_a_process_that_dies_takes_its_partner_along() -> None:
    """Which would wait for it."""
    script = runpy.run_path(str(ROOT / "scripts" / "two_processes.py"))

    def started(*exits: str) -> list[subprocess.Popen[bytes]]:
        return [subprocess.Popen([sys.executable, "-c", code]) for code in exits]

    waits = "import time; time.sleep(600)"
    for exits, limit_s, want in (
        ((waits, "raise SystemExit(3)"), 300, 3),
        ((waits, "import os; os.abort()"), 300, -6),
        ((waits, "pass"), 1, 1),
        (("pass", "pass"), 300, 0),
    ):
        children = started(*exits)
        assert script["ended"](children, limit_s) == want
        assert all(child.returncode is not None for child in children)


# --- with the one device of this process ---------------------------------------------

OUT = jax.ShapeDtypeStruct((3,), "float32")


def scaled(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.load(x) * 2.0 + tl.program_id())


@pytest.mark.parametrize(
    "mesh", [1, "pe", jax.devices(), AbstractMesh((2,), ("pe",))], ids=repr
)
def test_what_is_no_mesh_is_refused(mesh: Any) -> None:
    with pytest.raises(kb.KernelError, match=r"mesh is a jax\.sharding\.Mesh"):
        kb.kernel_call(scaled, OUT, num_pes=2, mesh=mesh)


def test_a_mesh_of_one_device_changes_nothing() -> None:
    x, mesh = np.ones((4, 3), np.float32), Mesh(jax.devices()[:1], ("pe",))
    plain = kb.kernel_call(scaled, OUT, num_pes=4)
    meshed = kb.kernel_call(scaled, OUT, num_pes=4, mesh=mesh)
    for fidelity in ("live", "exact"):
        want, got = (c.run(x, fidelity=fidelity) for c in (plain, meshed))
        assert_same_bits(got.outputs, want.outputs)
        assert_same_bits(got.tcm.memory, want.tcm.memory)


@pytest.mark.parametrize("total", [1, 2, 5])
def test_rotate_without_a_mesh_is_roll(total: int) -> None:
    pes = Pes.over(total, None, lockstep=True)
    values = np.arange(total * 2).reshape(total, 2) if total > 1 else np.arange(2)
    for offset in range(-total - 1, 2 * total + 2):
        got = jax.jit(lambda x, n=offset: pes.rotate(x, n))(values)
        want = np.roll(values, offset, axis=0) if total > 1 else values
        np.testing.assert_array_equal(got, want, f"offset {offset}")


# --- PEs with trip counts of their own -----------------------------------------------


def test_masked_writes_update_the_scratchpad_in_place() -> None:
    """No update is fused with a constant slice of the array that it updates, which
    would write all of it anew (jax 0.10.2: 20 times slower)."""

    def kernel(tl: Any, x: Any, o: Any) -> None:
        total = tl.zeros((8,))
        for j in tl.range(tl.program_id() + 1):
            with tl.scratch_scope():
                tl.copy_to(total, total * 0.5 + tl.load(x[j]))
        tl.send(total, 1)  # which keeps PEs in lockstep
        tl.store(o, tl.recv((8,), "float32", 1).wait())

    x = jax.ShapeDtypeStruct((4, 4, 8), "float32")
    call = kb.kernel_call(kernel, jax.ShapeDtypeStruct((8,), "float32"), num_pes=4)
    lowered = data_phase.lower(call.record(x), "exact", with_memory=False).lower(x)
    body: list[str] = []
    updates = 0
    for line in lowered.compile().as_text().splitlines():
        body = [] if line.endswith("{") else [*body, line]
        update = re.search(
            r"ROOT .* = u8\[4,\d+\].* dynamic-update-slice\((%\S+),", line
        )
        if update:
            updates += 1
            sliced = f" slice({update[1]})"
            assert not any(sliced in other for other in body), "\n".join(body)
    assert updates >= 3


# --- grid sizes (FC-35 a) ------------------------------------------------------------


def softmax(tl: Any, x: Any, o: Any) -> None:
    tl.store(o, tl.softmax(tl.load(x)))


def by_tiles(tl: Any, x: Any, o: Any) -> None:
    total = tl.zeros((8, 8))
    for j in tl.range(8):
        with tl.scratch_scope():
            tl.copy_to(total, total + tl.load(x[tl.ds(j * 8, 8), 0:8]))
    tl.store(o, total)


@pytest.mark.parametrize("num_pes", [1, 16, 256])
def test_one_compilation_and_the_right_values(
    num_pes: int, caplog: pytest.LogCaptureFixture
) -> None:
    lead = (num_pes,) if num_pes > 1 else ()
    x = np.random.default_rng(num_pes).standard_normal((*lead, 64, 64), np.float32)
    out = jax.ShapeDtypeStruct((64, 64), "float32")
    call = kb.kernel_call(softmax, out, num_pes=num_pes)
    e = np.exp(x.astype(np.float64))
    want = e / e.sum(axis=-1, keepdims=True)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        for _ in range(3):
            np.testing.assert_allclose(call(x), want, rtol=2e-6)
    compiled = [r for r in caplog.records if "Finished XLA compil" in r.getMessage()]
    assert len(compiled) == 1


@pytest.mark.parametrize("kernel", [softmax, by_tiles])
def test_what_is_compiled_does_not_grow_with_the_pes(kernel: Any) -> None:
    """1024 PEs trace to no more equations than 64."""

    def equations(num_pes: int) -> int:
        size = 64 if kernel is softmax else 8
        out = jax.ShapeDtypeStruct((size, size), "float32")
        x = jax.ShapeDtypeStruct((num_pes, 64, 64), "float32")
        call = kb.kernel_call(kernel, out, num_pes=num_pes)
        return str(jax.make_jaxpr(lambda a: call(a))(x)).count(" = ")

    assert equations(1024) <= equations(64)
