"""HTTP of a node: metrics of each node, and the page of a zkserver.

With keys a token proves the principal: a file ``NAME.token`` beside the keys, for scrapers and
browsers, which cannot use CurveZMQ. Metrics need the right to ``Describe`` the cluster. The page
connects to the cluster as the principal, with the principal's own key, so every node applies the
policy as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pymq.access.requirements import DESCRIBE_CLUSTER
from pymq.core.observe.metrics import Metrics
from pymq.errors import ConfigError
from pymq.monitoring.collector import process
from pymq.nodes.remote import open_cluster, uses_zeromq
from pymq.nodes.security import Access, Http, NodeSecurity
from pymq.web.app import WebApp
from pymq.web.authentication import Authentication, TokenFolder
from pymq.web.server import Server
from pymq.web.snapshots import ClusterSnapshots


def open_http(
    http: Http, node: str, access: Access, door: NodeSecurity | None, metrics: Callable[[], Metrics]
) -> Server:
    """Serve a node's metrics, and the page if *node* is the endpoint of a zkserver.

    Raises:
        ConfigError: the address cannot be bound, or is not allowed.
    """
    keys, certificates = access.curve_dir, access.tls_dir
    gate = Authentication(None)
    if keys is not None:
        folder = Path(keys)
        gate = Authentication(
            TokenFolder(folder, is_revoked=lambda name: _is_revoked(folder, name)),
            on_refused=door.refuse_token if door is not None else lambda address: None,
        )
    elif certificates is not None:
        gate = Authentication(
            TokenFolder(Path(certificates)),
            on_refused=door.refuse_token if door is not None else lambda address: None,
        )
    allows = (lambda principal: True) if door is None else _may_scrape(door)

    def collect() -> Metrics:
        found = metrics()
        process(found)
        return found

    desks = None
    # With certificates there is no page: the node has no certificates of the page's readers.
    if "://" in node and certificates is None:
        url = f"zmq+{node}" if uses_zeromq(node) else node
        desks = ClusterSnapshots(
            lambda principal: open_cluster(url, curve_dir=keys, principal=principal or None)
        )
    app = WebApp(gate, collect, desks=desks, may_scrape=allows, writable=http.writable)
    return Server(http.listen, app, cert=http.cert, insecure=access.insecure)


def _is_revoked(folder: Path, name: str) -> bool:
    """Whether the key of *name* was revoked and not replaced.

    A principal that never had a key, such as a scraper, may still have a token.
    """
    from pymq.transport.curve import key_files as files  # on demand: it loads zmq

    revoked = folder / f"{name}{files.REVOKED}"
    if not revoked.exists():
        return False
    try:
        return files.read_public(folder / f"{name}{files.PUBLIC}").key in files.read_revoked(
            revoked
        )
    except ConfigError:
        return True


def _may_scrape(door: NodeSecurity) -> Callable[[str], bool]:
    return lambda principal: door.allows(principal, DESCRIBE_CLUSTER)
