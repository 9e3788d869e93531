// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** What measurements of a function gave: the mean seconds of a call, for each repetition. */
public final class Timing {
    private final double[] seconds;

    private Timing(double[] seconds) { this.seconds = seconds; }

    /** The mean seconds of a call, for each repetition. */
    public double[] seconds() { return seconds.clone(); }

    /** Of the repetitions, the mean. */
    public double mean() { return Arrays.stream(seconds).average().orElse(Double.NaN); }

    /** Of the repetitions, the median. */
    public double median() {
        double[] sorted = seconds.clone();
        Arrays.sort(sorted);
        int n = sorted.length;
        return n == 0 ? Double.NaN : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    }

    /** The shortest repetition. */
    public double min() { return Arrays.stream(seconds).min().orElse(Double.NaN); }

    /** The longest one. */
    public double max() { return Arrays.stream(seconds).max().orElse(Double.NaN); }

    @Override public String toString() { return String.format("%.3g s, median of %d", median(), seconds.length); }

    /** How to measure; {@link #run} does it, in native code, where the function is. One call warms up. */
    public static final class Evaluator {
        private final Module module;
        private final String name;
        private final Device device;
        private int number = 10, repeat = 1, minRepeatMs;

        Evaluator(Module module, String name, Device device) {
            this.module = module;
            this.name = name;
            this.device = device;
        }

        /** Calls in a repetition: 10 unless it is said. */
        public Evaluator number(int calls) { number = calls; return this; }

        /** Repetitions: 1 unless it is said. */
        public Evaluator repeat(int times) { repeat = times; return this; }

        /** A repetition has more calls until it takes so long. */
        public Evaluator minRepeatMs(int milliseconds) { minRepeatMs = milliseconds; return this; }

        /** Measures calls with these arguments. */
        public Timing run(Object... args) {
            PackedFunc evaluate = Portcall.get("runtime.RPCTimeEvaluator").callFunction(module, name, device.type(), device.id(), number,
                    repeat, minRepeatMs, 100, 0, 1, 0, "");
            byte[] bytes = evaluate.callAs(byte[].class, args);
            double[] seconds = new double[bytes.length / 8];
            ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asDoubleBuffer().get(seconds);
            return new Timing(seconds);
        }
    }
}
