package org.apache.spark.util;

/**
 * In the place of Spark's own, which prepares closures that were typed into a Scala shell. There is none here: it took a
 * fifth of a small batch to read the classes of Spark's own closures from their jars and to serialize each once more.
 */
public final class SparkClosureCleaner$ {
    public static final SparkClosureCleaner$ MODULE$ = new SparkClosureCleaner$();

    private SparkClosureCleaner$() {}

    public <F> F clean(F closure, boolean checkSerializable, boolean cleanTransitively) {
        return closure;
    }

    public <F> boolean clean$default$2() {
        return true;
    }

    public <F> boolean clean$default$3() {
        return true;
    }
}
