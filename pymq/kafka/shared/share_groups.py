"""What a gate keeps about share groups (KIP-932): sessions, members, and where coordinators are."""

from __future__ import annotations

from pymq.core.values import Factory, define
from pymq.kafka.shared.group_coordinators import GroupLeaders
from pymq.kafka.shared.share_members import ShareMembers
from pymq.kafka.shared.share_sessions import ShareSessions


@define
class ShareGroups:
    """The share groups of a gate."""

    sessions: ShareSessions = Factory(ShareSessions)
    members: ShareMembers = Factory(ShareMembers)
    leaders: GroupLeaders = Factory(GroupLeaders)
