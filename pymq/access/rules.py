"""Parses policy files and evaluates their rules.

The semantics are those of Kafka's authorizer:

* Requests are denied by default, and a deny rule overrides allow rules.
* ``Read``, ``Write``, ``Delete`` and ``Alter`` imply ``Describe``. In pymq ``ClusterAction`` also
  implies ``Describe``, because brokers look each other up.
* A pattern is a whole name or a prefix (KIP-290).

Unlike in Kafka, no setting can allow requests by default.

::

    superusers = ["alice"]

    [[rule]]
    principal = ["billing", "audit"]     # or one name, or "*" for every authenticated principal
    operations = ["Read"]                # or ["All"]
    resources = ["topic:orders", "group:billing-*"]

    [[rule]]
    effect = "deny"                      # the default is "allow"
    principal = "billing"
    operations = ["Read"]
    resources = ["topic:orders.secret*"]

    [[rule]]
    principal = ["broker-0", "broker-1", "zkserver-0"]
    operations = ["ClusterAction"]
    resources = ["cluster"]

    [quota.billing]                      # "*" is for principals without a quota of their own
    requests_per_second = 1000
    produce_bytes_per_second = 10_000_000
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pymq.access.quotas import Quota
from pymq.core.types import check_name
from pymq.core.values import value
from pymq.errors import ConfigError, InvalidName

ANYBODY = "*"
POLICY_BYTES_MAX = 1 << 20
PRINCIPAL_MAX = 128


class Operation(Enum):
    """Operations, with Kafka's names."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"  # only for brokers and zkservers


class Kind(Enum):
    """Kinds of resources."""

    TOPIC = "topic"
    GROUP = "group"
    PRODUCER = "producer"  # a name of producers (``producer_id``)
    CLUSTER = "cluster"


IMPLY_DESCRIBE = frozenset(Operation) - {Operation.CREATE}


@value
class Pattern:
    """Resources of a kind: one by its name, or all with a prefix."""

    kind: Kind
    name: str
    is_prefix: bool

    def matches(self, kind: Kind, name: str) -> bool:
        """Whether the pattern includes a resource."""
        if kind is not self.kind:
            return False
        return name.startswith(self.name) if self.is_prefix else name == self.name


@value
class Rule:
    """Allows or denies operations of principals on resources."""

    allows: bool
    principals: frozenset[str]
    operations: frozenset[Operation]
    resources: tuple[Pattern, ...]

    def is_about(self, principal: str, kind: Kind, name: str) -> bool:
        """Whether the rule applies to a principal and a resource."""
        if principal not in self.principals and ANYBODY not in self.principals:
            return False
        return any(pattern.matches(kind, name) for pattern in self.resources)


@value
class Policy:
    """The rules, superusers, quotas and audited operations of a cluster."""

    rules: tuple[Rule, ...] = ()
    superusers: frozenset[str] = frozenset()
    quotas: Mapping[str, Quota] = {}
    # operations for which allowed requests are audited, too
    audited: frozenset[Operation] = frozenset()

    def allows(self, principal: str, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether *principal* may do *operation* on a resource; never for an empty name."""
        if not principal:
            return False
        if principal in self.superusers:
            return True
        enough = IMPLY_DESCRIBE if operation is Operation.DESCRIBE else {operation}
        is_allowed = False
        for rule in self.rules:
            if not rule.is_about(principal, kind, name):
                continue
            if not rule.allows and operation in rule.operations:
                return False
            if rule.allows and not enough.isdisjoint(rule.operations):
                is_allowed = True
        return is_allowed

    def quota(self, principal: str) -> Quota | None:
        """Return the quota of *principal*; None means no limit."""
        return self.quotas.get(principal) or self.quotas.get(ANYBODY)


def load_policy(path: Path) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: the file cannot be read, others can write it, or a part of it is unknown. With
            an unknown part ignored, the policy could allow requests that it is meant to deny.
    """
    try:
        with path.open("rb") as file:
            data = file.read(POLICY_BYTES_MAX + 1)
            modes = (
                (path, os.fstat(file.fileno()).st_mode),
                (path.parent, path.parent.stat().st_mode),
            )
    except OSError as error:
        raise ConfigError(f"the policy {path} cannot be read: {error.strerror}") from error
    for each, mode in modes:
        # In a sticky folder such as /tmp, users cannot replace other users' files.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(f"{each} can be written by everybody: chmod o-w it")
    if len(data) > POLICY_BYTES_MAX:
        raise ConfigError(f"the policy {path} has more than {POLICY_BYTES_MAX} bytes")
    try:
        return parse_policy(tomllib.loads(data.decode("utf-8")))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the policy {path} is not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"the policy {path}: {error}") from error


def parse_policy(found: Mapping[str, Any]) -> Policy:
    """Make a policy from the parsed TOML of a file.

    Raises:
        ConfigError: a part of the file is unknown or invalid.
    """
    _only(found, {"superusers", "rule", "quota", "audit"}, "the policy")
    rules, quotas = found.get("rule", []), found.get("quota", {})
    if not isinstance(rules, list) or not isinstance(quotas, dict):
        raise ConfigError("rules are written as [[rule]] and quotas as [quota.NAME]")
    audited = _words(found["audit"], "audit") if found.get("audit") else []
    return Policy(
        rules=tuple(_rule(each, f"rule {number}") for number, each in enumerate(rules, 1)),
        superusers=frozenset(_principals(found.get("superusers", []), "superusers", wild=False)),
        quotas={name: _quota(each, f"quota.{name}") for name, each in quotas.items()},
        audited=frozenset(
            operation for word in audited for operation in _operations(word, "audit")
        ),
    )


def _rule(found: object, where: str) -> Rule:
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a table")
    _only(found, {"effect", "principal", "operations", "resources"}, where)
    effect = found.get("effect", "allow")
    if effect not in {"allow", "deny"}:
        raise ConfigError(f"{where}: effect is 'allow' or 'deny', not {effect!r}")
    operations = frozenset(
        operation
        for word in _words(found.get("operations"), f"{where}: operations")
        for operation in _operations(word, where)
    )
    patterns = tuple(
        _pattern(word, where) for word in _words(found.get("resources"), f"{where}: resources")
    )
    principals = _principals(found.get("principal"), f"{where}: principal", wild=True)
    return Rule(effect == "allow", frozenset(principals), operations, patterns)


def _operations(word: str, where: str) -> Sequence[Operation]:
    if word == "All":
        return list(Operation)
    try:
        return [Operation(word)]
    except ValueError:
        known = ", ".join(["All", *(each.value for each in Operation)])
        raise ConfigError(f"{where}: {word!r} is not an operation; choose from {known}") from None


def _pattern(text: str, where: str) -> Pattern:
    word, colon, name = text.partition(":")
    try:
        kind = Kind(word)
    except ValueError:
        known = ", ".join(each.value for each in Kind)
        raise ConfigError(f"{where}: {text!r} is not a resource; write {known}") from None
    if kind is Kind.CLUSTER:
        if colon:
            raise ConfigError(f"{where}: there is one cluster; write 'cluster', not {text!r}")
        return Pattern(kind, "", is_prefix=False)
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    try:
        if name or not is_prefix:
            check_name(name, kind.value)
    except InvalidName as error:
        # "." is a valid prefix, but not a valid name.
        if not (is_prefix and name in {".", ".."}):
            raise ConfigError(f"{where}: {text!r}: {error}") from None
    return Pattern(kind, name, is_prefix)


def _principals(found: object, where: str, *, wild: bool) -> list[str]:
    names = _words(found, where) if found != [] else []
    for name in names:
        if not name or len(name) > PRINCIPAL_MAX or (name == ANYBODY and not wild):
            raise ConfigError(f"{where}: {name!r} names no principal")
    return names


def _quota(found: object, where: str) -> Quota:
    known = {"requests_per_second", "produce_bytes_per_second", "fetch_bytes_per_second"}
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a table")
    _only(found, known, where)
    for name, each in found.items():
        if type(each) is not int or each <= 0:
            raise ConfigError(f"{where}: {name} is a whole number above 0, not {each!r}")
    return Quota(**found)


def _words(found: object, where: str) -> list[str]:
    words = [found] if isinstance(found, str) else found
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ConfigError(f"{where} is a text or a list of texts, not {found!r}")
    return words


def _only(found: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise ConfigError(f"{where}: unknown {name!r}; choose from {sorted(known)}")
