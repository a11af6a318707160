"""``pymq ui``: the page of a folder or of a cluster, in a browser."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from pymq.cli import connect
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import OK, Show

HELP = "look at a folder or a cluster in a browser"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("where", metavar="WHERE", nargs="?", help="what --url would say")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", help="(%(default)s)"
    )
    parser.add_argument(
        "--write", action="store_true", help="let the page create topics, send records and the like"
    )
    parser.add_argument("--open", action="store_true", help="open it in a browser, too")


@contextmanager
def _in_browser(url: str) -> Iterator[None]:
    """Open *url* in a browser, by way of a file that nobody else can read.

    The arguments of a program can be read by all users of a machine, and *url* has the token.
    """
    import webbrowser

    with TemporaryDirectory(prefix="pymq-ui-") as folder:
        file = Path(folder, "pymq.html")
        file.write_text(
            f'<meta http-equiv="refresh" content="0; url={escape(url)}">\n'
            f'<a href="{escape(url)}">pymq</a>\n',
            encoding="utf-8",
        )
        webbrowser.open(file.as_uri())
        yield


def run(args: argparse.Namespace, show: Show) -> int:
    """Serve the page until it is interrupted."""
    from pymq import web  # only now: it loads HTTP

    args.url = args.where or args.url
    with (
        connect.opened(args) as client,
        web.serve(client, args.listen, writable=args.write) as page,
    ):
        if show.is_json:
            show.result({"url": page.url, "address": page.address, "writable": args.write})
        else:
            show.say(page.url)
            show.say("Ctrl-C ends it; the token is for you alone")
        if sys.stdout is not None:
            sys.stdout.flush()
        with Interrupt() as interrupt, _in_browser(page.url) if args.open else nullcontext():
            try:
                with interrupt.breakable():
                    threading.Event().wait()
            except KeyboardInterrupt:
                pass  # as it was told to
    return OK
