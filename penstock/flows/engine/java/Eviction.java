package penstock;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreSaveExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.streaming.OutputMode;
import scala.Option;
import scala.runtime.AbstractFunction1;

/**
 * Lets an aggregation in update mode keep all its groups in most batches. At the end of each Spark looks through all of
 * them for ones that the watermark has passed; nothing but the size of the state depends on when it does that.
 */
public class Eviction extends AbstractFunction1<SparkSession, ColumnarRule> {
    @Override
    public ColumnarRule apply(SparkSession session) {
        return new ColumnarRule() {
            @Override
            public Rule<SparkPlan> preColumnarTransitions() {
                return new Delay();
            }
        };
    }

    /** Runs when Spark has told the operators of a batch its watermark. */
    private static class Delay extends Rule<SparkPlan> {
        @Override
        public SparkPlan apply(SparkPlan plan) {
            return SQLConf.get().getConfString("penstock.evicts", "true").equals("true") ? plan : without(plan);
        }

        private SparkPlan without(SparkPlan plan) {
            SparkPlan same = (SparkPlan) plan.mapChildren(child -> without((SparkPlan) child));
            if (!(same instanceof StateStoreSaveExec)) {
                return same;
            }
            StateStoreSaveExec save = (StateStoreSaveExec) same;
            if (!save.outputMode().contains(OutputMode.Update())) {
                return same; // in append mode what it lets go of is what it gives out
            }
            SparkPlan kept = save.copy(
                    save.keyExpressions(), save.stateInfo(), save.outputMode(), save.eventTimeWatermarkForLateEvents(),
                    Option.empty(), save.stateFormatVersion(), save.child());
            kept.copyTagsFrom(save);
            return kept;
        }
    }
}
