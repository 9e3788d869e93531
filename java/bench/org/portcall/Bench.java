// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongBinaryOperator;
import java.util.function.LongSupplier;

/**
 * What calls cost, beside the limits of JNI and beside JNA, which calls the same core: `make bench-java`. Both sides take turns in
 * one process, by the processor time of the thread; a ratio is the median of its rounds.
 *
 *   java … org.portcall.Bench LIMITS, the library of java/bench/limits.c
 */
final class Bench {
    private static final int ROUNDS = 40, BLOCK = 100_000, LOADS = 15, TENSORS = 1_000_000;
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    static native void start();
    static native void empty();
    static native void emptyUp();
    static boolean nothing() { return true; } // HotSpot does not even call one that is void and empty

    /** The core by JNA, as an interface, which is its usual form. */
    public interface Core extends com.sun.jna.Library {
        int TVMFFIFunctionCall(Pointer function, Pointer args, int count, Pointer result);
    }

    /** The same by methods that JNA binds directly, its fast form. */
    static final class Direct {
        static native int TVMFFIFunctionCall(Pointer function, Pointer args, int count, Pointer result);
    }

    /** A loop of its own for each function: the compiler optimizes one for what it calls. */
    interface Loop {
        void run(int calls);
    }

    private static double nanoseconds(Loop loop, int calls) {
        long before = CLOCK.getCurrentThreadCpuTime();
        loop.run(calls);
        return (double) (CLOCK.getCurrentThreadCpuTime() - before) / calls;
    }

    private static double median(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2;
    }

    private static String time(double nanoseconds) {
        return nanoseconds < 1e6 ? String.format("%.3g ns", nanoseconds) : String.format("%.3g ms", nanoseconds / 1e6);
    }

    private static void row(String what, String ours, String peer, String ratio, String target, boolean met) {
        System.out.println("| " + String.join(" | ", what, ours, peer, ratio, target.isEmpty() ? "none" : target, target.isEmpty() ? "-" : met ? "met" : "missed") + " |");
    }

    /** Ours beside a peer: A B B A. */
    private static void compare(String what, Loop ours, Loop peer, double target, int calls) {
        double[] a = new double[ROUNDS], b = new double[ROUNDS], ratios = new double[ROUNDS];
        for (int round = -ROUNDS / 4; round < ROUNDS; ++round) { // the first ones are for the compiler
            double first = nanoseconds(ours, calls), other = nanoseconds(peer, calls) + nanoseconds(peer, calls);
            if (round < 0) continue;
            a[round] = (first + nanoseconds(ours, calls)) / 2;
            b[round] = other / 2;
            ratios[round] = a[round] / b[round];
        }
        double ratio = median(ratios);
        row(what, time(median(a)), time(median(b)), String.format("%.2f", ratio), target == 0 ? "" : Double.toString(target), ratio <= target);
    }

    private static void alone(String what, Loop ours, double limit, int calls) {
        double[] times = new double[ROUNDS];
        for (int round = -ROUNDS / 4; round < ROUNDS; ++round) {
            double each = nanoseconds(ours, calls);
            if (round >= 0) times[round] = each;
        }
        row(what, time(median(times)), "", "", limit == 0 ? "" : time(limit), median(times) <= limit);
    }

    private static void calls(String folder) {
        PackedFunc nop = Portcall.get("testing.nop"), apply = Portcall.get("testing.apply"), echo = Portcall.get("testing.echo");
        LongBinaryOperator add = PackedFunc.of(LongBinaryOperator.class, (a, b) -> a + b).as(LongBinaryOperator.class);
        PackedFunc sum = PackedFunc.of(LongBinaryOperator.class, (a, b) -> a + b);
        Tensor tensor = Tensor.empty(DType.FLOAT32, 16);
        float[] kibibyte = new float[256];
        ByteBuffer large = ByteBuffer.allocateDirect(64 << 20).order(ByteOrder.nativeOrder());
        Core core = com.sun.jna.Native.load(Path.of(folder, "libportcall.so").toString(), Core.class);
        com.sun.jna.Native.register(Direct.class, Path.of(folder, "libportcall.so").toString());
        Pointer function = new Pointer(nop.handle.address), cells = new Memory(64), result = new Memory(16);
        ((Memory) cells).clear();
        ((Memory) result).clear();
        Loop empty = n -> {
            for (int i = 0; i < n; ++i) empty();
        };
        Loop emptyUp = n -> {
            for (int i = 0; i < n; ++i) emptyUp();
        };
        System.out.println("| what | portcall | peer | ratio | target | verdict |\n| --- | --- | --- | --- | --- | --- |");
        Loop plain = n -> {
            for (int i = 0; i < n; ++i) nop.call();
        };
        compare("`nop()`, beside an empty native method", plain, empty, 4.5, BLOCK);
        compare("`nop()`, beside JNA with arguments that are ready", plain, n -> {
            for (int i = 0; i < n; ++i) core.TVMFFIFunctionCall(function, cells, 0, result);
        }, 0.1, BLOCK / 10);
        compare("the same, beside JNA's direct mapping", plain, n -> {
            for (int i = 0; i < n; ++i) Direct.TVMFFIFunctionCall(function, cells, 0, result);
        }, 0, BLOCK / 10);
        compare("`nop(1, 2, 3)`, beside an empty native method", n -> {
            for (int i = 0; i < n; ++i) nop.call(1, 2, 3);
        }, empty, 7, BLOCK);
        compare("`nop(tensor)`, beside an empty native method", n -> {
            for (int i = 0; i < n; ++i) nop.call(tensor);
        }, empty, 6, BLOCK);
        compare("Java calls `add(1, 2)` of Java through the core, beside an empty call of Java by native code", n -> {
            for (int i = 0; i < n; ++i) add.applyAsLong(1, 2);
        }, emptyUp, 2.2, BLOCK);
        compare("the same through a function of C++ that calls it", n -> {
            for (int i = 0; i < n; ++i) apply.callLong(sum, 1, 2);
        }, emptyUp, 0, BLOCK);
        alone("`nop(float[256])`, copied in and out", n -> {
            for (int i = 0; i < n; ++i) nop.call((Object) kibibyte);
        }, 150, BLOCK / 4);
        alone("64 MiB of a direct buffer as a tensor, a call, closed", n -> {
            for (int i = 0; i < n; ++i) {
                try (Tensor wrapped = Tensor.wrap(large, DType.FLOAT32, 16 << 20)) {
                    nop.call(wrapped);
                }
            }
        }, 1000, BLOCK / 20);
        alone("`echo` of 30 characters", n -> {
            for (int i = 0; i < n; ++i) echo.callString("a text of about thirty letters");
        }, 0, BLOCK / 4);
        alone("an error of C++, caught", n -> {
            for (int i = 0; i < n; ++i) fail();
        }, 0, 500);
    }

    private static final PackedFunc RAISE = Portcall.get("testing.test_raise_error");

    private static void fail() {
        try {
            RAISE.call("ValueError", "wrong");
        } catch (PortcallException expected) { // what is measured
        }
    }

    // ---- Processes ----

    static final class Nothing {
        public static void main(String[] words) {}
    }

    static final class Loading {
        public static void main(String[] words) {
            Portcall.get("testing.nop").call();
        }
    }

    static final class Leaving {
        public static void main(String[] words) throws Exception {
            float[] values = new float[1000];
            for (int i = 0; i < TENSORS; ++i) Tensor.of(values);
            System.out.print(Files.readString(Path.of("/proc/self/status")).replaceAll("(?s).*VmHWM:\\s*(\\d+).*", "$1"));
        }
    }

    /** What a program prints, with the milliseconds of processor time behind it. */
    private static String run(Class<?> program, String option) throws Exception {
        List<String> words = new ArrayList<>(List.of("bash", "-c", "TIMEFORMAT=' %3U %3S'; time \"$@\"", "bash", System.getProperty("java.home") + "/bin/java",
                "-Xshare:auto", option, "-cp", System.getProperty("java.class.path"), program.getName()));
        Process process = new ProcessBuilder(words).redirectErrorStream(true).start();
        String printed = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) throw new IllegalStateException(printed);
        return printed.trim().replaceAll("(?s).*\n", "").trim(); // behind the warnings of JDK 24 and later
    }

    private static double milliseconds(String option, Class<?> program) throws Exception {
        String[] times = run(program, option).split(" ");
        return 1000 * (Double.parseDouble(times[0]) + Double.parseDouble(times[1]));
    }

    private static void load(String what, String option, double limit) throws Exception {
        double[] more = new double[LOADS];
        for (int i = 0; i < LOADS; ++i) {
            double empty = milliseconds(option, Nothing.class);
            more[i] = milliseconds(option, Loading.class) - empty;
        }
        row(what, String.format("%.0f ms", median(more)), "", "", limit + " ms", median(more) <= limit);
    }

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        start();
        String folder = System.getProperty("portcall.library.path");
        calls(folder);
        load("processor time to load and call once, over an empty program", "-Dportcall.library.path=" + folder, 30);
        load("the same out of the jar", "-Dportcall.bench=jar", 50);
        long kib = Long.parseLong(run(Leaving.class, "-Xmx256m").split(" ")[0]);
        row(TENSORS + " tensors of 4,000 bytes that nobody closes, under `-Xmx256m`: most memory", kib / 1024 + " MiB", "", "", "600 MiB", kib < 600 << 10);
    }
}
