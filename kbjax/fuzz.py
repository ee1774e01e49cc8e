"""A named kernel at drawn sizes: every check of `kbjax.testing` at each, and the
smallest sizes at which one fails. Needs hypothesis, the extra `fuzz`."""

from __future__ import annotations

import itertools
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbjax import catalogue, errors, testing
from kbjax.hardware import Hardware

DTYPES = ("float32", "float16", "bfloat16")
MOST_BYTES = 8 << 20  # of an example's inputs
MOST_ROWS = 20_000  # of its op_log
MOST_SHRINKS = 40  # sizes that are run once some have failed
_PRIMES = (2, 3, 5, 7, 13, 31)


@dataclass
class FuzzReport:
    """What came of it.

    Attributes:
      varied: the sizes that were drawn, and from what.
      ran: sizes that were run, those of shrinking included.
      refused: how often sizes were refused, by the reason.
      too_large: how many sizes were left out, for their work.
      failure: the smallest sizes that fail, or None.
      detail: what fails at them.
      command: which command line shows it.
    """

    kernel: str
    fixed: dict[str, Any]
    varied: dict[str, list[Any]]
    ran: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    too_large: int = 0
    failure: dict[str, Any] | None = None
    detail: str = ""
    command: str = ""

    @property
    def verdict(self) -> str:
        """pass, fail, or nothing where no sizes could be run."""
        if self.failure is not None:
            return "fail"
        return "pass" if self.ran else "nothing"

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {"verdict": self.verdict, **vars(self), "refused": dict(self.refused)}


def fuzz(
    kernel: str,
    *,
    sizes: Mapping[str, Any] | None = None,
    examples: int = 20,
    seed: int = 0,
    hardware: Hardware | None = None,
    hardware_name: str = "default",
    progress: Callable[[str], None] = lambda _: None,
) -> FuzzReport:
    """Run a kernel at drawn sizes.

    Args:
      kernel: a name that the catalogue knows, or ``path.py:function``.
      sizes: those that are not drawn.
      examples: how many sizes to run.
      seed: of what is drawn; the same seed draws the same sizes.
      hardware: what it is called with, and `hardware_name`, its name in commands.
      progress: told in a line what runs.

    Raises:
      KernelError: without hypothesis, and for a kernel or a size that does not exist.
    """
    try:
        import hypothesis
        from hypothesis import strategies
    except ImportError as error:
        raise errors.KernelError(
            "fuzzing needs hypothesis, which is not installed",
            remedy="Run pip install 'kbjax[fuzz]'",
        ) from error
    fixed = dict(sizes or {})
    catalogue.check_sizes(kernel, fixed)
    base = _base(kernel, fixed)
    varied = candidates(kernel, base, fixed, hardware)
    found = FuzzReport(kernel, fixed, varied)
    seen: dict[str, str | None] = {}  # what came of sizes; "" where they are fine
    budget = [MOST_SHRINKS]

    def outcome(drawn: dict[str, Any]) -> str | None:
        """What fails at the sizes, "" for nothing, None where they are not run."""
        key = repr(drawn)
        if key not in seen:
            if budget[0] <= 0:
                return ""
            before = found.ran
            seen[key] = _run(
                kernel, base | drawn, hardware, found, progress, _failed(found.detail)
            )
            if found.failure is not None:
                budget[0] -= found.ran - before
        return seen[key]

    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.seed(seed)
    @hypothesis.given(
        strategies.fixed_dictionaries(
            {
                name: strategies.one_of(
                    strategies.sampled_from(values), strategies.just(base[name])
                )
                if name in base
                else strategies.sampled_from(values)
                for name, values in varied.items()
            }
        )
    )
    def example(drawn: dict[str, Any]) -> None:
        failed = outcome(drawn)
        if failed is None:
            hypothesis.reject()
        if failed:
            found.failure, found.detail = base | drawn, failed
            raise AssertionError(failed)

    try:
        example()
    except AssertionError:
        pass
    except hypothesis.errors.Unsatisfiable:
        pass
    if found.failure is not None:
        for smaller in _pairs_smaller(found, varied):
            failed = outcome({name: smaller[name] for name in varied})
            if failed:
                found.failure, found.detail = smaller, failed
        found.command = _command(found, hardware_name)
    return found


def _pairs_smaller(
    found: FuzzReport, varied: Mapping[str, list[Any]]
) -> Iterator[dict[str, Any]]:
    """The failing sizes with two of them smaller, the smallest first, and so on from
    what fails of these: hypothesis makes one smaller at a time, and a tile and what it
    divides are refused unless both are."""
    changed = True
    while changed:
        changed = False
        for pair in itertools.combinations(varied, 2):
            before = found.failure
            assert before is not None
            lower = [_below(varied[n], before[n]) for n in pair]
            if not all(lower):
                continue
            places = itertools.product(*(range(len(some)) for some in lower))
            for one, other in sorted(places, key=sum):
                values = lower[0][one], lower[1][other]
                yield {**before, **dict(zip(pair, values, strict=True))}
                if found.failure is not before:
                    changed = True
                    break


def _below(values: list[Any], value: Any) -> list[Any]:
    return values[: values.index(value)] if value in values else values


def candidates(
    kernel: str,
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    hardware: Hardware | None = None,
) -> dict[str, list[Any]]:
    """What each size that is not fixed is drawn from, the smallest first: integers,
    booleans, and `dtype`. The seed of the inputs is not drawn."""
    found: dict[str, list[Any]] = {}
    kinds = catalogue.size_types(kernel)
    for name, kind in kinds.items():
        if name in fixed or name == "seed":
            continue
        if name == "dtype":
            taken = [d for d in DTYPES if _takes(kernel, {**base, name: d}, hardware)]
            if taken:
                found[name] = taken
        elif kind is bool:
            found[name] = [False, True]
        elif kind is int:
            found[name] = integers(base.get(name, 8), [*base.values()])
    return found


def integers(around: int, others: list[Any]) -> list[int]:
    """Integers worth trying for a size: 1, small primes, powers of two, the size
    itself, its neighbours, its double, and neighbours of the kernel's other sizes; up
    to twice the size."""
    most = max(2 * around, 4)
    other = [n for n in others if isinstance(n, int) and not isinstance(n, bool)]
    near = [n + by for n in (around, *other) for by in (-1, 0, 1)]
    powers = [1 << n for n in range(most.bit_length())]
    tried = {1, 2 * around, around // 2, *_PRIMES, *powers, *near}
    lowest = 0 if around < 1 else 1
    return sorted(n for n in tried | {min(around, most)} if lowest <= n <= most)


def _base(kernel: str, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that others are drawn around: given, else small, else default."""
    defaults = {
        name: value
        for name, value in catalogue.sizes_of(kernel).items()
        if value is not catalogue.REQUIRED
    }
    return {**defaults, **catalogue.small_sizes(kernel), **fixed}


def _takes(kernel: str, sizes: dict[str, Any], hardware: Hardware | None) -> bool:
    try:
        catalogue.make(kernel, hardware=hardware, **sizes)
    except errors.DTypeError:
        return False
    except errors.KbjaxError:
        return True  # for another reason
    return True


def _run(
    kernel: str,
    sizes: dict[str, Any],
    hardware: Hardware | None,
    found: FuzzReport,
    progress: Callable[[str], None],
    checks: Sequence[str],
) -> str | None:
    progress(f"{found.ran} run; {_given(sizes)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = catalogue.make(kernel, hardware=hardware, **sizes)
            specs = case.inputs.specs
            if sum(one.size * one.dtype.itemsize for one in specs) > MOST_BYTES:
                found.too_large += 1
                return None
            if len(case.call.op_log(*specs)) > MOST_ROWS:
                found.too_large += 1
                return None
        except errors.KbjaxError as error:
            found.refused[f"{type(error).__name__}: {error.problem}"] += 1
            return None
        except Exception as error:  # the kernel's own
            found.ran += 1
            return f"{type(error).__name__}: {error}"
        found.ran += 1
        try:
            report = testing.report_case(case, checks=checks)
        except Exception as error:  # the kernel's own, or its reference's
            return f"{type(error).__name__}: {error}"
    return "\n".join(map(str, report.failed))


def _failed(detail: str) -> list[str]:
    """The checks that a detail says have failed, which smaller sizes are to fail too;
    all where it names none."""
    lines = detail.splitlines()
    named = [c for c in testing.CHECKS if any(x.startswith(f"{c} ") for x in lines)]
    return named or list(testing.CHECKS)


def _given(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"--size {n}={shlex.quote(str(v))}" for n, v in sizes.items())


def _command(found: FuzzReport, hardware_name: str) -> str:
    """`kbjax run`, which compares the numbers; where another check fails, the same with
    all sizes fixed."""
    assert found.failure is not None
    numbers = found.detail.startswith("numbers ") or not found.detail.startswith(
        tuple(f"{check} failed" for check in testing.CHECKS)
    )
    words = ["kbjax", "run" if numbers else "fuzz", shlex.quote(found.kernel)]
    if hardware_name != "default":
        words += ["--hardware", shlex.quote(hardware_name)]
    return " ".join([*words, _given(found.failure)])
