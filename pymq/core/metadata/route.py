"""Routes: some records of a topic are delivered to one group only.

A topic's option ``route`` names a group and says which records only this group gets:

=========================  ===============================================================
``canary:5%``              5 % of the records; records with the same key have the same route
``canary:key=eu-*``        records whose key begins with ``eu-``; without ``*``: is ``eu-``
``canary:header.tier=beta``  records whose header ``tier`` is ``beta``
=========================  ===============================================================

The producer decides once for each record, and writes the name of the group into the header
``pymq.route``. The header of a batch has a bit that marks routed records, so batches without such
records cost nothing. Each group then knows its records, even if the option has changed since: a
record with a route is for the group in its header; a record without a route is for all groups
except the group that the option names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pymq.core.batch.columns import Headers
from pymq.core.batch.header import ROUTED
from pymq.core.values import value
from pymq.errors import ConfigError

if TYPE_CHECKING:
    from pymq.core.batch.view import RecordBatch

ROUTE = "pymq.route"
WHOLE = 10_000  # the unit of a share: hundredths of a percent
TEXT_MAX = 1_000
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHARE = re.compile(r"(\d{1,3})(?:\.(\d{1,2}))?%")
_EXAMPLES = "'canary:5%', 'canary:key=eu-*' or 'canary:header.tier=beta'"


@value
class Route:
    """A parsed route: a *share*, or a *pattern* for the key or a header."""

    group: str
    share: int = 0  # parts in WHOLE
    pattern: bytes | None = None  # None: the share decides
    is_prefix: bool = False  # the pattern ended with "*"
    header: str | None = None  # None: the pattern applies to the key

    def matches(self, key: bytes | None, headers: Headers) -> bool:
        """Whether the pattern matches a record."""
        if self.header is None:
            return key is not None and self._fits(key)
        return any(name == self.header and self._fits(item) for name, item in headers)

    def _fits(self, item: bytes) -> bool:
        assert self.pattern is not None
        return item.startswith(self.pattern) if self.is_prefix else item == self.pattern


def parse_route(text: object) -> Route:
    """Read a route.

    Raises:
        ConfigError: *text* is not a valid route.
    """
    given = text if isinstance(text, str) else ""
    group, colon, rule = given.partition(":")
    if not colon or len(given) > TEXT_MAX or not _GROUP.fullmatch(group):
        raise ConfigError(f"route={text!r} must be a group and a rule, such as {_EXAMPLES}")
    if found := _SHARE.fullmatch(rule):
        share = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))
        if share > WHOLE:
            raise ConfigError(f"route={text!r}: a share is at most 100%")
        return Route(group, share)
    what, equals, wanted = rule.partition("=")
    header = what.removeprefix("header.") if what.startswith("header.") else None
    if not equals or not (what == "key" or header):
        raise ConfigError(f"route={text!r} has the rule {rule!r}; give one like {_EXAMPLES}")
    is_prefix = wanted.endswith("*")
    return Route(group, 0, wanted.removesuffix("*").encode(), is_prefix, header)


def routed_bit(records: Iterable[Headers]) -> int:
    """Return a batch's attribute bit that says whether any of its records has a route."""
    return ROUTED if any(name == ROUTE for headers in records for name, _ in headers) else 0


def for_group(view: RecordBatch, group: str, *, is_named: bool) -> RecordBatch:
    """Return the view with the records that are for *group*.

    *is_named* is true if the topic's option ``route`` names the group.

    Raises:
        CorruptBatch: the headers cannot be decoded.
    """
    if not view.batch.header.attributes & ROUTED:
        return view.only([]) if is_named else view
    own = group.encode()
    chosen = [
        index for index, headers in enumerate(view.headers) if _is_for(headers, own, is_named)
    ]
    return view if len(chosen) == len(view) else view.only(chosen)


def _is_for(headers: Headers, group: bytes, is_named: bool) -> bool:
    for name, item in headers:
        if name == ROUTE:
            return item == group
    return not is_named
