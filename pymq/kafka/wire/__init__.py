"""The messages of Kafka's protocol, generated from Apache Kafka's own definitions.

================  ================================================================================
``schema.json``   the fields of the messages that pymq serves, with their types and versions
``messages.py``   a class for each message and for each struct in it, for all versions
``codec.py``      makes a reader and a writer of one message and version, at its first use
``update.py``     updates the first two from the definitions of another version of Kafka
================  ================================================================================

The schema holds facts about the protocol only. ``update.py`` reads these facts from the definitions
in Apache Kafka's ``kafka-clients`` package, which the Apache Software Foundation publishes under
the Apache License 2.0. No text and no code of Kafka is copied.
"""
