package penstock;

import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.api.python.PythonSQLUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractPartialFunction;

/**
 * A query that Spark has analysed and optimised once, over relations without rows; each run puts rows into their places.
 * Rows come in one piece and say so, so that nothing is shuffled.
 */
public class Prepared {
    private static final int ROWS_IN_A_BATCH = 50_000;
    private final LogicalPlan analyzed;
    private final LogicalPlan optimized;
    private final List<Integer> places = new ArrayList<>();
    private final List<StructType> schemas = new ArrayList<>();

    public Prepared(Dataset<?> query, List<Dataset<?>> relations) {
        analyzed = query.queryExecution().analyzed();
        optimized = query.queryExecution().optimizedPlan();
        for (Dataset<?> relation : relations) {
            places.add(((LogicalRDD) relation.queryExecution().analyzed()).rdd().id());
            schemas.add(relation.schema());
        }
    }

    /** Rows come as files of Arrow streams, one for each relation, and go as Arrow batches, each behind its length. */
    public void run(SparkSession session, List<String> inputs, String output) throws IOException {
        List<RDD<InternalRow>> rows = new ArrayList<>();
        for (int i = 0; i < inputs.size(); i++) {
            rows.add(read(session, inputs.get(i), schemas.get(i)));
        }
        LogicalPlan plan = filled(rows, session);
        InternalRow[] result = SQLExecution.withSQLConfPropagated(
            session, () -> new Execution(session, analyzed, plan).executedPlan().executeCollect());
        write(result, analyzed.schema(), output);
    }

    private static RDD<InternalRow> read(SparkSession session, String file, StructType schema) {
        Iterator<InternalRow> found = ArrowConverters$.MODULE$.fromBatchIterator(
            PythonSQLUtils.readArrowStreamFromFile(file), schema, "UTC", false, false, null);
        UnsafeProjection packed = UnsafeProjection.create(schema);
        List<InternalRow> rows = new ArrayList<>();
        while (found.hasNext()) {
            rows.add(packed.apply(found.next()).copy());
        }
        return session.sparkContext().parallelize(
            CollectionConverters.asScala(rows).toSeq(), 1, ClassTag$.MODULE$.apply(InternalRow.class));
    }

    private LogicalPlan filled(List<RDD<InternalRow>> rows, SparkSession session) {
        return optimized.transformDownWithSubqueries(new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
                return node instanceof LogicalRDD && places.contains(((LogicalRDD) node).rdd().id());
            }

            @Override
            public <A extends LogicalPlan, B> B applyOrElse(A node, scala.Function1<A, B> otherwise) {
                return isDefinedAt(node) ? cast(filled((LogicalRDD) node, rows, session)) : otherwise.apply(node);
            }
        });
    }

    @SuppressWarnings("unchecked")
    private static <B> B cast(Object value) {
        return (B) value;
    }

    private LogicalPlan filled(LogicalRDD leaf, List<RDD<InternalRow>> rows, SparkSession session) {
        RDD<InternalRow> found = rows.get(places.indexOf(leaf.rdd().id()));
        return new LogicalRDD(
            leaf.output(), found, SinglePartition$.MODULE$, leaf.outputOrdering(), false, Option.empty(), session,
            Option.empty(), Option.empty(), false);
    }

    private static void write(InternalRow[] rows, StructType schema, String file) throws IOException {
        Iterator<InternalRow> some = CollectionConverters.asScala(List.of(rows).iterator());
        Iterator<byte[]> batches = ArrowConverters$.MODULE$.toBatchIterator(
            some, schema, ROWS_IN_A_BATCH, "UTC", false, false, null);
        try (DataOutputStream out = new DataOutputStream(new FileOutputStream(file))) {
            while (batches.hasNext()) {
                byte[] batch = batches.next();
                out.writeInt(batch.length);
                out.write(batch);
            }
        }
    }

    /** Spark's own, which is told what it would find out. */
    private static class Execution extends QueryExecution {
        private final LogicalPlan kept;
        private final LogicalPlan named;

        Execution(SparkSession session, LogicalPlan analyzed, LogicalPlan optimized) {
            super(
                session, analyzed, QueryExecution.$lessinit$greater$default$3(),
                QueryExecution.$lessinit$greater$default$4(), QueryExecution.$lessinit$greater$default$5(),
                QueryExecution.$lessinit$greater$default$6(), QueryExecution.$lessinit$greater$default$7(),
                QueryExecution.$lessinit$greater$default$8());
            kept = optimized;
            named = analyzed;
        }

        @Override
        public LogicalPlan analyzed() {
            return named;
        }

        @Override
        public LogicalPlan optimizedPlan() {
            return kept;
        }
    }
}
