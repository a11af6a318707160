"""The state machine of a group's consumer."""
