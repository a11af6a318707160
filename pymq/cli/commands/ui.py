"""``pymq ui``: serves the web page of a folder or of a cluster."""

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

HELP = "show a folder or a cluster in the browser"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("where", metavar="WHERE", nargs="?", help="a folder or zkservers, as --url")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", help="(%(default)s)"
    )
    parser.add_argument(
        "--write", action="store_true", help="allow changes: create topics, send records"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


@contextmanager
def _in_browser(url: str) -> Iterator[None]:
    """Open *url* in a browser, by way of a file that only this user can read.

    All users of a machine can read a process's arguments, and *url* contains the token.
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
    """Serve the page until interrupted."""
    from pymq import web  # on demand: it loads HTTP

    args.url = args.where or args.url
    with (
        connect.opened(args) as client,
        web.serve(client, args.listen, writable=args.write) as page,
    ):
        if show.is_json:
            show.result({"url": page.url, "address": page.address, "writable": args.write})
        else:
            show.say(page.url)
            show.say("Ctrl-C stops it; do not share the token")
        if sys.stdout is not None:
            sys.stdout.flush()
        with Interrupt() as interrupt, _in_browser(page.url) if args.open else nullcontext():
            try:
                with interrupt.breakable():
                    threading.Event().wait()
            except KeyboardInterrupt:
                pass  # Ctrl-C ends the command
    return OK
