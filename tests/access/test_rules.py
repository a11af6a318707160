"""A policy compared with a simple model, over every relevant combination."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from pymq.access.rules import Kind, Operation, Policy, load_policy, parse_policy
from pymq.errors import ConfigError

KINDS = [Kind.TOPIC, Kind.GROUP, Kind.PRODUCER]
NAMES = ["orders", "orders.eu", "order", "Orders", "o"]
PATTERNS = ["orders", "orders*", "orders.*", "*", "Orders"]


def rule(**changes: Any) -> dict[str, Any]:
    return {"principal": "p", "operations": ["Read"], "resources": ["topic:orders"]} | changes


def twin(policy: dict[str, Any], who: str, operation: Operation, kind: Kind, name: str) -> bool:
    """Answer the same question directly from the file's rules."""
    if who in policy.get("superusers", []):
        return True
    resource = kind.value if kind is Kind.CLUSTER else f"{kind.value}:{name}"
    verdicts = set()
    for each in policy["rule"]:
        listed = each["principal"]
        if who not in listed and "*" not in listed:
            continue
        if not any(
            resource.startswith(p[:-1]) if p.endswith("*") else resource == p
            for p in each["resources"]
        ):
            continue
        words = set(each["operations"])
        if "All" in words:
            words |= {o.value for o in Operation}
        if each["effect"] == "deny":
            verdicts |= {"deny"} if operation.value in words else set()
        elif operation is Operation.DESCRIBE:
            if words & {"Read", "Write", "Delete", "Alter", "Describe", "ClusterAction"}:
                verdicts.add("allow")
        elif operation.value in words:
            verdicts.add("allow")
    return "deny" not in verdicts and "allow" in verdicts


def test_the_truth_table() -> None:
    """All operations, patterns and the empty policy, with allow rules, deny rules or both, are
    checked for every name.
    """
    asked = 0
    for operation, pattern, effects in itertools.product(
        Operation, PATTERNS, [(), ("allow",), ("deny",), ("allow", "deny"), ("deny", "allow")]
    ):
        for kind in KINDS:
            rules = [
                rule(
                    effect=effect,
                    principal=["p"],
                    operations=[operation.value],
                    resources=[f"{kind.value}:{pattern}"],
                )
                for effect in effects
            ]
            policy = parse_policy({"rule": rules})
            for name, question in itertools.product(NAMES, Operation):
                said = policy.allows("p", question, kind, name)
                assert said == twin({"rule": rules}, "p", question, kind, name)
                assert not policy.allows("q", question, kind, name)
                asked += 1
    assert asked > 10_000


@pytest.mark.parametrize("seed", range(50))
def test_many_rules_at_once(seed: int) -> None:
    rng = random.Random(seed)
    words = [*(o.value for o in Operation), "All"]
    rules = [
        {
            "effect": rng.choice(["allow", "allow", "deny"]),
            "principal": rng.sample(["a", "b", "c", "*"], rng.randint(1, 2)),
            "operations": rng.sample(words, rng.randint(1, 3)),
            "resources": [
                f"{rng.choice(KINDS).value}:{rng.choice(PATTERNS)}"
                for _ in range(rng.randint(1, 3))
            ],
        }
        for _ in range(rng.randint(0, 8))
    ]
    found = {"rule": rules, "superusers": ["root"]}
    policy = parse_policy(found)
    for who, operation, kind, name in itertools.product(
        ["a", "b", "d", "root"], Operation, KINDS, NAMES
    ):
        said = policy.allows(who, operation, kind, name)
        assert said == twin(found, who, operation, kind, name)


def test_nobody_is_nobody() -> None:
    """A rule for "*" covers every principal with a proved identity, but not anonymous clients."""
    open_to_all = rule(principal="*", operations=["All"], resources=["topic:*", "cluster"])
    policy = parse_policy({"rule": [open_to_all]})
    assert policy.allows("anyone", Operation.READ, Kind.TOPIC, "orders")
    assert policy.allows("anyone", Operation.CLUSTER_ACTION, Kind.CLUSTER, "")
    assert not policy.allows("", Operation.READ, Kind.TOPIC, "orders")
    assert not Policy().allows("anyone", Operation.DESCRIBE, Kind.TOPIC, "orders")


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"rules": []}, "unknown 'rules'"),
        ({"rule": {}}, r"\[\[rule\]\]"),
        ({"rule": [rule(effect="permit")]}, "'allow' or 'deny'"),
        (
            {"rule": [rule(operations=["read"])]},
            "'read' is not an operation; choose from All, Read",
        ),
        ({"rule": [rule(operations=[])]}, "operations is a text or a list"),
        ({"rule": [rule(resources=["orders"])]}, "'orders' is not a resource"),
        ({"rule": [rule(resources=["topic:"])]}, "must be 1 to 249"),
        ({"rule": [rule(resources=["topic:a*b"])]}, "must be 1 to 249"),
        ({"rule": [rule(resources=["cluster:x"])]}, "there is one cluster"),
        ({"rule": [rule(principal="")]}, "names no principal"),
        ({"rule": [rule(hosts=["*"])]}, "unknown 'hosts'"),
        ({"rule": [{"operations": ["Read"], "resources": ["topic:a"]}]}, "rule 1: principal"),
        ({"superusers": ["*"]}, "names no principal"),
        ({"quota": {"p": {"requests_per_second": 0}}}, "whole number above 0"),
        ({"quota": {"p": {"requests_per_second": True}}}, "whole number above 0"),
        ({"quota": {"p": {"bytes": 5}}}, "unknown 'bytes'"),
        ({"audit": ["Kreate"]}, "audit: 'Kreate' is not an operation"),
        ({"audit": 7}, "audit is a text or a list of texts"),
    ],
)
def test_what_is_not_understood_is_refused(found: dict[str, Any], complaint: str) -> None:
    """A policy with an unknown part is refused: half of it would admit principals that the other
    half excludes.
    """
    with pytest.raises(ConfigError, match=complaint):
        parse_policy(found)


def test_a_policy_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        """
        superusers = ["alice"]
        [[rule]]
        principal = ["billing", "audit"]
        operations = ["Read"]
        resources = ["topic:orders", "group:billing-*"]
        [quota.billing]
        requests_per_second = 10
        """,
        encoding="utf-8",
    )
    policy = load_policy(path)
    assert policy.allows("audit", Operation.READ, Kind.GROUP, "billing-eu")
    assert policy.allows("alice", Operation.ALTER, Kind.CLUSTER, "")
    found = policy.quota("billing")
    assert found is not None
    assert found.requests_per_second == 10
    assert policy.quota("audit") is None
    path.write_text("[[rule]", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_policy(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_policy(tmp_path / "none.toml")
