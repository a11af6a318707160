"""``pymq keys``: creates and revokes the keys of nodes and principals in a key folder."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from pymq.cli.show import FAILED, OK, Show
from pymq.cli.subcommands import leaf
from pymq.core.types import check_name
from pymq.errors import ConfigError
from pymq.transport.base import zmq_needed

HELP = "create, list and revoke keys of brokers, zkservers and clients"
POLICY = "policy.toml"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    make = leaf(what, "make", "create a key pair for each name")
    make.add_argument("--node", action="store_true", help="they are brokers or zkservers")
    make.add_argument(
        "--at",
        metavar="ENDPOINT",
        action="append",
        help="the endpoint that the zkserver advertises",
    )
    revoke = leaf(what, "revoke", "revoke the key of a name")
    listing = leaf(what, "list", "list the keys in a folder")
    token = leaf(what, "token", "create tokens for browsers and metrics scrapers")
    policy = leaf(what, "policy", "write a first policy")
    policy.add_argument(
        "--superuser",
        metavar="NAME",
        action="append",
        default=[],
        help="principals that may do everything",
    )
    user = leaf(what, "kafka-user", "add users to the file of a broker's --kafka-users")
    user.add_argument("file", metavar="FILE", type=Path, help="the file; created if it is missing")
    how = user.add_mutually_exclusive_group()
    how.add_argument(
        "--stdin",
        action="store_true",
        help="read each password, a line each; otherwise they are made up and printed",
    )
    how.add_argument("--remove", action="store_true", help="remove the users instead")
    user.add_argument("names", metavar="NAME", nargs="+", help="name of a user, its principal")
    for sub in (make, revoke, listing, token, policy):
        sub.add_argument("folder", metavar="DIR", type=Path, help="the folder of keys")
    for sub in (make, revoke, token):
        sub.add_argument(
            "names", metavar="NAME", nargs="+", help="name of a broker, zkserver or client"
        )


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the nested command."""
    if args.what == "make":
        return _make(args, show)
    if args.what == "revoke":
        return _revoke(args, show)
    if args.what == "token":
        return _token(args, show)
    if args.what == "kafka-user":
        return _kafka_user(args, show)
    return _policy(args, show) if args.what == "policy" else _list(args, show)


def _make(args: argparse.Namespace, show: Show) -> int:
    with zmq_needed():
        from pymq.transport.curve import key_files as files  # on demand: it loads zmq
        from pymq.transport.zeromq.sockets import check_endpoint

    endpoints = tuple(check_endpoint(each) for each in args.at or ())
    if endpoints and len(args.names) > 1:
        raise ConfigError("an endpoint belongs to one node: give --at with one name")
    for name in args.names:
        check_name(name, "principal")  # check all names before creating any key
        if (args.folder / f"{name}{files.PUBLIC}").exists():
            raise ConfigError(f"{args.folder} has a key of {name!r} already; revoke that first")
    made = []
    for name in args.names:
        pair = files.make_pair(name)
        is_node = args.node or bool(endpoints)
        public = files.Public(name, pair.public, is_node, endpoints)
        files.write_pair(args.folder, pair, public)
        made.append(public)
        show.say(f"{name}  {pair.public}")
    if show.is_json:
        show.result({"made": [_row(each) for each in made]})
    show.say(f"Copy {args.folder}/NAME.secret to NAME only, and all *.pub files to every machine.")
    return OK


def _row(public: object) -> dict[str, object]:
    from pymq.transport.curve.key_files import Public

    assert isinstance(public, Public)
    return {
        "name": public.name,
        "public": public.key,
        "node": public.is_node,
        "endpoints": list(public.endpoints),
    }


def _revoke(args: argparse.Namespace, show: Show) -> int:
    with zmq_needed():
        from pymq.transport.curve import key_files as files

    revoked, missing = [], []
    for name in args.names:
        try:
            revoked.append({"name": name, "public": files.revoke(args.folder, name)})
        except ConfigError as error:
            missing.append(name)
            show.error(str(error), error.code)
        else:
            show.say(f"{name} is revoked: copy {args.folder}/{name}.revoked to all nodes")
    if show.is_json:
        show.result({"revoked": revoked, "missing": missing})
    return FAILED if missing else OK


def _token(args: argparse.Namespace, show: Show) -> int:
    """Create tokens, each in a file that only its owner can read; replace existing tokens."""
    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder} is not a folder; 'pymq keys make' creates one")
    for name in args.names:
        check_name(name, "principal")
    made = []
    for name in args.names:
        path = args.folder / f"{name}.token"
        fresh = path.with_suffix(".token.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(secrets.token_urlsafe(32) + "\n")
        fresh.replace(path)
        made.append({"name": name, "file": str(path)})
        show.say(f"wrote {path}: its bearer has the rights of {name} over HTTP")
    if show.is_json:
        show.result({"tokens": made})
    return OK


def _kafka_user(args: argparse.Namespace, show: Show) -> int:
    """Add or remove users of Kafka's clients; a running broker reads the file again."""
    from pymq.kafka.security.users import load_users, new_user, write_users

    for name in args.names:
        check_name(name, "user name")
    users = load_users(args.file) if args.file.exists() else {}
    if args.remove:
        missing = [name for name in args.names if users.pop(name, None) is None]
        if missing:
            raise ConfigError(f"{args.file} has no user {missing[0]!r}; nothing was removed")
        write_users(args.file, users)
        show.say(f"removed {', '.join(args.names)} from {args.file}")
        if show.is_json:
            show.result({"file": str(args.file), "removed": args.names})
        return OK
    passwords = {}
    for name in args.names:
        given = sys.stdin.readline().rstrip("\n") if args.stdin else secrets.token_urlsafe(24)
        if not given:
            raise ConfigError(f"there is no password for {name}")
        passwords[name] = given
    users |= {name: new_user(password) for name, password in passwords.items()}
    write_users(args.file, users)
    for name, password in passwords.items():
        show.say(f"wrote {name} to {args.file}" + ("" if args.stdin else f"; password: {password}"))
    if show.is_json:
        shown = {} if args.stdin else passwords
        show.result({"file": str(args.file), "added": args.names, "passwords": shown})
    return OK


def _list(args: argparse.Namespace, show: Show) -> int:
    with zmq_needed():
        from pymq.transport.curve import key_files as files

    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder} is not a folder; 'pymq keys make' creates one")
    rows: list[dict[str, object]] = []
    revoked = {
        path.name.removesuffix(files.REVOKED): files.read_revoked(path)
        for path in sorted(args.folder.glob(f"*{files.REVOKED}"))
    }
    gone = {key for keys in revoked.values() for key in keys}
    for path in sorted(args.folder.glob(f"*{files.PUBLIC}")):
        public = files.read_public(path)
        if public.key not in gone:
            secret = (args.folder / f"{public.name}{files.SECRET}").exists()
            rows.append({**_row(public), "secret": secret, "revoked": False})
    for name, keys in revoked.items():
        rows += [{"name": name, "public": key, "secret": False, "revoked": True} for key in keys]
    if show.is_json:
        show.result({"keys": rows})
    show.table(
        ("name", "what", "secret here", "public key"),
        [
            (str(row["name"]), _what(row), "yes" if row["secret"] else "", str(row["public"]))
            for row in rows
        ],
        left=4,
    )
    return OK


def _what(row: dict[str, object]) -> str:
    if row["revoked"]:
        return "revoked"
    return "node" if row.get("node") else "principal"


def _policy(args: argparse.Namespace, show: Show) -> int:
    with zmq_needed():
        from pymq.transport.curve import key_files as files

    for name in args.superuser:
        check_name(name, "principal")
    nodes = [
        public.name
        for path in sorted(args.folder.glob(f"*{files.PUBLIC}"))
        if (public := files.read_public(path)).is_node
    ]
    if not nodes:
        raise ConfigError(f"{args.folder} has no key of a node; create one with --node first")
    path = args.folder / POLICY
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; edit it yourself") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(_starter(nodes, args.superuser))
    if show.is_json:
        show.result({"policy": str(path), "nodes": nodes, "superusers": args.superuser})
    show.say(f"wrote {path}: {', '.join(nodes)} may work together; add rules for your clients")
    return OK


def _starter(nodes: Sequence[str], superusers: Sequence[str]) -> str:
    return f"""\
# Who may do what. What no rule allows is denied; a change holds within a second or two.
superusers = {_listed(superusers)}

[[rule]]  # brokers and zkservers among each other
principal = {_listed(nodes)}
operations = ["ClusterAction"]
resources = ["cluster"]

# [[rule]]
# principal = "billing"
# operations = ["Read", "Write"]
# resources = ["topic:orders", "group:billing-*"]
"""


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
