"""``python -m pymq.testing``: runs many seeds, reports those that fail, and shrinks one."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from pymq.core.counts import plural
from pymq.testing.faults.kinds import PROFILES
from pymq.testing.faults.plan import Plan, generate
from pymq.testing.marks import all_marks
from pymq.testing.run import Result, run_plan
from pymq.testing.workload.liveness import LIVENESS

USAGE = """
Examples:
  python -m pymq.testing --seeds 0:100 --jobs 2     a hundred runs, two at a time
  python -m pymq.testing --seeds 17 --trace         one run, with its last events
  python -m pymq.testing --shrink 17 --out 17.json  make the plan of a failing run small
  python -m pymq.testing --plan 17.json             carry a plan out
  python -m pymq.testing --profile all --seeds 0:20000 --jobs 2 --quiet
                                                    a soak, of all profiles in turn
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(
        "python -m pymq.testing",
        description=__doc__,
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=_seeds, default="0:20", help="one seed, or from:to")
    parser.add_argument("--profile", default="swarm", choices=["all", *sorted(PROFILES)])
    parser.add_argument("--brokers", type=int, help="default: the seed chooses, mostly 3 or 5")
    parser.add_argument("--zkservers", type=int, help="default: the seed chooses 1 to 3")
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults, in virtual time")
    parser.add_argument(
        "--restart",
        default="any",
        choices=["any", "all", "apps", "none"],
        help="what restarts when the faults end; any: the seed chooses",
    )
    parser.add_argument(
        "--safety", action="store_true", help="do not check that all works again after the faults"
    )
    parser.add_argument("--marks", action="store_true", help="list the marks that no run passed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="show the last events of each run")
    parser.add_argument("--quiet", action="store_true", help="show only runs that fail")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make a failing plan small")
    parser.add_argument("--plan", type=Path, help="carry out a plan from a file")
    parser.add_argument("--out", type=Path, help="where to write the small plan")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for --shrink")
    options = parser.parse_args(arguments)
    make = partial(
        generate,
        brokers=options.brokers,
        zkservers=options.zkservers,
        profile=options.profile,
        seconds=options.seconds,
        restart=options.restart,
    )
    if options.shrink is not None:
        from pymq.testing.shrink import report, shrink

        small = shrink(make(options.shrink), budget_s=options.budget, say=_say)
        print(report(small))
        if options.out is not None:
            options.out.write_text(small.plan.to_json(), encoding="utf-8")
        return 1
    make_plans: list[Callable[[], Plan]]
    if options.plan is not None:
        make_plans = [partial(Plan.from_json, options.plan.read_text(encoding="utf-8"))]
    else:
        make_plans = [partial(make, seed) for seed in options.seeds]
    return _report(_run(make_plans, options), partial(_command, options), options)


def _command(options: argparse.Namespace, seed: int) -> str:
    """Return the command that repeats one of these runs and shows its last events."""
    words = ["python -m pymq.testing --trace"]
    if options.safety:
        words.append("--safety")
    if options.plan is not None:
        return " ".join([*words, f"--plan {shlex.quote(str(options.plan))}"])
    words.append(f"--profile {options.profile} --seconds {options.seconds:g}")
    sizes = ("brokers", options.brokers), ("zkservers", options.zkservers)
    words += [f"--{name} {number}" for name, number in sizes if number is not None]
    return " ".join([*words, f"--restart {options.restart} --seeds {seed}"])


def _seeds(text: str) -> range:
    """Parse one seed, or a range without its end.

    An empty range is an error, because a test without seeds cannot fail.
    """
    try:
        first, separator, last = text.partition(":")
        seeds = range(int(first), int(last) if separator else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not SEED or FROM:TO") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} contains no seed")
    return seeds


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _run(plans: list[Callable[[], Plan]], options: argparse.Namespace) -> Iterator[Result]:
    work = partial(_run_one, trace=options.trace, safety=options.safety, marks=options.marks)
    jobs = options.jobs
    if jobs < 2 or len(plans) < 2:
        yield from map(work, plans)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, plans, chunksize=4)


def _run_one(make: Callable[[], Plan], trace: bool, safety: bool, marks: bool) -> Result:
    plan = make()
    result = run_plan(plan, trace=trace, waive=LIVENESS if safety else (), marks=marks)
    if trace:
        result.trace = [*plan.describe(), *result.trace[-200:]]
    return result


def _report(
    results: Iterator[Result], command: Callable[[int], str], options: argparse.Namespace
) -> int:
    row = "{:>7} {:>8} {:>9} {:>9} {:>8} {:>7} {:>7} {:>7}  {}"
    print(row.format(*"seed digest events events/s x-real sent acked reads outcome".split()))
    failed: dict[str, list[Result]] = {}
    events, real_s, virtual_s, count = 0, 0.0, 0.0, 0
    marks: Counter[str] = Counter()
    for result in results:
        count += 1
        marks += result.marks
        events += result.events
        real_s += result.real_s
        virtual_s += result.virtual_s
        if result.violation is not None:
            failed.setdefault(result.violation, []).append(result)
        if not options.quiet or result.violation is not None:
            print(
                row.format(
                    result.seed,
                    result.digest,
                    result.events,
                    round(result.events / result.real_s),
                    round(result.virtual_s / result.real_s),
                    result.sent,
                    result.acked,
                    result.reads,
                    result.violation or result.waived.partition(":")[0] or "ok",
                ),
                flush=True,
            )
        if options.trace:
            print("\n".join(result.trace))
        if options.trace and result.violation is not None:
            print(result.message)
    print(
        f"{plural(count, 'run')}, {plural(events, 'event')}, "
        f"{events / max(real_s, 1e-9):.0f} events/s, "
        f"{virtual_s / max(real_s, 1e-9):.0f} x real time, {sum(map(len, failed.values()))} failed"
    )
    if options.marks:
        known = all_marks()
        missing = {name: file for name, file in known.items() if not marks[name]}
        print(f"{len(known) - len(missing)} of {len(known)} marks were passed, all but these:")
        print("".join(f"  {name:28} {file}\n" for name, file in sorted(missing.items())), end="")
    for name, results_of in sorted(failed.items()):
        print(f"\n{name}: {len(results_of)} runs; {results_of[0].message.strip()}")
        for result in results_of[:20]:
            print(f"  to see it again: {command(result.seed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
