// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;
import java.util.function.Function;
import java.util.function.LongBinaryOperator;
import java.util.function.LongSupplier;
import java.util.function.LongUnaryOperator;
import org.junit.jupiter.api.Test;

class FunctionTest {
    private static final PackedFunc APPLY = Portcall.get("testing.apply"), RAISE = Portcall.get("testing.test_raise_error");

    interface Join {
        String join(String a, int b, List<Object> rest);

        default String twice(String a) {
            return join(a, 2, List.of()) + join(a, 2, List.of());
        }
    }

    interface Two {
        void a();

        void b();
    }

    @Test
    void ofJavaAreCalledByTheCoreAndThoseOfTheCoreByJava() {
        assertNull(Portcall.get("testing.nop").call());
        Portcall.register("java.add", a -> a.asLong(0) + a.asLong(1));
        assertEquals(3, Portcall.get("java.add").callLong(1, 2));
        assertEquals("java.add", Portcall.get("java.add").name());
        Portcall.register("java.adder", a -> {
            long n = a.asLong(0);
            return (LongUnaryOperator) x -> x + n;
        });
        assertEquals(7, Portcall.get("java.adder").callFunction(3).callLong(4));
        assertEquals(16L, APPLY.call((LongUnaryOperator) x -> x * x, 4));
        assertEquals("abab", APPLY.call((PackedFunc.Body) a -> a.asString(0) + a.asString(0), "ab"));
        String text = "ä𝄞\0 and more".repeat(5000);
        assertEquals(text + text, APPLY.call((PackedFunc.Body) a -> a.asString(0) + a.asString(0), text));
        assertEquals("ok", PackedFunc.of(a -> a.asFunction(0).callString("o") + "k").call(Portcall.get("testing.echo")));
        assertTrue(Portcall.remove("java.adder"));
        assertFalse(Portcall.remove("java.adder"));
        assertNull(Portcall.find("java.adder"));
    }

    @Test
    void ofTypedInterfacesCheckAndConvert() {
        PackedFunc join = PackedFunc.of(Join.class, (a, b, rest) -> a + b + rest);
        assertEquals("x1[2, y]", join.call("x", 1, List.of(2, "y")));
        Join back = join.as(Join.class);
        assertEquals("x1[]", back.join("x", 1, List.of()));
        assertEquals("x2[]x2[]", back.twice("x"));
        assertEquals(back, back);
        assertTrue(back.toString().startsWith("PackedFunc") && back.hashCode() == back.hashCode());
        ArgumentException error = assertThrows(ArgumentException.class, () -> join.call("x", "no", List.of()));
        assertEquals(List.of(1, "int", "String"), List.of(error.position(), error.expected(), error.got()));
        assertThrows(ArgumentException.class, () -> join.call("x", 1L << 40, List.of()));
        assertThrows(ArgumentException.class, () -> join.call("x"));
        assertThrows(ArgumentException.class, () -> PackedFunc.of(a -> 5L).as(Join.class).join("", 1, List.of()));
        for (Class<?> wrong : List.of(String.class, Two.class, Runnable[].class)) {
            assertThrows(IllegalArgumentException.class, () -> join.as(wrong));
        }
        assertEquals(Map.of("a", 1L), PackedFunc.of(a -> a.get(0)).as(Function.class).apply(Map.of("a", 1)));
    }

    @Test
    void ofNumbersAreUnboxedBothWays() {
        assertEquals(5, PackedFunc.of(LongBinaryOperator.class, (a, b) -> a + b).as(LongBinaryOperator.class).applyAsLong(2, 3));
        assertEquals(-2, PackedFunc.of(LongUnaryOperator.class, a -> -a).as(LongUnaryOperator.class).applyAsLong(2));
        assertEquals(2.5, PackedFunc.of(DoubleBinaryOperator.class, (a, b) -> a + b).as(DoubleBinaryOperator.class).applyAsDouble(2, 0.5));
        assertEquals(4.0, PackedFunc.of(DoubleUnaryOperator.class, a -> a * a).as(DoubleUnaryOperator.class).applyAsDouble(2));
        assertEquals(9, PackedFunc.of(LongSupplier.class, () -> 9).as(LongSupplier.class).getAsLong());
        assertEquals(3.5, PackedFunc.of(DoubleBinaryOperator.class, (a, b) -> a + b).callDouble(3, 0.5));
        PackedFunc add = PackedFunc.of(LongBinaryOperator.class, (a, b) -> a + b);
        assertThrows(ArgumentException.class, () -> add.call(1));
        assertThrows(ArgumentException.class, () -> add.call(1, 2, 3));
        assertThrows(ArgumentException.class, () -> add.call(1, 2.5));
        assertThrows(ArgumentException.class, () -> PackedFunc.of(a -> "text").as(LongBinaryOperator.class).applyAsLong(1, 2));
    }

    @Test
    void callEachOtherDeeplyUntilThereIsNoRoom() {
        PackedFunc[] self = new PackedFunc[1];
        self[0] = PackedFunc.of(a -> a.asLong(0) == 0 ? 0L : 1 + self[0].callLong(a.asLong(0) - 1, "text on the stack"));
        assertEquals(100, self[0].callLong(100));
        Throwable deep = assertThrows(Throwable.class, () -> self[0].call(100_000));
        assertTrue(deep instanceof StackOverflowError || deep instanceof PortcallException, deep.toString());
        assertEquals(3, self[0].callLong(3));
        assertEquals(16, Stack.get().top());
    }

    @Test
    void keepTheArgumentsOfEachCallApart() {
        PackedFunc inner = PackedFunc.of(a -> a.asString(0) + a.size());
        PackedFunc outer = PackedFunc.of(a -> {
            String first = a.asString(0);
            String of = inner.callString("something that is long enough") + inner.callString("b");
            return first + of + a.asString(0) + a.asString(1);
        });
        assertEquals("the first argumentsomething that is long enough1b1the first argumentx", outer.call("the first argument", "x"));
    }

    @Test
    void argumentsAreThereForTheirCallAlone() {
        Args[] kept = new Args[1];
        PackedFunc.of(a -> {
            kept[0] = a;
            assertThrows(ArgumentException.class, () -> a.get(1));
            assertThrows(ArgumentException.class, () -> a.asLong(-1));
            return null;
        }).call(1);
        assertThrows(IllegalStateException.class, () -> kept[0].get(0));
    }

    @Test
    void whatIsWrittenIntoAnArrayThatWasPassedComesBack() {
        float[] array = {1, 2};
        PackedFunc.of(a -> {
            a.asTensor(0).floats().put(0, 9f);
            return null;
        }).call((Object) array);
        assertArrayEquals(new float[] {9, 2}, array);
        PackedFunc sum = PackedFunc.of(a -> {
            double total = 0;
            for (float each : a.as(0, float[].class)) total += each;
            return total;
        });
        assertEquals(11.0, sum.call((Object) array));
    }

    // ---- Errors ----

    @Test
    void errorsOfJavaPassThroughTheCoreAsTheSameObjects() {
        for (Throwable mine : new Throwable[] {new IllegalStateException("mine"), new AssertionError("mine"), new StackOverflowError(),
                new PortcallException("MyError", "mine"), new RuntimeException((String) null), new RuntimeException("half \ud800")}) {
            assertSame(mine, assertThrows(Throwable.class, () -> APPLY.call((PackedFunc.Body) a -> {
                throw mine;
            })));
        }
        IOException disk = new IOException("disk");
        PortcallException checked = assertThrows(PortcallException.class, () -> APPLY.call((PackedFunc.Body) a -> {
            throw disk;
        }));
        assertEquals("OSError disk", checked.kind() + " " + checked.getMessage());
        assertSame(disk, checked.getCause());
        assertTrue(checked.trace().contains("FunctionTest.java"));
    }

    @Test
    void errorsOfJavaHaveTheKindsOfTheCore() {
        Map<Exception, String> kinds = Map.of(new NumberFormatException(), "ValueError", new ArrayIndexOutOfBoundsException(), "IndexError",
                new ClassCastException(), "TypeError", new java.io.FileNotFoundException("f"), "OSError", new InterruptedException(), "InterruptedException",
                new PortcallException("ShapeError", ""), "ShapeError");
        kinds.forEach((error, kind) -> assertArrayEquals(kind.getBytes(), Errors.describe(error)[0]));
    }

    @Test
    void anExceptionThatCannotBeToldIsStillTheSameObject() {
        RuntimeException nasty = new RuntimeException() {
            @Override
            public String getMessage() {
                throw new IllegalStateException("within");
            }
        };
        assertSame(nasty, assertThrows(RuntimeException.class, () -> APPLY.call((PackedFunc.Body) a -> {
            throw nasty;
        })));
    }

    @Test
    void errorsOfTheCoreHaveTheirKindAndBothTraces() {
        PortcallException raised = assertThrows(PortcallException.class, () -> RAISE.call("ValueError", "wrong ✓"));
        assertEquals("ValueError wrong ✓", raised.kind() + " " + raised.getMessage());
        List<String> methods = java.util.Arrays.stream(raised.getStackTrace()).map(StackTraceElement::getMethodName).toList();
        assertEquals("testing.test_raise_error", methods.get(0));
        assertTrue(methods.contains("errorsOfTheCoreHaveTheirKindAndBothTraces"));
        assertThrows(FunctionNotFoundException.class, () -> Portcall.get("java.nothing"));
        assertThrows(FunctionNotFoundException.class, () -> Portcall.get(""));
        assertThrows(ModuleLoadException.class, () -> Module.load(java.nio.file.Path.of("nonesuch.so")));
        ArgumentException error = assertThrows(ArgumentException.class, () -> Portcall.get("ffi.ModuleGetFunction").call(1, 2, 3));
        assertEquals("ffi.ModuleGetFunction 0", error.function() + " " + error.position());
        assertThrows(ArgumentException.class, () -> APPLY.callLong((PackedFunc.Body) a -> "text"));
        assertInstanceOf(PortcallException.class, assertThrows(RuntimeException.class, () -> APPLY.call(1)));
    }

    @Test
    void nullIsAnErrorWhereAFunctionIsExpected() {
        assertThrows(NullPointerException.class, () -> PackedFunc.of(null));
        assertThrows(NullPointerException.class, () -> PackedFunc.of(LongSupplier.class, null));
        assertThrows(NullPointerException.class, () -> Portcall.get(null));
        assertThrows(NullPointerException.class, () -> Portcall.register("java.null", (PackedFunc) null));
        assertThrows(NullPointerException.class, () -> APPLY.call((Object[]) null));
        assertThrows(IllegalArgumentException.class, () -> Portcall.register("", a -> null));
        assertThrows(IllegalArgumentException.class, () -> Portcall.get("\ud800"));
    }

    @Test
    void callsMayBeBegunAndWaitedFor() throws Exception {
        assertEquals(3L, PackedFunc.of(a -> a.asLong(0) + 1).callAsync(2).get());
        RuntimeException mine = new RuntimeException("mine");
        PackedFunc fails = PackedFunc.of(a -> {
            throw mine;
        });
        assertSame(mine, assertThrows(ExecutionException.class, () -> fails.callAsync().get()).getCause());
        float[] array = {1};
        PackedFunc.of(a -> {
            a.asTensor(0).floats().put(0, 5f);
            return null;
        }).callAsync((Object) array).get();
        assertEquals(5f, array[0]);
    }
}
