"""Shows dead letters on the page, and sends them back in steps.

One request looks only at a limited number of letters, for a limited time. To send all letters back,
the page repeats its request until none is left.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, cast

from pymq.client.client import Client
from pymq.core.batch.record import Record
from pymq.core.types import is_internal
from pymq.errors import AuthorizationFailed, InvalidRequest, RequestTimeout
from pymq.web.browse import payload

SHOWN_MAX = 50
LOOKED_MAX = 10_000  # most letters read to count them
LOOK_S = 2.0
ERRORS_MAX = 20  # different errors shown
ERROR_CHARS = 300  # most characters shown of an error
STEP = 200  # letters sent back by one request
STEP_S = 5.0  # longest search for the next letters

Json = dict[str, Any]


def letters(client: Client, topic: str, error: str) -> Json:
    """Count and describe the letters of a dead-letter topic that were not sent back.

    Args:
        client: a client with the viewer's rights.
        topic: the dead-letter topic.
        error: describe only letters whose error contains this text.

    Raises:
        PymqError: the letters cannot be read.
    """
    _check(topic)
    errors, shown, chosen, is_cut = Counter[str](), list[Json](), 0, False
    until = time.monotonic() + LOOK_S
    # Closing the iterator closes its consumer, even if not all letters were read.
    with closing(cast("Generator[Record]", client.dead_letters(topic))) as found:
        for letter in found:
            if errors.total() >= LOOKED_MAX or time.monotonic() > until:
                is_cut = True
                break
            why = error_of(letter)
            errors[why[:ERROR_CHARS]] += 1
            if error in why:
                chosen += 1
                if len(shown) < SHOWN_MAX:
                    shown.append(_shown(letter))
    return {
        "topic": topic,
        "error": error,
        "letters": errors.total(),
        "is_cut": is_cut,
        "errors": [list(each) for each in errors.most_common(ERRORS_MAX)],
        "more_errors": max(0, len(errors) - ERRORS_MAX),
        "chosen": chosen,
        "shown": shown,
    }


def redrive(client: Client, topic: str, given: Mapping[str, Any]) -> Json:
    """Send up to :data:`STEP` letters back, or count those that would be sent.

    *given* has ``error``, a text that the errors of the letters contain, ``dry_run``, and
    ``limit``, a smaller number of letters: a page that limits its rate sends few letters per
    request.

    Raises:
        InvalidRequest: the request is malformed.
        RequestTimeout: the search for such letters took too long.
        PymqError: the letters cannot be sent back.
    """
    _check(topic)
    error, is_dry = given.get("error", ""), given.get("dry_run", False)
    if not isinstance(error, str) or not isinstance(is_dry, bool):
        raise InvalidRequest("error is text, and dry_run true or false")
    step = given.get("limit", STEP)
    if type(step) is not int or step < 1:
        raise InvalidRequest(f"limit is a number from 1 to {STEP}")
    until = time.monotonic() + STEP_S

    def where(letter: Record) -> bool:
        nonlocal until
        # If a redrive ends in the middle, no letter is sent twice, because a journal records the
        # sent letters.
        if time.monotonic() > until:
            raise RequestTimeout(
                f"looking for such letters takes longer than {STEP_S:g} s; 'pymq dlq redrive' "
                "takes its time. Letters that were sent back by now are not sent again"
            )
        if error not in error_of(letter):
            return False
        until = time.monotonic() + STEP_S
        return True

    limit = LOOKED_MAX if is_dry else min(step, STEP)
    done = client.redrive(topic, where=where, dry_run=is_dry, limit=limit)
    return {"count": done.count, "stay": done.skipped, "more": done.count >= limit}


def error_of(letter: Record) -> str:
    """Return why a record became a dead letter."""
    return _text(letter, "error") or "unknown"


def _check(topic: str) -> None:
    if is_internal(topic):
        raise AuthorizationFailed("what is in internal topics is pymq's own")


def _text(letter: Record, name: str) -> str | None:
    found = dict(letter.headers).get(f"pymq.{name}")
    return None if found is None else found.decode("utf-8", "replace")


def _shown(letter: Record) -> Json:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "at_ms": letter.timestamp_ms,
        "error": error_of(letter)[:ERROR_CHARS],
        **{name: _text(letter, name) for name in ("group", "deliveries")},
        "from": [_text(letter, name) for name in ("topic", "partition", "offset")],
        "key": payload(letter.key),
        "value": payload(letter.value),
    }
