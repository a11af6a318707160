"""Share groups (KIP-932), which are pymq's own groups: single acknowledgements and redelivery."""
