"""How the gate answers each API: turns requests of Kafka's clients into pymq's messages.

Each API has a handler, a generator in the module of its conversation. The generator yields requests
to nodes of pymq, gets their answers, and returns the answer for the client.
"""
