"""Which queue a command is for: ``--url`` or ``PYMQ_URL``, and the keys for it."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pymq
from pymq.core.metadata.nodes import TopicDescription
from pymq.errors import ConfigError, PymqError, StoreError, UnknownGroup, UnknownTopic
from pymq.nodes.embedded import METADATA

URL = "PYMQ_URL"


def arguments(parser: argparse.ArgumentParser, *, is_leaf: bool = False) -> None:
    """Add ``--url`` and the options for keys; of a *leaf* they win over those that stand before."""
    default = argparse.SUPPRESS if is_leaf else None
    parser.add_argument(
        "--url",
        default=default,
        help=f"a folder, or zmq+tcp://HOST:PORT,HOST:PORT of zkservers (${URL})",
    )
    parser.add_argument(
        "--curve-dir", metavar="DIR", default=default, help="the folder of keys, if there are any"
    )
    parser.add_argument("--principal", metavar="NAME", default=default, help="whose key is ours")


def url_of(args: argparse.Namespace) -> str:
    """The URL that was given.

    Raises:
        ConfigError: none was.
    """
    url: str | None = args.url or os.environ.get(URL)
    if not url:
        raise ConfigError(
            f"which queue? Give --url or set {URL}: a folder, or zmq+tcp://HOST:PORT of a zkserver"
        )
    return url


def folder_of(url: str) -> str | None:
    """The folder that a URL names; None when it is no folder's."""
    if url in ("memory:", ":memory:"):
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    return rest if scheme == "file" else None


@contextmanager
def opened(args: argparse.Namespace, *, makes: bool = False) -> Iterator[pymq.Client]:
    """A client of the queue; only who *makes* something may make a folder that is not there.

    An error about a name that there is not is told which names are near.
    """
    url = url_of(args)
    folder = folder_of(url)
    if folder is not None and not makes and not os.path.exists(os.path.join(folder, METADATA)):
        raise StoreError(
            f"there is no queue in {folder!r}; 'pymq topic create --url {folder} NAME' makes one"
        )
    with pymq.open(url, curve_dir=args.curve_dir, principal=args.principal) as mq:
        try:
            yield mq
        except (UnknownTopic, UnknownGroup) as error:
            suggest(mq, error)
            raise


def described(mq: pymq.Client) -> Iterator[TopicDescription]:
    """All topics that there are."""
    for name in mq.topics():
        try:
            yield mq.describe_topic(name)
        except UnknownTopic:
            continue  # It was deleted meanwhile.


def suggest(mq: pymq.Client, error: PymqError) -> None:
    """Note what there is instead, if that can be found out."""
    kind = "topic" if isinstance(error, UnknownTopic) else "group"
    try:
        names = mq.topics() if kind == "topic" else mq.groups()
    except PymqError:
        return  # The first error is the one to tell.
    wanted = error.message.split("'")[1] if error.message.count("'") >= 2 else ""
    near = difflib.get_close_matches(wanted, names, 1)
    if near:
        error.add_note(f"did you mean {near[0]!r}?")
    elif names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        error.add_note(f"there are the {kind}s {', '.join(names[:8])}{more}")
    else:
        error.add_note(f"there is no {kind} yet")
