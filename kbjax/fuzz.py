"""A named kernel at drawn sizes: every check of `kbjax.testing` at each, and the
smallest sizes at which one fails. Needs hypothesis, the extra `fuzz`."""

from __future__ import annotations

import itertools
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kbjax import catalogue, errors, extras, testing, user_files
from kbjax.checks import Finding
from kbjax.hardware import Hardware

DTYPES = ("float32", "float16", "bfloat16")
MOST_BYTES = 8 << 20  # of an example's inputs
MOST_ROWS = 20_000  # of its op_log
MOST_SHRINKS = 40  # sizes that are run once some have failed
_PRIMES = (2, 3, 5, 7, 13, 31)


@dataclass(frozen=True)
class Outcome:
    """What came of a kernel at some sizes.

    Attributes:
      status: refused and too large are not run.
      failed: of `failed`, the checks that did; none where something was raised.
      reason: of `refused`, why; of `failed`, what was raised, where something was.
    """

    status: Literal["passed", "failed", "refused", "too large"]
    failed: tuple[Finding, ...] = ()
    reason: str = ""

    @property
    def ran(self) -> bool:
        """Whether the kernel was run."""
        return self.status in ("passed", "failed")

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(one.check for one in self.failed)

    @property
    def detail(self) -> str:
        """What failed, in lines."""
        return "\n".join(map(str, self.failed)) or self.reason

    def shows(self, other: Outcome) -> bool:
        """Whether the same fails: one of the checks, or something that is raised."""
        if self.status != "failed":
            return False
        if not other.failed:
            return not self.failed
        return bool({*self.checks} & {*other.checks})


@dataclass(frozen=True)
class FuzzReport:
    """What came of it.

    Attributes:
      fixed: the sizes that were given.
      varied: the sizes that were drawn, and from what.
      ran: how many sizes were run, those of shrinking included.
      refused: how often sizes were refused, by the reason.
      too_large: how many sizes were left out, for their work.
      failure: the smallest sizes that fail, or None.
      detail: what fails at them.
      command: which command line shows it.
    """

    kernel: str
    fixed: dict[str, Any]
    varied: dict[str, list[Any]]
    ran: int
    refused: Counter[str]
    too_large: int
    failure: dict[str, Any] | None
    detail: str
    command: str

    @property
    def verdict(self) -> Literal["pass", "fail", "nothing"]:
        """ "nothing" where no sizes could be run."""
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
      KbjaxError: without hypothesis, and for a kernel or a size that does not exist.
    """
    extras.module("hypothesis", extra="fuzz", use="fuzzing")
    fixed = dict(sizes or {})
    catalogue.check_sizes(kernel, fixed)
    base = _base(kernel, fixed)
    varied = candidates(kernel, base, fixed, hardware)
    search = _Search(kernel, base, hardware, progress)
    _draw(search, varied, examples, seed)
    failure = search.failure
    if failure is not None:
        search.make_pairs_smaller(varied)
        failure = search.failure
    came = [*search.outcomes.values()]
    return FuzzReport(
        kernel,
        fixed,
        varied,
        ran=search.ran,
        refused=Counter(one.reason for one in came if one.status == "refused"),
        too_large=sum(one.status == "too large" for one in came),
        failure=None if failure is None else failure[0],
        detail="" if failure is None else failure[1].detail,
        command="" if failure is None else _command(kernel, *failure, hardware_name),
    )


@dataclass
class _Search:
    """A kernel at sizes, each run once.

    Attributes:
      base: the sizes that are not drawn.
      outcomes: by the sizes, as text.
      failure: the last sizes that failed as the first ones did.
    """

    kernel: str
    base: dict[str, Any]
    hardware: Hardware | None
    progress: Callable[[str], None]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failure: tuple[dict[str, Any], Outcome] | None = None
    shrinks: int = 0

    @property
    def ran(self) -> int:
        """How many sizes were run."""
        return sum(one.ran for one in self.outcomes.values())

    def outcome(self, drawn: dict[str, Any]) -> Outcome:
        """What comes of sizes; once some have failed, of the checks that did, and
        "passed" for those beyond `MOST_SHRINKS`."""
        sizes = self.base | drawn
        key = repr(sorted(sizes.items()))
        if key in self.outcomes:
            return self.outcomes[key]
        checks: Sequence[str] = testing.CHECKS
        if self.failure is not None:
            if self.shrinks >= MOST_SHRINKS:
                return Outcome("passed")
            checks = self.failure[1].checks or checks
        given = " ".join(_given(sizes))
        self.progress(f"{self.ran} run; {given}")
        found = run_at(self.kernel, sizes, self.hardware, checks)
        self.outcomes[key] = found
        self.shrinks += self.failure is not None and found.ran
        return found

    def fails(self, drawn: dict[str, Any]) -> bool:
        """Whether sizes fail, as the first that did; these are then the failure."""
        found = self.outcome(drawn)
        first = found if self.failure is None else self.failure[1]
        if not found.shows(first):
            return False
        self.failure = self.base | drawn, found
        return True

    def make_pairs_smaller(self, varied: Mapping[str, list[Any]]) -> None:
        """Two sizes at a time, as long as that fails: hypothesis makes one smaller at a
        time, and a tile and what it divides are refused unless both are."""
        pairs = [*itertools.combinations(varied, 2)]
        while any([self._makes_smaller(pair, varied) for pair in pairs]):
            pass

    def _makes_smaller(
        self, pair: tuple[str, str], varied: Mapping[str, list[Any]]
    ) -> bool:
        assert self.failure is not None
        sizes = {name: self.failure[0][name] for name in varied}
        lower = [_below(varied[name], sizes[name]) for name in pair]
        places = itertools.product(*(range(len(some)) for some in lower))
        for one, other in sorted(places, key=sum):
            values = lower[0][one], lower[1][other]
            if self.fails({**sizes, **dict(zip(pair, values, strict=True))}):
                return True
        return False


def _draw(
    search: _Search, varied: Mapping[str, list[Any]], examples: int, seed: int
) -> None:
    """Sizes that hypothesis draws, and makes smaller where some fail."""
    import hypothesis
    from hypothesis import strategies

    def one_of(name: str, values: list[Any]) -> Any:
        drawn = strategies.sampled_from(values)
        if name not in search.base:
            return drawn
        return strategies.one_of(drawn, strategies.just(search.base[name]))

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
            {name: one_of(name, values) for name, values in varied.items()}
        )
    )
    def example(drawn: dict[str, Any]) -> None:
        if search.fails(drawn):
            raise _Failed
        if not search.outcome(drawn).ran:
            hypothesis.reject()

    try:
        example()
    except _Failed:
        pass  # it is in the search
    except hypothesis.errors.Unsatisfiable:
        pass  # none could be run


class _Failed(Exception):
    """An example failed."""


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


def run_at(
    kernel: str,
    sizes: Mapping[str, Any],
    hardware: Hardware | None,
    checks: Sequence[str],
) -> Outcome:
    """Run some checks of a kernel at sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = catalogue.make(kernel, hardware=hardware, **sizes)
            specs = case.inputs.specs
            nbytes = sum(one.size * one.dtype.itemsize for one in specs)
            if nbytes > MOST_BYTES or len(case.call.op_log(*specs)) > MOST_ROWS:
                return Outcome("too large")
        except errors.KbjaxError as error:
            return Outcome("refused", reason=f"{type(error).__name__}: {error.problem}")
        except (Exception, SystemExit) as error:  # the kernel's own
            return _raised(error)
        try:
            found = testing.report_case(case, checks=checks)
        except (Exception, SystemExit) as error:  # the kernel's or its reference's
            return _raised(error)
    return Outcome("failed" if found.failed else "passed", found.failed)


def _raised(error: BaseException) -> Outcome:
    """With the line of the user's file that raised it, if one did."""
    of_a_line = user_files.raised(error)
    what = f"{type(error).__name__}: {error}" if of_a_line is None else str(of_a_line)
    return Outcome("failed", reason=what)


def _given(sizes: Mapping[str, Any]) -> list[str]:
    return [f"--size {n}={shlex.quote(str(v))}" for n, v in sizes.items()]


def _command(
    kernel: str, sizes: Mapping[str, Any], outcome: Outcome, hardware_name: str
) -> str:
    """`kbjax run`, which compares the numbers; where another check fails, `kbjax fuzz`
    with all sizes fixed."""
    shown_by_run = not outcome.failed or "numbers" in outcome.checks
    words = ["kbjax", "run" if shown_by_run else "fuzz", shlex.quote(kernel)]
    if hardware_name != "default":
        words += ["--hardware", shlex.quote(hardware_name)]
    return " ".join([*words, *_given(sizes)])
