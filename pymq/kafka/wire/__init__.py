"""The messages of Kafka's protocol, generated from Apache Kafka's own definitions.

================  ================================================================================
``schema.json``   which field has which type in which version, of the messages that pymq serves
``messages.py``   a class for each message and each struct in one, with the fields of all versions
``codec.py``      makes readers and writers of one message and version from the schema, when first
                  asked for one
``update.py``     writes the first two anew from the definitions of another Kafka
================  ================================================================================

The schema holds facts about the protocol only. They were read from the definitions in Apache
Kafka's ``kafka-clients`` package, which the Apache Software Foundation publishes under the Apache
License 2.0; no text and no code of Kafka's was taken over.
"""
