"""Why is nothing delivered? Brokers, partitions and groups, as the cluster describes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pymq
from pymq.cli.connect import suggest
from pymq.cli.diagnosis.checks import Finding, State, fail, ok, warn
from pymq.cli.hints import hints
from pymq.cli.units import clause, plural, time_text
from pymq.client.admin.record_counts import records_of
from pymq.core.metadata.nodes import BlockDescription, PartitionDescription, TopicDescription
from pymq.errors import AuthorizationFailed, PymqError, UnknownGroup, UnknownTopic

SILENT_S = 10.0  # a consumer that was not heard of for so long is worth a look
SHOWN_MAX = 5  # of partitions with the same trouble


def cluster_checks(mq: pymq.Client) -> Iterator[Finding]:
    """Whether there are brokers, and whether all partitions are led."""
    found = mq.cluster()
    if not found.brokers:
        yield fail(
            "brokers",
            "none has ever registered",
            "start one and name this zkserver to it; its log says whether it is let in",
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
        more = f"; {', '.join(draining)} is being drained" if draining else ""
        yield ok("brokers", f"{', '.join(alive)} alive{more}")
    if found.leaderless:
        names = ", ".join(found.leaderless[:SHOWN_MAX])
        yield fail(
            "leaders",
            f"nobody leads {names}{_more(len(found.leaderless))}",
            "'pymq topic describe TOPIC' says whom to wait for; 'pymq cluster recover' goes on "
            "without, and may lose records",
        )
    else:
        yield ok("leaders", f"{plural(found.partitions, 'partition')}, all led")
    yield copies_check(found)


def copies_check(found: pymq.ClusterDescription) -> Finding:
    """Whether all sealed blocks have as many copies as they are to have."""
    few = found.under_replicated_blocks
    if not few:
        return ok("copies", "of all sealed blocks there are as many as there are to be")
    now = f", {found.moving_blocks:,} of which are being copied" if found.moving_blocks else ""
    return warn(
        "copies",
        f"too few of {plural(few, 'sealed block')}{now}",
        "start the brokers that are dead; what is on one that stays away is copied to others "
        "after the zkserver's replica_lost_s, or at once after 'pymq cluster decommission'",
    )


def _more(count: int) -> str:
    return f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else ""


# --- topics -------------------------------------------------------------------------------------


def topic_checks(mq: pymq.Client, only: str | None) -> Iterator[Finding]:
    """Whether the partitions of *only* one topic, or of all, can be written and read."""
    names = [only] if only is not None else mq.topics()
    if not names:
        yield warn("topics", "there is none yet", "'pymq topic create NAME' makes one")
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
            yield warn(f"topic {name}", f"{rest} more of the kind", f"'pymq topic describe {name}'")
        good += not troubles
        partitions += len(topic.partitions)
    if good and good == len(names):
        what = f"topic {only}" if only is not None else "topics"
        yield ok(
            what,
            f"{plural(partitions, 'partition')} of {plural(good, 'topic')}, all led and in sync",
        )


def dead_brokers(mq: pymq.Client) -> frozenset[str]:
    """The brokers that are dead; none for whoever may not see them, but may see topics."""
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
                "compare with what its producers have",
            )


def trouble(
    topic: TopicDescription, part: PartitionDescription, dead: Collection[str] = ()
) -> tuple[State, str, str] | None:
    """What is wrong with a partition: how bad, what, and the next step."""
    if part.acks is pymq.AckMode.UNSET:
        step = f"'pymq topic set-state {topic.name} {part.name} leader' makes it take records"
        return "warn", "it has no ack mode yet, and takes no records", step
    if part.leader is None or part.problem:
        return (
            "fail",
            part.problem or "nobody leads it",
            "start the brokers that are named; or see 'pymq cluster recover', which may lose "
            "records",
        )
    if len(part.in_sync) < min(topic.config.min_in_sync, len(part.replicas)):
        return (
            "fail",
            f"only {', '.join(part.in_sync)} of {', '.join(part.replicas)} in sync, and "
            f"min_in_sync is {topic.config.min_in_sync}: producers are refused",
            "bring the other brokers back",
        )
    if failed := [broker for broker in part.offline if broker not in dead]:
        return (
            "warn",
            f"the disk of {', '.join(failed)} fails or is damaged there; the others serve",
            "see the event replica_offline, mend the disk and start that broker again",
        )
    missing = [broker for broker in part.replicas if broker not in part.in_sync]
    if missing:
        return (
            "warn",
            f"{', '.join(missing)} not in sync: fewer copies than {len(part.replicas)}",
            "see whether that broker is alive and has room; it catches up by itself",
        )
    return None


def unreadable(part: PartitionDescription, dead: Collection[str]) -> Iterator[tuple[str, str]]:
    """Sealed blocks that no living broker holds: what is so, and the next step.

    Whether the partition is led tells nothing of them.
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
                f"start {'it' if is_one else 'one of them'} again on its folder: those who read "
                "there wait for that",
            )
        else:
            yield (
                f"nobody holds {plural(count, 'record')} any more, {where}",
                "their disks were replaced; who reads there waits, until it goes on behind them "
                "(consumer.seek, 'pymq group reset') or retention takes them",
            )


def _instead(mq: pymq.Client, error: PymqError) -> str:
    suggest(mq, error)
    return "; ".join(hints(error)) or "give another name"


# --- groups -------------------------------------------------------------------------------------


def group_checks(mq: pymq.Client, topic: str | None, only: str | None) -> Iterator[Finding]:
    """Why a group gets nothing, if it does not."""
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
        step = "start a consumer; if it runs, see whether it uses this group and this cluster"
        if total:
            yield (fail if is_wanted else warn)(what, found, step)
        else:
            yield ok(what, "it has no consumer, and nothing waits")
        return
    silent = [member for member in group.consumers if member.silent_s > SILENT_S]
    for member in silent:
        yield warn(
            what,
            f"{member.name} ({member.client}) was not heard of for {member.silent_s:.0f} s",
            "its process hangs or is cut off; what it holds comes again when its session is over",
        )
    troubles = [check for name in sorted(lags) if (check := delayed(mq, group, *name)) is not None]
    yield from troubles[:SHOWN_MAX]
    if not troubles and not silent:
        consumers = plural(len(group.consumers), "consumer")
        yield ok(what, f"{consumers}, lag {total:,}{', being worked on' if total else ''}")


def delayed(
    mq: pymq.Client, group: pymq.GroupDescription, topic: str, partition: str
) -> Finding | None:
    """What keeps the records of a partition from being delivered; None if nothing does."""
    name = (topic, partition)
    what = f"group {group.name}, {topic}/{partition}"
    lag, held, waiting = group.lag[name], group.in_flight[name], group.waiting[name]
    wait = clause(lag, "record", "waits", "wait")
    owners = [m for m in group.consumers if m.topic == topic and partition in m.partitions]
    if not owners:
        return fail(
            what,
            f"{wait}, and the partition is assigned to nobody",
            f"start a consumer of {topic} in this group; those that there are consume other topics",
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
            f"{', '.join(strangers)} had it before and still works on {plural(held, 'record')}, "
            f"until {time_text(until)}",
            "wait for it, or let it acknowledge sooner: nobody else gets records meanwhile",
        )
    again = [x for x in leases if x.delivery_count > 1 and x.state != "acked"]
    if again:
        count = sum(x.end_offset - x.start_offset for x in again)
        most = max(x.delivery_count for x in again)
        return warn(
            what,
            f"{plural(count, 'record')} came {most} times without being acknowledged, the first "
            f"at offset {again[0].start_offset:,}",
            f"'pymq explain {topic} {partition} {again[0].start_offset}' shows it; see what the "
            "consumer logs about it",
        )
    first = next((x for x in leases if x.state == "leased"), None)
    # What was held when the group was described may have been acknowledged since.
    if held and not fresh and not waiting and first is not None:
        return warn(
            what,
            f"{'1 record is' if lag == 1 else f'all {lag:,} records are'} delivered and not "
            f"acknowledged; those of {first.member} come again after "
            f"{time_text(first.until_ms or 0)}",
            "the consumer is at work, or forgets to acknowledge (consumer.ack, auto_ack=True)",
        )
    return None


def _dead_letters(mq: pymq.Client, topic: str | None) -> Iterator[Finding]:
    """What was given up."""
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
                f"{clause(count, 'record', 'was', 'were')} delivered too often and given up",
                f"'pymq consume {name} --headers' shows them with where they come from",
            )


def guarded(name: str, checks: Iterator[Finding]) -> Iterator[Finding]:
    """Checks, of which one that cannot be made is a failure and not the end."""
    try:
        yield from checks
    except PymqError as error:
        yield fail(name, f"{error} ({error.code})", "see what is said above, then the nodes' logs")
