"""The cluster page, and metrics over HTTP.

::

    import pymq
    from pymq import web

    with pymq.open("data/") as mq, web.serve(mq, "127.0.0.1:8080") as page:
        print(page.url)  # with the token that opens it
        ...

A broker or zkserver does so with ``http="127.0.0.1:8080"``, and ``pymq ui`` from the command line.
Nothing here is loaded by ``import pymq``.
"""

from __future__ import annotations

import secrets

from pymq.client.client import Client
from pymq.core.observe.metrics import Metrics
from pymq.monitoring.collector import process
from pymq.web.app import WebApp
from pymq.web.authentication import Authentication, OneToken
from pymq.web.server import Server
from pymq.web.snapshots import ClusterSnapshots

__all__ = ["Server", "serve"]


def serve(
    client: Client,
    listen: str = "127.0.0.1:0",
    *,
    token: str | None = None,
    writable: bool = False,
    insecure: bool = False,
) -> Server:
    """Serve the page of whatever *client* is connected with, until it is closed.

    Who opens the page does what the client may do, so it takes a token: one that is drawn, or
    *token*; ``""`` is none at all, and lets in everybody who can connect.

    Args:
        client: stays the caller's to close, after the server.
        listen: ``HOST:PORT``; port 0 takes a free one.
        writable: let the page change something, too.
        insecure: listen to the network although nothing is encrypted.

    Raises:
        ConfigError: *listen* is not that, is the network's, or is taken.
    """
    if token is None:
        token = secrets.token_urlsafe(24)

    def metrics() -> Metrics:
        found = client.metrics()
        process(found)
        return found

    gate = Authentication(OneToken(token) if token else None)
    app = WebApp(
        gate,
        metrics,
        desks=ClusterSnapshots(lambda principal: client, is_ours=False),
        writable=writable,
        title="pymq",
    )
    return Server(listen, app, token=token, insecure=insecure)
