"""Hardware for tests: an unusual one, and strategies of random ones."""

from __future__ import annotations

from hypothesis import strategies as st

import kbjax as kb
from kbjax import dtypes
from kbjax.hardware import MATH_OPS, PeDma, PeGemm, PeLink, PeMath, PeTcm

UNUSUAL = kb.Hardware(
    pe_tcm=PeTcm(kernel_scratch_mb=0.5, scratch_base=4096, align=64),
    pe_dma=PeDma(bandwidth_gb_s=100.5, latency_ns=0),
    pe_gemm=PeGemm(
        rows=8, cols=4, depth=2, clock_ghz=1.5, overhead_ns=0.25, rate={"bfloat16": 2}
    ),
    pe_math=PeMath(lanes=3, clock_ghz=0.1, overhead_ns=7, cycles={"exp": 9, "copy": 2}),
    pe_link=PeLink(bandwidth_gb_s=1e-3, latency_ns=1e6),
)

RATES = st.floats(
    0, exclude_min=True, allow_nan=False, allow_infinity=False
) | st.integers(1, 10**30)
TIMES = st.floats(0, 9e15) | st.integers(0, 10**6)
_COUNTS = st.integers(1, 2**31 - 1)


@st.composite
def hardwares(draw: st.DrawFn) -> kb.Hardware:
    """Any hardware: every field drawn from all of its range."""
    align = draw(st.integers(1, 4096))
    return kb.Hardware(
        pe_tcm=PeTcm(
            kernel_scratch_mb=draw(st.floats(2**-20, 2**30) | st.integers(1, 2**30)),
            scratch_base=align * draw(st.integers(0, 2**40)),
            align=align,
        ),
        pe_dma=PeDma(bandwidth_gb_s=draw(RATES), latency_ns=draw(TIMES)),
        pe_gemm=PeGemm(
            rows=draw(_COUNTS),
            cols=draw(_COUNTS),
            depth=draw(_COUNTS),
            clock_ghz=draw(RATES),
            overhead_ns=draw(TIMES),
            rate=draw(st.dictionaries(st.sampled_from(list(dtypes.TABLE)), RATES)),
        ),
        pe_math=PeMath(
            lanes=draw(_COUNTS),
            clock_ghz=draw(RATES),
            overhead_ns=draw(TIMES),
            cycles=draw(st.dictionaries(st.sampled_from(MATH_OPS), RATES)),
        ),
        pe_link=PeLink(bandwidth_gb_s=draw(RATES), latency_ns=draw(TIMES)),
    )
