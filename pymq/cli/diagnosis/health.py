"""Checks why no records are delivered, from the descriptions of brokers, partitions and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pymq
from pymq.cli.connect import suggest
from pymq.cli.diagnosis.checks import Finding, State, fail, ok, warn
from pymq.cli.hints import hints
from pymq.cli.units import time_text
from pymq.client.admin.record_counts import records_of
from pymq.core.counts import clause, plural
from pymq.core.metadata.descriptions import BlockDescription, PartitionDescription, TopicDescription
from pymq.errors import AuthorizationFailed, PymqError, UnknownGroup, UnknownTopic

SILENT_S = 10.0  # warn about a member that was silent for so long
SHOWN_MAX = 5  # partitions printed per kind of problem


def cluster_checks(mq: pymq.Client) -> Iterator[Finding]:
    """Check that brokers are alive and that all partitions have leaders."""
    found = mq.cluster()
    if not found.brokers:
        yield fail(
            "brokers",
            "no broker has registered",
            "start a broker with this zkserver; its log says if it was refused",
        )
        return
    alive = [broker.name for broker in found.brokers if broker.alive]
    dead = [broker.name for broker in found.brokers if not broker.alive]
    draining = [broker.name for broker in found.brokers if broker.is_draining]
    if not alive:
        yield fail("brokers", f"all are dead: {', '.join(dead)}", "start them on their folders")
    elif dead:
        yield warn(
            "brokers",
            f"{', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead, {len(alive)} alive",
            "start each again on its folder; or 'pymq cluster decommission' it, if it is gone",
        )
    else:
        more = f"; {', '.join(draining)} is being decommissioned" if draining else ""
        yield ok("brokers", f"{', '.join(alive)} alive{more}")
    if found.leaderless:
        names = ", ".join(found.leaderless[:SHOWN_MAX])
        yield fail(
            "leaders",
            f"no leader: {names}{_more(len(found.leaderless))}",
            "'pymq topic describe TOPIC' names the brokers to start; 'pymq cluster recover' "
            "continues without them, and may lose records",
        )
    else:
        yield ok("leaders", f"{plural(found.partitions, 'partition')}, all with a leader")
    yield copies_check(found)


def copies_check(found: pymq.ClusterDescription) -> Finding:
    """Check that all sealed blocks have their full number of copies."""
    few = found.under_replicated_blocks
    if not few:
        return ok("copies", "all sealed blocks have all their copies")
    now = ""
    if found.moving_blocks:
        now = f", {found.moving_blocks:,} of which {'is' if found.moving_blocks == 1 else 'are'}"
        now += " being copied"
    return warn(
        "copies",
        f"too few of {plural(few, 'sealed block')}{now}",
        "start the dead brokers; the blocks of a lost one are copied after replica_lost_s of the "
        "zkserver, or at once after 'pymq cluster decommission'",
    )


def _more(count: int) -> str:
    return f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else ""


# --- topics -------------------------------------------------------------------------------------


def topic_checks(mq: pymq.Client, only: str | None) -> Iterator[Finding]:
    """Check that the partitions of all topics, or of *only* one, can be written and read."""
    names = [only] if only is not None else mq.topics()
    if not names:
        yield warn("topics", "there is none yet", "'pymq topic create NAME' creates one")
    good, partitions = 0, 0
    dead = dead_brokers(mq)
    for name in names:
        try:
            topic = mq.describe_topic(name)
        except UnknownTopic as error:
            if only is not None:
                yield fail(f"topic {name}", str(error), _instead(mq, error))
            continue
        troubles = list(_partition_checks(topic, dead))
        yield from troubles[:SHOWN_MAX]
        if len(troubles) > SHOWN_MAX:
            rest = len(troubles) - SHOWN_MAX
            yield warn(f"topic {name}", f"{rest} more like this", f"'pymq topic describe {name}'")
        good += not troubles
        partitions += len(topic.partitions)
    if good and good == len(names):
        what = f"topic {only}" if only is not None else "topics"
        yield ok(
            what,
            f"{plural(partitions, 'partition')} of {plural(good, 'topic')}, all with a leader "
            "and in sync",
        )


def dead_brokers(mq: pymq.Client) -> frozenset[str]:
    """Return the dead brokers; an empty set if the principal may not describe the cluster."""
    try:
        return frozenset(broker.name for broker in mq.cluster().brokers if not broker.alive)
    except AuthorizationFailed:
        return frozenset()


def _partition_checks(topic: TopicDescription, dead: Collection[str]) -> Iterator[Finding]:
    for part in topic.partitions:
        name = f"partition {topic.name}/{part.name}"
        found = trouble(topic, part, dead)
        if found is not None:
            yield Finding(name, *found)
        for unread, step in unreadable(part, dead):
            yield fail(name, unread, step)
        for loss in part.losses:
            yield warn(
                name,
                f"records from offset {loss.offset:,} on may have been lost at "
                f"{time_text(loss.at_ms)}",
                "compare with the records of its producers",
            )


def trouble(
    topic: TopicDescription, part: PartitionDescription, dead: Collection[str] = ()
) -> tuple[State, str, str] | None:
    """Return a partition's problem: severity, problem, next step."""
    if part.acks is pymq.AckMode.UNSET:
        step = f"'pymq topic set-state {topic.name} {part.name} leader' sets one"
        return "warn", "it has no ack mode yet, and accepts no records", step
    if part.leader is None or part.problem:
        return (
            "fail",
            part.problem or "it has no leader",
            "start these brokers; or use 'pymq cluster recover', which may lose records",
        )
    if len(part.in_sync) < min(topic.config.min_in_sync, len(part.replicas)):
        return (
            "fail",
            f"only {', '.join(part.in_sync)} of {', '.join(part.replicas)} in sync, and "
            f"min_in_sync is {topic.config.min_in_sync}: producers are refused",
            "start the other brokers again",
        )
    if failed := [broker for broker in part.offline if broker not in dead]:
        return (
            "warn",
            f"the disk of {', '.join(failed)} fails or is damaged; other replicas serve the "
            "partition",
            "see the event replica_offline, repair the disk and restart that broker",
        )
    missing = [broker for broker in part.replicas if broker not in part.in_sync]
    if missing:
        return (
            "warn",
            f"{', '.join(missing)} not in sync: fewer copies than {len(part.replicas)}",
            "check that this broker is alive and has disk space; it catches up by itself",
        )
    return None


def unreadable(part: PartitionDescription, dead: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return problem and next step for sealed blocks that no live broker holds.

    A partition may have both a leader and such blocks.
    """
    by_holders: dict[tuple[str, ...], list[BlockDescription]] = {}
    for block in part.unreadable(dead):
        by_holders.setdefault(tuple(sorted(block.in_sync)), []).append(block)
    for holders, blocks in by_holders.items():
        count = sum((block.end_offset or 0) - block.start_offset for block in blocks)
        where = f"from offset {blocks[0].start_offset:,} on ({plural(len(blocks), 'block')})"
        if holders:
            is_one = len(holders) == 1
            yield (
                f"{clause(count, 'record', 'is', 'are')} on {', '.join(holders)} alone, which "
                f"{'is' if is_one else 'are'} dead, {where}",
                f"start {'it' if is_one else 'one of them'} again on its folder: consumers at "
                "these offsets wait for it",
            )
        else:
            yield (
                f"no broker holds {plural(count, 'record')} any more, {where}",
                "the disks were replaced; consumers at these offsets wait until they skip them "
                "(consumer.seek, 'pymq group reset') or retention deletes them",
            )


def _instead(mq: pymq.Client, error: PymqError) -> str:
    suggest(mq, error)
    return "; ".join(hints(error)) or "give another name"


# --- groups -------------------------------------------------------------------------------------


def group_checks(mq: pymq.Client, topic: str | None, only: str | None) -> Iterator[Finding]:
    """Check whether a group gets records, and if not, why."""
    names = mq.groups() if only is None else [only]
    for name in names:
        try:
            group = mq.describe_group(name)
        except UnknownGroup as error:
            if only is not None:
                yield fail(f"group {name}", str(error), _instead(mq, error))
            continue
        yield from _group(mq, group, topic, is_wanted=only is not None)
    yield from _dead_letters(mq, topic)


def _group(
    mq: pymq.Client, group: pymq.GroupDescription, topic: str | None, *, is_wanted: bool
) -> Iterator[Finding]:
    what = f"group {group.name}"
    lags = {
        name: lag
        for name, lag in group.lag.items()
        if lag > 0 and (topic is None or name[0] == topic)
    }
    total = sum(lags.values())
    if not group.consumers:
        found = f"it has no consumer, and {clause(total, 'record', 'waits', 'wait')}"
        step = "start a consumer; if one runs, check its group and its cluster"
        if total:
            yield (fail if is_wanted else warn)(what, found, step)
        else:
            yield ok(what, "it has no consumer, and no record waits")
        return
    silent = [member for member in group.consumers if member.silent_s > SILENT_S]
    for member in silent:
        yield warn(
            what,
            f"{member.name} ({member.client}) has sent nothing for {member.silent_s:.0f} s",
            "its process hangs or has lost the network; its records are delivered again after "
            "its session",
        )
    troubles = [check for name in sorted(lags) if (check := delayed(mq, group, *name)) is not None]
    yield from troubles[:SHOWN_MAX]
    if not troubles and not silent:
        consumers = plural(len(group.consumers), "consumer")
        yield ok(what, f"{consumers}, lag {total:,}{', all in progress' if total else ''}")


def delayed(
    mq: pymq.Client, group: pymq.GroupDescription, topic: str, partition: str
) -> Finding | None:
    """Return why the records of a partition are not delivered; None if they are."""
    name = (topic, partition)
    what = f"group {group.name}, {topic}/{partition}"
    lag, held, waiting = group.lag[name], group.in_flight[name], group.waiting[name]
    wait = clause(lag, "record", "waits", "wait")
    owners = [m for m in group.consumers if m.topic == topic and partition in m.partitions]
    if not owners:
        return fail(
            what,
            f"{wait}, and the partition is assigned to no consumer",
            f"start a consumer of {topic} in this group; its other consumers consume other topics",
        )
    asks = [member.asks for member in owners if member.asks is not None]
    if len(asks) == len(owners) and not any(partition in found for found in asks):
        who = ", ".join(member.client for member in owners)
        return warn(what, f"{wait}, and {who} has paused it", "call consumer.resume()")
    fresh = lag - held - waiting
    leases = mq.describe_leases(group.name, topic, partition, limit=1_000).leases
    strangers = sorted({x.member for x in leases if x.member} - {member.name for member in owners})
    if strangers and asks:
        until = max(x.until_ms or 0 for x in leases if x.member in strangers)
        return warn(
            what,
            f"{', '.join(strangers)} had the partition before and still works on "
            f"{plural(held, 'record')}, "
            f"until {time_text(until)}",
            "wait for it, or let it acknowledge sooner: no other consumer gets records until then",
        )
    again = [x for x in leases if x.delivery_count > 1 and x.state != "acked"]
    if again:
        count = sum(x.end_offset - x.start_offset for x in again)
        most = max(x.delivery_count for x in again)
        return warn(
            what,
            f"{clause(count, 'record', 'was', 'were')} delivered {most:,} times and not "
            f"acknowledged, {'' if count == 1 else 'the first '}at offset "
            f"{again[0].start_offset:,}",
            f"'pymq explain {topic} {partition} {again[0].start_offset}' shows it; read the "
            "consumer's log",
        )
    first = next((x for x in leases if x.state == "leased"), None)
    # Records that were leased in the group's description may be acknowledged by now.
    if held and not fresh and not waiting and first is not None:
        return warn(
            what,
            f"{'1 record is' if lag == 1 else f'all {lag:,} records are'} delivered and not "
            f"acknowledged; those of {first.member} are delivered again after "
            f"{time_text(first.until_ms or 0)}",
            "the consumer is working, or does not acknowledge (consumer.ack, auto_ack=True)",
        )
    return None


def _dead_letters(mq: pymq.Client, topic: str | None) -> Iterator[Finding]:
    """Warn about records in dead-letter topics."""
    names = mq.topics() if topic is None else [f"{topic}.dlq"]
    for name in names:
        if not name.endswith(".dlq"):
            continue
        try:
            count = records_of(mq.questions, mq.describe_topic(name))
        except UnknownTopic:
            continue
        if count:
            yield warn(
                f"dead letters {name}",
                f"{clause(count, 'record', 'was', 'were')} delivered too often and moved here",
                f"'pymq consume {name} --headers' shows them and their origin",
            )


def guarded(name: str, checks: Iterator[Finding]) -> Iterator[Finding]:
    """Run checks; a check that raises counts as failed."""
    try:
        yield from checks
    except PymqError as error:
        yield fail(name, f"{error} ({error.code})", "see the checks above, then the nodes' logs")
