"""All metrics: name, kind, labels and help text.

Names follow Prometheus: a unit at the end, ``_total`` for counters. Names and meanings do not
change within a major version. docs/monitoring.md has the table.
"""

from __future__ import annotations

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
TOPIC = ("topic",)
PARTITION = ("topic", "partition")
GROUP = ("group", "topic", "partition")


class Spec(NamedTuple):
    """The kind, the labels and the help text of a metric."""

    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]
    help: str


BROKER = {
    "pymq_messages_in_total": Spec(COUNTER, TOPIC, "Records appended for producers"),
    "pymq_bytes_in_total": Spec(COUNTER, TOPIC, "Bytes of the batches of these records"),
    "pymq_bytes_out_total": Spec(COUNTER, TOPIC, "Bytes of batches that were read by clients"),
    "pymq_replication_bytes_in_total": Spec(COUNTER, (), "Bytes of batches from other brokers"),
    "pymq_replication_bytes_out_total": Spec(COUNTER, (), "Bytes of batches for other brokers"),
    "pymq_under_replicated_partitions": Spec(
        GAUGE, (), "Partitions that the broker leads, with a replica that is not in sync"
    ),
    "pymq_under_min_isr_partitions": Spec(
        GAUGE, (), "Partitions that the broker leads, with fewer replicas in sync than min_in_sync"
    ),
    "pymq_failed_partitions": Spec(
        GAUGE, (), "Partitions whose copy on the broker is damaged, or cannot be written or read"
    ),
    "pymq_hosted_partitions": Spec(GAUGE, (), "Partitions of which the broker has any block"),
    "pymq_led_partitions": Spec(GAUGE, (), "Partitions whose open block the broker leads"),
    "pymq_log_start_offset": Spec(GAUGE, PARTITION, "First offset that is kept; by the leader"),
    "pymq_log_end_offset": Spec(GAUGE, PARTITION, "Offset of the next record; by the leader"),
    "pymq_high_watermark": Spec(
        GAUGE, PARTITION, "Offset before which consumers may read; by the leader"
    ),
    "pymq_leader_epoch": Spec(GAUGE, PARTITION, "Epoch of the leader; by the leader"),
    "pymq_replicas": Spec(GAUGE, PARTITION, "Replicas of the open block; by the leader"),
    "pymq_in_sync_replicas": Spec(GAUGE, PARTITION, "Replicas that are in sync; by the leader"),
    "pymq_log_size_bytes": Spec(
        GAUGE, PARTITION, "Bytes of all blocks of the partition; by the leader"
    ),
    "pymq_group_members": Spec(GAUGE, ("group",), "Consumers; by the group's coordinator"),
    "pymq_group_committed_offset": Spec(
        GAUGE, GROUP, "Lowest offset that is not acknowledged; by the group's coordinator"
    ),
    "pymq_group_lag": Spec(
        GAUGE,
        GROUP,
        "Offsets from the committed one to the high watermark, as far as members have reported",
    ),
    "pymq_group_in_flight": Spec(GAUGE, GROUP, "Records that are leased and not acknowledged"),
    "pymq_delayed_records": Spec(
        GAUGE, (), "Delayed records that are not due yet, of the partitions that the broker leads"
    ),
    "pymq_fetches_waiting": Spec(
        GAUGE, (), "Fetches that wait until there is room for their answers"
    ),
    "pymq_fsync_seconds": Spec(HISTOGRAM, (), "How long it takes to make a file durable"),
    "pymq_write_seconds": Spec(
        HISTOGRAM, (), "How long the writes of a turn take, with their syncs"
    ),
}

ZKSERVER = {
    "pymq_active_controller": Spec(GAUGE, (), "1 if this zkserver is the active one, else 0"),
    "pymq_controller_epoch": Spec(GAUGE, (), "Rises with each take-over; by the active zkserver"),
    "pymq_brokers": Spec(GAUGE, ("state",), "Brokers that are alive, dead, or draining"),
    "pymq_topics": Spec(GAUGE, (), "Topics, including internal ones; by the active zkserver"),
    "pymq_partitions": Spec(GAUGE, (), "Partitions of all topics; by the active zkserver"),
    "pymq_offline_partitions": Spec(
        GAUGE, (), "Partitions without a leader; from the active zkserver"
    ),
    "pymq_offline_replicas": Spec(
        GAUGE,
        (),
        "Replicas for which live brokers cannot act because of their disks; by the active zkserver",
    ),
    "pymq_short_partitions": Spec(
        GAUGE, (), "Partitions with fewer replicas than requested; by the active zkserver"
    ),
    "pymq_under_replicated_blocks": Spec(
        GAUGE, (), "Sealed blocks with too few complete live copies; by the active zkserver"
    ),
    "pymq_moving_blocks": Spec(
        GAUGE, (), "Sealed blocks that are being copied to another broker; by the active zkserver"
    ),
    "pymq_rolls_under_way": Spec(GAUGE, (), "Partitions that are being rolled"),
    "pymq_metadata_queue": Spec(GAUGE, (), "Changes that wait for the coordinator backend"),
    "pymq_isr_shrinks_total": Spec(COUNTER, (), "Times that replicas have left an in-sync set"),
    "pymq_isr_expands_total": Spec(COUNTER, (), "Times that replicas have joined an in-sync set"),
    "pymq_leader_elections_total": Spec(COUNTER, (), "Partitions that got another leader"),
    "pymq_unclean_elections_total": Spec(
        COUNTER, (), "Partitions that continued although committed records may be missing"
    ),
    "pymq_rolls_total": Spec(COUNTER, (), "Rolls: a block was sealed, and the next one opened"),
}

NODE = {
    "pymq_request_seconds": Spec(
        HISTOGRAM, ("request",), "From a request's arrival to its answer, waiting included"
    ),
    "pymq_request_errors_total": Spec(
        COUNTER, ("request", "error"), "Requests that were answered with an error, by its code"
    ),
    "pymq_unanswered_requests": Spec(GAUGE, (), "Requests that wait for their answer"),
    "pymq_inbox_messages": Spec(GAUGE, (), "Messages that wait for the loop"),
    "pymq_send_queue_bytes": Spec(GAUGE, (), "Bytes that wait to be sent"),
    "pymq_send_queue_packets": Spec(GAUGE, (), "Packets that wait to be sent"),
    "pymq_unsent_bytes": Spec(
        GAUGE, (), "Bytes for clients that have not left the process, libzmq's queues included"
    ),
    "pymq_connections_cut_total": Spec(
        COUNTER, (), "Connections that were closed because the client did not read"
    ),
    "pymq_connections_turned_away_total": Spec(
        COUNTER, (), "Connections that were closed because there were too many"
    ),
    "pymq_connections": Spec(GAUGE, (), "Other nodes and clients that the node is connected to"),
    "pymq_messages_dropped_total": Spec(
        COUNTER, (), "Messages that were lost or refused by the transport"
    ),
    "pymq_refused_total": Spec(COUNTER, (), "Requests that the policy refused"),
    "pymq_idle_seconds_total": Spec(COUNTER, (), "Time in which the loop had nothing to do"),
    "pymq_events_total": Spec(
        COUNTER, ("event",), "Events that have happened; see the log of events"
    ),
    "pymq_info": Spec(
        GAUGE,
        ("node", "kind", "version"),
        "Always 1; name, role and version of the node are its labels",
    ),
    "process_cpu_seconds_total": Spec(COUNTER, (), "Processor time of the process"),
    "process_resident_memory_bytes": Spec(GAUGE, (), "Memory of the process"),
    "process_start_time_seconds": Spec(GAUGE, (), "Start of the process, in seconds since 1970"),
    "process_open_fds": Spec(GAUGE, (), "Files and sockets that the process has open"),
    "process_max_fds": Spec(
        GAUGE, (), "Limit of open files and sockets, without those reserved for files"
    ),
}

CLIENT = {
    "pymq_producer_records_total": Spec(COUNTER, (), "Records that are answered as written"),
    "pymq_producer_bytes_total": Spec(COUNTER, (), "Bytes of the batches of these records"),
    "pymq_producer_batches_total": Spec(COUNTER, (), "Batches of these records"),
    "pymq_producer_errors_total": Spec(COUNTER, (), "Records that have failed permanently"),
    "pymq_producer_retries_total": Spec(
        COUNTER, (), "Times that the batches in flight were resent"
    ),
    "pymq_producer_buffered_bytes": Spec(GAUGE, (), "Bytes that are not answered yet"),
    "pymq_producer_batch_seconds": Spec(
        HISTOGRAM, (), "Time from the first send of a batch to its answer, to the millisecond"
    ),
    "pymq_producers": Spec(GAUGE, (), "Producers that are open"),
    "pymq_consumers": Spec(GAUGE, (), "Consumers that are open"),
    "pymq_consumer_records_total": Spec(COUNTER, (), "Records that consumers have returned"),
    "pymq_consumer_expired_total": Spec(
        COUNTER, (), "Records that consumers did not return because of their expiry"
    ),
    "pymq_consumer_undecodable_total": Spec(
        COUNTER, (), "Records whose values consumers of typed topics could not decode"
    ),
}

# of a client whose process runs Spark's queries: pymq.spark.ProgressListener
SPARK = {
    "pymq_spark_offsets_behind_latest": Spec(
        GAUGE,
        ("query", "source", "stat"),
        "Records that a query has not read, of a partition: min, max or avg",
    ),
    "pymq_spark_bytes_behind_latest": Spec(
        GAUGE, ("query", "source"), "Estimated bytes of all records that a query has not read"
    ),
}

KAFKA = {
    "pymq_kafka_request_seconds": Spec(
        HISTOGRAM, ("api",), "From a Kafka client's request to its answer, waiting included"
    ),
    "pymq_kafka_connections": Spec(GAUGE, (), "Connections of Kafka's clients"),
    "pymq_kafka_connections_turned_away_total": Spec(
        COUNTER, (), "Connections of Kafka's clients that were closed because there were too many"
    ),
    "pymq_kafka_connections_timed_out_total": Spec(
        COUNTER, (), "Connections of Kafka's clients that proved no principal in time"
    ),
    "pymq_kafka_authentication_failures_total": Spec(
        COUNTER, (), "Refused passwords of Kafka's clients"
    ),
    "pymq_kafka_received_bytes_total": Spec(COUNTER, (), "Bytes from Kafka's clients"),
    "pymq_kafka_sent_bytes_total": Spec(COUNTER, (), "Bytes for Kafka's clients"),
    "pymq_kafka_fetch_sessions": Spec(GAUGE, (), "Fetch sessions of Kafka's clients"),
    "pymq_kafka_share_sessions": Spec(GAUGE, (), "Share sessions of Kafka's clients"),
}

# of a client whose process mirrors topics from or to a Kafka
MIRROR = {
    "pymq_mirror_records_total": Spec(COUNTER, TOPIC, "Records that a mirror has written"),
    "pymq_mirror_bytes_total": Spec(COUNTER, TOPIC, "Bytes of these records"),
    "pymq_mirror_skipped_total": Spec(
        COUNTER, TOPIC, "Records that a mirror has skipped, because the target refuses them"
    ),
    "pymq_mirror_lag": Spec(
        GAUGE, TOPIC, "Offsets from the last record that was read to the end of the source"
    ),
}

METRICS: dict[str, Spec] = {**BROKER, **ZKSERVER, **NODE, **KAFKA, **CLIENT, **SPARK, **MIRROR}
