"""Opens the queue of a command, from ``--url`` or ``PYMQ_URL`` and the key options."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pymq
from pymq.core.metadata.descriptions import TopicDescription
from pymq.errors import ConfigError, PymqError, StoreError, UnknownGroup, UnknownTopic
from pymq.nodes.embedded import METADATA

URL = "PYMQ_URL"


def arguments(parser: argparse.ArgumentParser, *, is_top: bool = False) -> None:
    """Add ``--url`` and the key options.

    The options of a nested command override those of the *top* command.
    """
    default = None if is_top else argparse.SUPPRESS
    parser.add_argument(
        "--url",
        default=default,
        help=f"a folder, or zmq+tcp://HOST:PORT,HOST:PORT of zkservers (${URL})",
    )
    parser.add_argument(
        "--curve-dir",
        metavar="DIR",
        default=default,
        help="the folder of keys, if the cluster uses keys",
    )
    parser.add_argument(
        "--principal", metavar="NAME", default=default, help="the name of our own key"
    )
    parser.add_argument(
        "--tls-dir",
        metavar="DIR",
        default=default,
        help="the folder of certificates, for tls://HOST:PORT",
    )


def url_of(args: argparse.Namespace) -> str:
    """Return the given URL.

    Raises:
        ConfigError: no URL was given.
    """
    url: str | None = args.url or os.environ.get(URL)
    if not url:
        raise ConfigError(
            f"no queue given: use --url or set {URL}: a folder, or zmq+tcp://HOST:PORT of a "
            "zkserver"
        )
    return url


def folder_of(url: str) -> str | None:
    """Return the folder that a URL names; None for other URLs."""
    if url in ("memory:", ":memory:"):
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    return rest if scheme == "file" else None


@contextmanager
def opened(args: argparse.Namespace, *, makes: bool = False) -> Iterator[pymq.Client]:
    """Open a client of the queue; only a command that *makes* a topic may create a folder.

    Errors about unknown names get a note with similar names.
    """
    url = url_of(args)
    folder = folder_of(url)
    if folder is not None and not makes and not os.path.exists(os.path.join(folder, METADATA)):
        raise StoreError(
            f"there is no queue in {folder!r}; 'pymq topic create --url {folder} NAME' creates one"
        )
    with pymq.open(
        url, curve_dir=args.curve_dir, principal=args.principal, tls_dir=args.tls_dir
    ) as mq:
        try:
            yield mq
        except (UnknownTopic, UnknownGroup) as error:
            suggest(mq, error)
            raise


def described(mq: pymq.Client) -> Iterator[TopicDescription]:
    """Describe all topics."""
    for name in mq.topics():
        try:
            yield mq.describe_topic(name)
        except UnknownTopic:
            continue  # the topic has been deleted


def suggest(mq: pymq.Client, error: PymqError) -> None:
    """Add similar or existing names to an error, if the names can be read."""
    kind = "topic" if isinstance(error, UnknownTopic) else "group"
    try:
        names = mq.topics() if kind == "topic" else mq.groups()
    except PymqError:
        return  # report the first error, not this one
    wanted = error.message.split("'")[1] if error.message.count("'") >= 2 else ""
    near = difflib.get_close_matches(wanted, names, 1)
    if near:
        error.add_note(f"did you mean {near[0]!r}?")
    elif names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        error.add_note(f"there are the {kind}s {', '.join(names[:8])}{more}")
    else:
        error.add_note(f"there is no {kind} yet")
