// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongUnaryOperator;
import org.junit.jupiter.api.Test;

/** Threads, garbage collection, and the end of the process. */
class LifetimeTest {
    private static final PackedFunc APPLY = Portcall.get("testing.apply");

    interface Body {
        void run(int i) throws Exception;
    }

    static void inThreads(int count, Body body) throws Exception {
        List<Throwable> failures = new ArrayList<>();
        Thread[] threads = new Thread[count];
        for (int t = 0; t < count; ++t) {
            int id = t;
            threads[t] = new Thread(() -> {
                try {
                    body.run(id);
                } catch (Throwable error) {
                    synchronized (failures) {
                        failures.add(error);
                    }
                }
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        assertEquals(List.of(), failures);
    }

    @Test
    void eightThreadsCallWhileOneClosesWhatTheyUse() throws Exception {
        for (int round = 0; round < 5; ++round) {
            Tensor shared = Tensor.of(new float[1000]);
            AtomicInteger refused = new AtomicInteger(), began = new AtomicInteger();
            inThreads(8, id -> {
                for (int i = 0; i < 1000; ++i) {
                    began.incrementAndGet();
                    assertEquals((long) i, APPLY.call((PackedFunc.Body) a -> a.asLong(0), i));
                    try {
                        assertEquals(1000L, APPLY.call((PackedFunc.Body) a -> a.asTensor(0).size(), shared));
                        shared.copyTo(new float[1000]);
                    } catch (IllegalStateException closed) {
                        refused.incrementAndGet();
                    }
                    if (id == 0 && i == 300) shared.close();
                }
            });
            assertTrue(refused.get() > 0);
        }
    }

    @Test
    void virtualThreadsCallBothWays() throws Exception {
        Thread[] threads = new Thread[200];
        AtomicInteger good = new AtomicInteger();
        for (int t = 0; t < threads.length; ++t) {
            Runnable body = () -> {
                for (int i = 0; i < 20; ++i) {
                    String text = "a text of some length " + i;
                    if (text.equals(APPLY.call((PackedFunc.Body) a -> APPLY.call((PackedFunc.Body) b -> b.get(0), a.get(0)), text))) good.incrementAndGet();
                    Thread.yield();
                }
            };
            if (Runtime.version().feature() >= 21) {
                threads[t] = (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, body);
            } else {
                threads[t] = new Thread(body);
                threads[t].start();
            }
        }
        for (Thread thread : threads) thread.join();
        assertEquals(20 * threads.length, good.get());
        assertEquals(Runtime.version().feature() < 21, Stack.FREE.isEmpty()); // what virtual threads borrowed they gave back
    }

    @Test
    void threadsOfTheCoreCallJavaAndAreDetached() throws Exception {
        PackedFunc threads = Support.kernels().function("threads").callFunction();
        int before = Thread.getAllStackTraces().size();
        AtomicInteger calls = new AtomicInteger();
        LongUnaryOperator twice = x -> {
            calls.incrementAndGet();
            return 2 * x;
        };
        for (int i = 0; i < 50; ++i) assertEquals(8 * 90, threads.callLong(twice, 8, 10));
        assertEquals(4000, calls.get());
        assertEquals(8 * 10 * 15L, threads.callLong((PackedFunc.Body) a -> (long) APPLY.callString((PackedFunc.Body) b -> b.asString(0), "text of 15 bytes").length() - 1, 8, 10));
        assertTrue(Thread.getAllStackTraces().size() <= before + 2);
    }

    @Test
    void anErrorOfAThreadOfTheCoreStaysInItsCall() {
        PackedFunc threads = Support.kernels().function("threads").callFunction();
        for (int i = 0; i < 20; ++i) {
            try {
                threads.call((PackedFunc.Body) a -> {
                    throw new IllegalStateException("mine");
                }, 4, 10);
                throw new AssertionError("no error");
            } catch (PortcallException error) {
                assertEquals("a call of a thread failed", error.getMessage());
            }
        }
        assertEquals(1L, APPLY.call((LongUnaryOperator) x -> x, 1));
    }

    @Test
    void functionsOfJavaGoWithTheirLastUser() throws Exception {
        WeakReference<Object> held = callOnce();
        assertTrue(Support.collectUntil(() -> held.get() == null));
        WeakReference<Object> thrown = failOnce();
        assertTrue(Support.collectUntil(() -> thrown.get() == null));
    }

    private static WeakReference<Object> callOnce() {
        Object big = new byte[1000];
        APPLY.call((PackedFunc.Body) a -> (long) ((byte[]) big).length);
        return new WeakReference<>(big);
    }

    private static WeakReference<Object> failOnce() {
        RuntimeException error = new RuntimeException("gone");
        try {
            APPLY.call((PackedFunc.Body) a -> {
                throw error;
            });
        } catch (RuntimeException same) {
            return new WeakReference<>(same);
        }
        return null;
    }

    @Test
    void tensorsOfGarbageAreFreed() throws Exception {
        child(Leaving.class, "-Xmx256m", "200000", "0", "600");
        child(Leaving.class, "-Xmx256m", "0", "100", "700"); // half of it is the heap, which has an array for each
    }

    /** Closes nothing: so many tensors of 4 kB, and of 10 MiB with buffers. Fails where memory was ever more than so many MiB. */
    static final class Leaving {
        public static void main(String[] args) throws Exception {
            for (int i = 0; i < Integer.parseInt(args[1]); ++i) Tensor.of(new byte[10 << 20]).buffer();
            for (int i = 0; i < Integer.parseInt(args[0]); ++i) Tensor.of(new float[1000]);
            check("most memory", memory("VmHWM"), Long.parseLong(args[2]));
        }
    }

    private static long memory(String which) throws Exception {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            return lines.filter(line -> line.startsWith(which)).mapToLong(line -> Long.parseLong(line.replaceAll("\\D", ""))).sum();
        }
    }

    private static void check(String what, long kib, long limit) {
        System.out.println(what + ": " + kib / 1024 + " MiB, at most " + limit);
        if (kib >= limit << 10) System.exit(1);
    }

    /** Calls for so many seconds, and at least 10,000 times. Fails where the process grew by 32 MiB once it had what it needs. */
    static final class Calling {
        public static void main(String[] args) throws Exception {
            for (int i = 0; i < 20; ++i) calls();
            long before = memory("VmRSS"), end = System.nanoTime() + 1_000_000_000L * Long.parseLong(args[0]);
            int rounds = 0;
            for (; rounds < 20 || System.nanoTime() < end; ++rounds) calls();
            check(500 * rounds + " calls of each kind, more memory", memory("VmRSS") - before, 32);
        }

        private static void calls() throws Exception {
            for (int i = 0; i < 500; ++i) {
                APPLY.call((PackedFunc.Body) a -> a.asString(0), "x".repeat(5000));
                APPLY.call((PackedFunc.Body) a -> null, "never read ".repeat(1000));
                APPLY.call((PackedFunc.Body) a -> a.get(0), List.of("a text that is longer", new float[2000], new byte[10_000]));
                try {
                    Portcall.get("testing.test_raise_error").call("ValueError", "wrong ".repeat(1000));
                } catch (PortcallException expected) {
                    assertEquals("ValueError", expected.kind());
                }
                try (Tensor t = Tensor.of(new double[2000])) {
                    APPLY.call((PackedFunc.Body) a -> a.asTensor(0), t);
                }
            }
            System.gc();
            Handle.Watch.drain();
        }
    }

    @Test
    void nothingIsLeftOfCalls() throws Exception {
        child(Calling.class, "-Xmx64m", "0"); // 10,000 calls with 5 KiB or more of each kind
    }

    static String child(Class<?> program, String option, String... args) throws Exception {
        List<String> options = new ArrayList<>(List.of(option));
        String folder = System.getProperty("portcall.library.path");
        if (folder != null) options.add("-Dportcall.library.path=" + folder);
        return Support.run(Support.java(System.getProperty("java.class.path"), options, program, args).toArray(new String[0]));
    }

    // ---- The end ----

    /** A program that ends while a thread of C goes on calling Java. */
    static final class Ending {
        public static void main(String[] args) throws Exception {
            Portcall.register("java.stays", a -> 1L);
            Tensor.of(new float[10]).floats();
            Module kernels = Module.load(Path.of(args[0]));
            CountDown reached = new CountDown();
            kernels.function("forever").callFunction().call((LongUnaryOperator) reached::at);
            while (reached.count < 1000) Thread.onSpinWait();
            System.out.print("ending");
            System.out.flush();
            if (args[1].equals("exit")) System.exit(0);
        }
    }

    static final class CountDown {
        volatile long count;

        long at(long x) {
            return count += x;
        }
    }

    @Test
    void aProcessEndsWhileThreadsOfTheCoreCallJava() throws Exception {
        for (String how : List.of("exit", "return", "exit", "return")) {
            assertEquals("ending", child(Ending.class, "-Xcheck:jni", Support.compile("java/test/kernels.c").toString(), how));
        }
    }

    @Test
    void arraysOfCallersInOtherFramesAreNotTouched() {
        float[] outer = {1, 2, 3};
        PackedFunc inner = PackedFunc.of(a -> {
            a.asTensor(0).floats().put(0, 5f);
            return "a result of more than seven bytes";
        });
        float[] mine = {7};
        PackedFunc.of(a -> {
            inner.call((Object) mine);
            a.asTensor(0).floats().put(2, 9f);
            return null;
        }).call((Object) outer);
        assertArrayEquals(new float[] {1, 2, 9}, outer);
        assertArrayEquals(new float[] {5}, mine);
    }
}
