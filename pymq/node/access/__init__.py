"""Who may do what: rules, what each message needs, how much of it, and what was refused."""

from __future__ import annotations

from pymq.node.access.audit import Asked, Audit
from pymq.node.access.guard import Guard
from pymq.node.access.quotas import Quota, Quotas
from pymq.node.access.requirements import Requirement, requirements
from pymq.node.access.rules import Kind, Operation, Policy, Rule, load_policy, parse_policy

__all__ = [
    "Asked",
    "Audit",
    "Guard",
    "Kind",
    "Operation",
    "Policy",
    "Quota",
    "Quotas",
    "Requirement",
    "Rule",
    "load_policy",
    "parse_policy",
    "requirements",
]
