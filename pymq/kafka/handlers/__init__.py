"""How the gate answers each API: turns requests of Kafka's clients into pymq's messages.

Each API has a handler: a generator that yields requests to pymq's nodes, gets their answers, and
returns the answer for the client.
"""
