"""Results as Markdown for README and documentation, made from the JSON of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import compact, figure, share, split

Found = dict[str, Any]  # the result of ``benchmarks.report.as_json``
# The facts to show about parts that were measured later than the others.
AGAIN = ("pymq", "date", "cpu", "runs", "scale", "cores", "load", "load_after")


def load(file: Path) -> Found:
    """Load the JSON of a run."""
    found: Found = json.loads(file.read_text(encoding="utf-8"))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, with bars in cells escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def about(found: Found) -> str:
    """Describe the machine, the date and the method."""
    machine = found["machine"]
    later: dict[str, list[str]] = {}
    for part in found["parts"]:
        if (measured := part.get("measured")) is not None:
            told = f"pymq {measured['pymq']}, {measured['date'][:10]}, {measured['cpu']}"
            later.setdefault(f"{told}. {_runs(measured)}", []).append(part["name"])
    again = "".join(f" Later than that {', '.join(each)}: {told}" for told, each in later.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['file_system']}; Python {machine['python']}, "
        f"SQLite {machine['sqlite']}, pymq {machine['pymq']}; {machine['date'][:10]}. "
        f"{_runs(machine)}{again}"
    )


def _runs(machine: Found) -> str:
    """Describe the number of runs, and the other load of the machine."""
    scale = {"long": "four times the records, ", "tiny": "hardly any records, "}
    # The benchmark has up to five processes: the load at its end may be its own.
    is_busy = machine["load"] > machine["cores"] or machine["load_after"] > 2 * machine["cores"]
    busy = (
        " The machine was busy with other work: only the ratios are meaningful." if is_busy else ""
    )
    runs = "One run" if machine["runs"] == 1 else f"Medians of {machine['runs']} runs in turn"
    return (
        f"{runs}, {scale.get(machine['scale'], '')}"
        f"load {machine['load']} before and {machine['load_after']} after.{busy}"
    )


def versions(found: Found) -> str:
    """List the versions of all measured products."""
    packages = found["machine"]["packages"]
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def headlines(found: Found) -> str:
    """Return a line for each goal with a peer: pymq's figure, the best peer's, and the ratio."""
    rows = []
    for part in found["parts"]:
        goals = [
            goal
            for goal in part["goals"]
            if goal["peer"] and goal["reached"] is not None and _bound(goal)
        ]
        rows += [_headline(part, goal) for goal in goals]
    return table(("work", "pymq", "best peer", "ratio", "goal"), rows)


# The README's rows: the work, the part, pymq's side, and the measure of pymq and its peers.
FRONT = (
    ("put, synced every 1,000 records, one process", "E1-put-durable", "pymq send_many", "put"),
    ("put, synced each record, one process", "E4-one-durable", "pymq", "put"),
    ("produce and consume at the same time, one broker", "N1-end-to-end", "pymq", "both"),
    ("produce to three replicas, pymq synced on a majority", "R1-put-durable", "pymq", "put"),
    ("from producer to consumer, median", "N5-latency", "pymq", "p50"),
    (
        "no-op tasks, 4 workers; acknowledgements synced, pymq's by the poll",
        "Q1-noop",
        "pymq",
        "4 workers",
    ),
)
# The peers, each with its sides; the best side of each peer counts. Without a Kafka broker, Kafka's
# C client runs against its own test broker, in memory.
PEERS = (
    ("Kafka", ("kafka",)),
    ("Kafka's C client on its mock broker", ("confluent",)),
    ("NATS JetStream", ("nats", "nats fast")),
    ("RabbitMQ", ("rabbitmq", "rabbitmq sub-entries")),
    ("Celery on Redis", ("celery", "celery solo")),
    ("sqlite3", ("sqlite3",)),
)


LESS_IS_BETTER = ("ms", "x ideal", "B/task")  # units


def front(found: Found) -> str:
    """Return some lines for the README: pymq beside its alternatives."""
    parts_by_name = {part["name"]: part for part in found["parts"]}
    rows = []
    for work, name, ours, measure in FRONT:
        if (part := parts_by_name.get(name)) is not None:
            sides = {side["name"]: side for side in part["sides"]}
            cells = [_best(sides, names, measure) for _, names in PEERS]
            rows.append((work, f"**{_best(sides, (ours,), measure)}**", *cells))
    kept = [at for at in range(2 + len(PEERS)) if any(row[at] for row in rows)]
    head = ("100 B a record", "pymq", *(name for name, _ in PEERS))
    return table([head[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _best(sides: Mapping[str, Found], names: Sequence[str], measure: str) -> str:
    """Return the best figure of some sides, with its unit; empty without a measurement."""
    there = [sides[name] for name in names if measure in sides.get(name, {}).get("median", {})]
    if not there:
        return ""
    unit = there[0]["units"][measure]
    choose = min if unit in LESS_IS_BETTER else max
    return f"{figure(choose(side['median'][measure] for side in there))} {unit}"


def _headline(part: Found, goal: Found) -> tuple[str, ...]:
    side = goal["side"].removeprefix("pymq").strip() or "pymq"
    measures = {each["measure"] for each in part["goals"] if each["side"] == goal["side"]}
    return (
        f"{part['title']}: {goal['measure']}" if len(measures) > 1 else part["title"],
        f"{_value(part, goal['side'], goal['measure'])} (`{side}`)",
        f"{_value(part, goal['peer'], goal['measure'])} ({goal['peer']})",
        f"**{share(goal['reached'])}x**",
        _bound(goal),
    )


def _value(part: Found, side: str, measure: str) -> str:
    (found,) = [each for each in part["sides"] if each["name"] == side]
    # A peer's figure may be of another measure than pymq's, for example the best of several.
    name = measure if measure in found["median"] else next(iter(found["median"]))
    return f"{figure(found['median'][name])} {found['units'][name]}"


def _bound(goal: Found) -> str:
    if goal["at_least"] is not None:
        text = f">= {goal['at_least']:g}x"
    elif goal["at_most"] is not None:
        text = f"<= {goal['at_most']:g}x"
    else:
        return ""
    return text if goal["met"] else f"{text}, missed"


# The columns of work queues: the heading, the part and the measure.
QUEUES = (
    ("no-ops, 1 worker", "Q1-noop", "1 worker"),
    ("4 workers", "Q1-noop", "4 workers"),
    ("16 workers", "Q1-noop", "16 workers"),
    ("tasks of 1 ms, 4 workers", "Q2-millisecond", "4 workers"),
    ("send to start, p50", "Q3-start", "start p50"),
    ("p99", "Q3-start", "start p99"),
    ("200 tasks of 20 ms", "Q4-fairness", "time"),
    ("a delayed task", "Q5-delayed", "memory"),
)


def queues(found: Found) -> str:
    """Return a row for each work queue, and the goals of part Q."""
    measured = {part["name"]: part for part in found["parts"] if part["name"].startswith("Q")}
    sides = {
        name: {side["name"]: side for side in part["sides"]} for name, part in measured.items()
    }
    names = dict.fromkeys(name for each in sides.values() for name in each)
    kept = [
        (head, name, measure)
        for head, name, measure in QUEUES
        if any(measure in side["median"] for side in sides.get(name, {}).values())
    ]
    rows = [
        (
            f"**{name}**" if name.startswith("pymq") else name,
            *(_best(sides[of], (name,), measure) for _, of, measure in kept),
        )
        for name in names
    ]
    goals = [(part, goal) for part in measured.values() for goal in part["goals"]]
    return "\n\n".join(
        (
            table(("", *(head for head, _, _ in kept)), rows),
            table(("goal of pymq", "reached", ""), [_goal(part, goal) for part, goal in goals]),
        )
    )


def _goal(part: Found, goal: Found) -> tuple[str, str, str]:
    """Return a goal, the reached share of it, and whether that is enough."""
    low, high = goal["at_least"], goal["at_most"]
    what = f"{part['name']}, {goal['side']}, {goal['measure']}: "
    what += f"at least {low:g}" if low is not None else f"at most {high:g}"
    if goal["reached"] is None:
        return what, "", "not measured"
    if goal["peer"]:
        reached, unit = share(goal["reached"]), f" times {goal['peer']}"
    else:
        (side,) = [each for each in part["sides"] if each["name"] == goal["side"]]
        reached, unit = figure(goal["reached"]), f" {side['units'][goal['measure']]}"
    return f"{what}{unit}", f"{reached}{unit}", "met" if goal["met"] else "**missed**"


def part_table(part: Found) -> str:
    """Return all sides of a part, each with its settings, and the lowest and highest run."""
    rows: list[tuple[str, ...]] = []
    for side in part["sides"]:
        name = f"**{side['name']}**" if side["name"].startswith("pymq") else side["name"]
        if problem := _problem(side):
            rows.append((name, side["setting"], "", "-", problem))
        for measure, median in side["median"].items():
            runs = [run[measure] for run in side["runs"] if measure in run]
            spread = f"{figure(min(runs))} .. {figure(max(runs))}"
            unit = side["units"][measure]
            rows.append((name, side["setting"], measure, f"{figure(median)} {unit}", spread))
    return table(("", "setting", "", "median", "lowest to highest"), rows)


def curve_table(part: Found) -> str:
    """Return a part along an axis as a table, with a row for each side and measure and a column for
    each step of the axis.
    """
    steps = sorted({split(m)[1] for side in part["sides"] for m in side["median"]})
    rows: list[tuple[str, ...]] = []
    for side in part["sides"]:
        if problem := _problem(side):
            rows.append((side["name"], problem, *[""] * len(steps)))
        for what in dict.fromkeys(split(m)[0] for m in side["median"]):
            cells = [side["median"].get(f"{what} {step}") for step in steps]
            unit = next(unit for m, unit in side["units"].items() if split(m)[0] == what)
            told = ("" if cell is None else figure(cell) for cell in cells)
            rows.append((side["name"], f"{what}, {unit}", *told))
    return table(("", "", *map(compact, steps)), rows)


def _problem(side: Found) -> str:
    return side["error"] or (f"missing: {side['missing']}" if side["missing"] else "")


def parts(found: Found) -> str:
    """Return every part with its table."""
    texts = []
    for part in found["parts"]:
        told = curve_table(part) if part["axis"] else part_table(part)
        texts.append(f"### {part['name']}: {part['title']}\n\n{told}")
    return "\n\n".join(texts)
