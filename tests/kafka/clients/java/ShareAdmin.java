import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** An administrator of a share group without workers: BOOTSTRAP GROUP TOPIC; prints what it finds. */
public class ShareAdmin {
    public static void main(String[] args) throws Exception {
        Properties conf = new Properties();
        conf.put("bootstrap.servers", args[0]);
        String group = args[1], topic = args[2];
        TopicPartition part = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(conf)) {
            System.out.println("features " + new java.util.TreeMap<>(
                admin.describeFeatures().featureMetadata().get().finalizedFeatures()).keySet());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            AlterConfigOp change = new AlterConfigOp(
                new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            System.out.println("reset " + admin.describeConfigs(Set.of(resource)).all().get()
                .get(resource).get("share.auto.offset.reset").value());
            ListGroupsOptions shares = new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE));
            System.out.println("listed " + admin.listGroups(shares).all().get().size());
            ShareGroupDescription found =
                admin.describeShareGroups(List.of(group)).all().get().get(group);
            System.out.println("state " + found.groupState() + " " + found.members().size());
            Map<String, ListShareGroupOffsetsSpec> all =
                Map.of(group, new ListShareGroupOffsetsSpec());
            System.out.println("start " + admin.listShareGroupOffsets(all)
                .partitionsToOffsetInfo(group).get().get(part).startOffset());
            admin.alterShareGroupOffsets(group, Map.of(part, 1L)).all().get();
            System.out.println("start " + admin.listShareGroupOffsets(all)
                .partitionsToOffsetInfo(group).get().get(part).startOffset());
            admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
            try {
                admin.deleteShareGroups(List.of(group)).all().get();
                System.out.println("deleted");
            } catch (java.util.concurrent.ExecutionException error) {
                System.out.println("gone " + error.getCause().getClass().getSimpleName());
            }
        }
    }
}
