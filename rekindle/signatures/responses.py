"""First responses: what a fault asks for when it is seen for the first time. One vocabulary for labels and Xids."""

from __future__ import annotations

from rekindle.compat import StrEnum


class FirstResponse(StrEnum):
    """What is asked for at first sight; the policy and the budgets decide what is done."""

    LEAVE_ALONE = "leave_alone"  # an echo, a bookkeeping record, or a person's own decision
    MONITOR = "monitor"  # a bad omen; worth a line, no action yet
    RESTART_APP = "restart_app"  # resubmit from the newest verified checkpoint; the node may stay
    RESET_GPU = "reset_gpu"  # on a managed node this means: reboot the node
    REBOOT = "reboot"
    REPLACE = "replace"
    FOLLOW_TEXT = "follow_text"  # Xid 154: the record itself says what to do
    FIND_CAUSE = "find_cause"  # one rank's word about another's death: look at the others first
    ROLL_BACK = "roll_back"  # stop, resume from a verified checkpoint before the onset
    OLDER_CHECKPOINT = "older_checkpoint"  # quarantine this one, take the next older verified one
    SAVE_AND_RESUBMIT = "save_and_resubmit"  # save before the deadline, submit again when there is room
    WAIT = "wait"  # there is no room: submit again later
    ASK_OWNER = "ask_owner"  # the same input will fail the same way
    UNKNOWN = "unknown"  # not in the table: never healthy, never a reason to act alone

    @property
    def needs_node_action(self) -> bool:
        """The node must leave the run before it can be trusted again."""
        return self in (FirstResponse.RESET_GPU, FirstResponse.REBOOT, FirstResponse.REPLACE)
