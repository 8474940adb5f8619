package penstock;

import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Repartition;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf;

/**
 * Lets a batch of few events say that it comes in one piece. Spark then sees that state of one partition needs no shuffle,
 * and runs the whole batch as one task of one stage.
 */
public class OneTask extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        return SQLConf.get().getConfString("penstock.few", "false").equals("true") ? inOnePiece(plan) : plan;
    }

    /** Above the watermark, since Spark's operator for it does not hand on how rows are spread. */
    private LogicalPlan inOnePiece(LogicalPlan plan) {
        if (plan instanceof Repartition) {
            return plan; // said already, or something else was asked for
        }
        if (plan instanceof EventTimeWatermark || plan instanceof StreamingDataSourceV2ScanRelation) {
            return new Repartition(1, false, plan);
        }
        return plan.mapChildren(this::inOnePiece);
    }
}
