import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A worker of a share group: BOOTSTRAP GROUP TOPIC HOW SECONDS.
 *
 * Prints "value deliveries" for each record, and ends after so many seconds without a record. HOW
 * is "implicit", "explicit" (records that begin with "reject" are rejected, those that begin with
 * "release" are released at their first delivery, those that begin with "renew" are renewed) or
 * "hang" (takes records, and waits to be killed).
 */
public class ShareWork {
    public static void main(String[] args) throws Exception {
        Properties conf = new Properties();
        conf.put("bootstrap.servers", args[0]);
        conf.put("group.id", args[1]);
        conf.put("key.deserializer", StringDeserializer.class.getName());
        conf.put("value.deserializer", StringDeserializer.class.getName());
        boolean isExplicit = !args[3].equals("implicit");
        conf.put("share.acknowledgement.mode", isExplicit ? "explicit" : "implicit");
        conf.put("max.poll.records", "50");
        long idleMs = Long.parseLong(args[4]) * 1000;
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(conf)) {
            consumer.subscribe(List.of(args[2]));
            System.out.println("# ready");
            long heard = System.currentTimeMillis();
            while (System.currentTimeMillis() - heard < idleMs) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> record : records) {
                    heard = System.currentTimeMillis();
                    System.out.println(record.value() + " " + record.deliveryCount().get());
                    if (args[3].equals("explicit")) {
                        consumer.acknowledge(record, kind(record));
                    }
                }
                System.out.flush();
                if (args[3].equals("hang") && !records.isEmpty()) {
                    Thread.sleep(600_000);
                }
                if (isExplicit && !records.isEmpty()) {
                    Map<TopicIdPartition, Optional<KafkaException>> done = consumer.commitSync();
                    for (Optional<KafkaException> each : done.values()) {
                        each.ifPresent(error -> System.out.println("# error " + error));
                    }
                }
            }
        }
    }

    private static AcknowledgeType kind(ConsumerRecord<String, String> record) {
        if (record.value().startsWith("reject")) {
            return AcknowledgeType.REJECT;
        }
        if (record.value().startsWith("release") && record.deliveryCount().get() == 1) {
            return AcknowledgeType.RELEASE;
        }
        return AcknowledgeType.ACCEPT;
    }
}
