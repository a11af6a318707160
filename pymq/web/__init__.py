"""The cluster page, and metrics over HTTP.

::

    import pymq
    from pymq import web

    with pymq.open("data/") as mq, web.serve(mq, "127.0.0.1:8080") as page:
        print(page.url)  # with the token that opens it
        ...

Brokers and zkservers serve HTTP with ``http="127.0.0.1:8080"``; ``pymq ui`` serves the page from
the command line. ``import pymq`` loads nothing of this package.
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
    """Serve the page of the queue or cluster of *client*, until closed.

    A visitor acts with the rights of *client*, so the page needs a token: a random one, or *token*.
    With ``""`` the page needs no token, and everyone who can connect has access.

    Args:
        client: the caller closes it, after the server.
        listen: ``HOST:PORT``; port 0 takes a free one.
        writable: allow changes on the page.
        insecure: listen to the network without encryption.

    Raises:
        ConfigError: *listen* has another form, is a network address, or is in use.
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
