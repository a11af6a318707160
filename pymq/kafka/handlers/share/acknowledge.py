"""ShareAcknowledge: settles the leases of a share session without a fetch."""

from __future__ import annotations

from pymq.kafka.codes import Code
from pymq.kafka.handlers.share.membership import LOCK_MS, close
from pymq.kafka.handlers.share.settlement import settle
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps
from pymq.kafka.shared.share_sessions import FINAL, INITIAL
from pymq.kafka.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponseLeaderIdAndEpoch,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeResponseShareAcknowledgeTopicResponse,
)

NOBODY = -1  # the client has to ask for the leader


def share_acknowledge(context: GateContext, m: ShareAcknowledgeRequest, call: KafkaCall) -> Steps:
    """Settle leases; the last request of a session also ends it."""
    epoch = m.share_session_epoch
    if epoch == INITIAL:
        return _refused(Code.INVALID_SHARE_SESSION_EPOCH)
    session = context.share.sessions.turn(
        m.group_id or "", m.member_id or "", epoch, call.connection, context.now
    )
    if isinstance(session, Code):
        return _refused(session)
    given = {
        (topic.topic_id, part.partition_index): part.acknowledgement_batches
        for topic in m.topics
        for part in topic.partitions
    }
    codes = yield from settle(context, session, given, renews=m.is_renew_ack)
    if epoch == FINAL:
        yield from close(context, session, list(session.members))
    answer = ShareAcknowledgeResponse(error_message=None)
    if call.version >= 2:
        answer.acquisition_lock_timeout_ms = LOCK_MS
    for topic in m.topics:
        answer.responses.append(
            ShareAcknowledgeResponseShareAcknowledgeTopicResponse(
                topic.topic_id,
                [
                    ShareAcknowledgeResponsePartitionData(
                        part.partition_index,
                        int(codes.get((topic.topic_id, part.partition_index), Code.NONE)),
                        None,
                        ShareAcknowledgeResponseLeaderIdAndEpoch(NOBODY, NOBODY),
                    )
                    for part in topic.partitions
                ],
            )
        )
    return answer


def _refused(code: Code) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(0, int(code), None)
