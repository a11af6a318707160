"""``pymq dlq``: lists, shows, sends back and purges dead letters."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

import pymq
from pymq.cli.connect import opened
from pymq.cli.record_text import as_json, printable, shorten
from pymq.cli.show import OK, Show
from pymq.cli.subcommands import word, words
from pymq.cli.units import duration_ms, time_text
from pymq.core.counts import clause, plural
from pymq.errors import ConfigError

HELP = "list, show, redrive and purge dead letters"

SUFFIX = ".dlq"  # suffix of a dead-letter topic, unless a consumer names another topic
ERROR, TEXT = 60, 40  # characters shown of an error, and of a key or value

Where = Callable[[pymq.Record], bool]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = words(parser)
    found = word(there, "list", "show dead-letter topics with their letters, by error", _list)
    found.add_argument("topics", metavar="TOPIC", nargs="*", help=f"default: all with {SUFFIX}")
    shown = word(there, "show", "show letters that were not sent back", _show)
    shown.add_argument("topic", metavar="TOPIC", help=f"the dead-letter topic, as jobs{SUFFIX}")
    shown.add_argument("--max", metavar="N", type=int, default=20, help="default: 20")
    _filters(shown)
    again = word(there, "redrive", "send letters back to their topic, each of them once", _redrive)
    again.add_argument("topic", metavar="TOPIC", help=f"the dead-letter topic, as jobs{SUFFIX}")
    again.add_argument("--to", metavar="TOPIC", help="default: the topic that each letter names")
    again.add_argument("--rate", metavar="N", type=float, help="letters a second, at most")
    again.add_argument("--max", metavar="N", type=int, help="letters in all, at most")
    again.add_argument("--dry-run", action="store_true", help="only count the letters")
    _filters(again)
    purge = word(there, "purge", "give letters up: they are not sent back", _purge)
    purge.add_argument("topic", metavar="TOPIC", help=f"the dead-letter topic, as jobs{SUFFIX}")
    purge.add_argument("--yes", action="store_true", help="do it; without, only count the letters")
    _filters(purge)


def _filters(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_argument_group("only letters")
    chosen.add_argument("--error", metavar="TEXT", help="whose error contains this text")
    chosen.add_argument("--from", metavar="TOPIC", dest="source", help="of records of this topic")
    chosen.add_argument("--group", metavar="NAME", help="that this group has given up")
    chosen.add_argument("--key", metavar="KEY", help="with this key")
    chosen.add_argument("--newer", metavar="TIME", help="not older than this, as 2h")


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the nested command."""
    return int(args.do(args, show))


def _list(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        names = args.topics or [name for name in mq.topics() if name.endswith(SUFFIX)]
        found = {name: Counter(map(_error, mq.dead_letters(name))) for name in names}
    if show.is_json:
        rows = [
            {"topic": name, "letters": errors.total(), "errors": dict(errors.most_common())}
            for name, errors in found.items()
        ]
        show.result({"topics": rows})
    elif not found:
        show.say(f"no topic ends with {SUFFIX}; name the dead-letter topic if yours does not")
    else:
        show.table(
            ("topic", "letters", "most frequent error"),
            [(name, f"{errors.total():,}", _most(errors)) for name, errors in found.items()],
            left=1,
        )
    return OK


def _most(errors: Counter[str]) -> str:
    if not errors:
        return "-"
    ((error, count),) = errors.most_common(1)
    return f"{count:,} x {shorten(error, ERROR)}"


def _show(args: argparse.Namespace, show: Show) -> int:
    if args.max < 1:
        raise ConfigError(f"--max {args.max}: at least 1")
    with opened(args) as mq:
        found = mq.dead_letters(args.topic, _where(args))
        letters = list(islice(found, args.max))
        # count the letters without keeping them: there may be millions
        rest = 0 if show.is_json else _count(found)
    if show.is_json:
        show.result({"letters": [as_json(letter) for letter in letters]})
        return OK
    for letter in letters:
        headers = dict(letter.headers)
        place = "/".join(_text(headers.get(f"pymq.{name}")) for name in ("topic", "partition"))
        show.say(f"{letter.partition}/{letter.offset}", style="bold")
        show.fields(
            [
                ("from", f"{place} offset {_text(headers.get('pymq.offset'))}"),
                ("group", _text(headers.get("pymq.group"))),
                ("deliveries", _text(headers.get("pymq.deliveries"))),
                ("given up", time_text(letter.timestamp_ms)),
                ("error", _error(letter)),
                ("key", "none" if letter.key is None else shorten(printable(letter.key), TEXT)),
                ("value", shorten(printable(letter.value), TEXT)),
            ]
        )
    if rest:
        show.say(f"and {plural(rest, 'letter')} more: --max {len(letters) + rest} shows all")
    elif not letters:
        show.say("there is no such letter")
    return OK


def _redrive(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        found = mq.redrive(
            args.topic,
            to=args.to,
            where=_where(args),
            dry_run=args.dry_run,
            rate=args.rate,
            limit=args.max,
        )
    if args.dry_run:
        sent = f"{plural(found.count, 'letter')} would be sent back"
        stay = f"{plural(found.skipped, 'letter')} would stay"
    else:
        sent = clause(found.count, "letter", "is sent back", "are sent back")
        stay = clause(found.skipped, "letter", "stays", "stay")
    show.say(f"{sent}, {stay}")
    if show.is_json:
        show.result({"sent_back": found.count, "stay": found.skipped, "dry_run": args.dry_run})
    return OK


def _purge(args: argparse.Namespace, show: Show) -> int:
    with opened(args) as mq:
        if args.yes:
            count = mq.purge_dead_letters(args.topic, _where(args))
        else:
            count = _count(mq.dead_letters(args.topic, _where(args)))
    show.say(
        f"{plural(count, 'letter')} {'purged' if args.yes else 'would be purged: --yes does it'}"
    )
    if show.is_json:
        show.result({"purged": count, "dry_run": not args.yes})
    return OK


def _count(letters: Iterable[pymq.Record]) -> int:
    return sum(1 for _ in letters)


# --- letters ------------------------------------------------------------------------------------


def _where(args: argparse.Namespace) -> Where | None:
    """Return the filter that the arguments describe; None for all letters."""
    tests = list[Where]()
    if args.error is not None:
        tests.append(lambda letter: args.error in _error(letter))
    for name, wanted in (("pymq.topic", args.source), ("pymq.group", args.group)):
        if wanted is not None:
            tests.append(_has(name, wanted.encode()))
    if args.key is not None:
        tests.append(lambda letter: letter.key == args.key.encode())
    if args.newer is not None:
        age = duration_ms(args.newer)
        if age is None:
            raise ConfigError(f"--newer {args.newer!r} is no time; use 90s, 15m, 2h or 7d")
        start = time.time() * 1000 - age
        tests.append(lambda letter: letter.timestamp_ms >= start)
    return (lambda letter: all(test(letter) for test in tests)) if tests else None


def _has(name: str, wanted: bytes) -> Where:
    return lambda letter: dict(letter.headers).get(name) == wanted


def _error(letter: pymq.Record) -> str:
    return _text(dict(letter.headers).get("pymq.error"))


def _text(data: bytes | None) -> str:
    return "unknown" if data is None else printable(data)
