// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;

class ValueTest {
    private static final PackedFunc ECHO = Portcall.get("testing.echo");

    record Point(long x, double y) {}

    record Line(String name, List<Point> points) {}

    static void same(Object value) {
        assertEquals(value, ECHO.call(value));
    }

    @Test
    void comeBackAsTheyWerePassed() {
        for (Object value : new Object[] {7L, 0L, -1L, Long.MIN_VALUE, Long.MAX_VALUE, 1.5, -0.0, Double.NaN, Double.MIN_VALUE, true, false,
                "", "short", "seven77", "eight888", "nul\0", "a nul\0 within a longer text", "größe 𝄞", "\ufeff", "x".repeat(3000),
                "ä𝄞\0".repeat(5000), "x".repeat(100_000), DType.FLOAT32, DType.of("int8x4"), Device.CPU, Device.cuda(3), Shape.of(), Shape.of(2, 3),
                BigInteger.TWO.pow(64), BigInteger.TWO.pow(200).negate(), BigInteger.TWO.pow(63),
                List.of(), List.of(1L, "two", List.of(3.0)), Map.of(), Map.of("a", 1L, 2L, List.of(true))}) {
            same(value);
        }
        assertNull(ECHO.call((Object) null));
        same(Arrays.asList(1L, null, "x"));
        for (int n : new int[] {0, 5, 7, 8, 100, 5000, 100_000}) {
            byte[] bytes = new byte[n];
            new Random(n).nextBytes(bytes);
            assertArrayEquals(bytes, (byte[]) ECHO.call(bytes));
        }
    }

    @Test
    void areWhatTheirKindIs() {
        assertEquals(List.of(1L, 2L, 3L, 4L), ECHO.call(List.of((byte) 1, (short) 2, 3, 4L)));
        assertEquals(0.5, ECHO.call(0.5f));
        assertEquals(5L, ECHO.call(BigInteger.valueOf(5)));
        assertEquals("int8x4", DType.of("int8x4").toString());
        assertEquals(32, DType.of("int8x4").width());
    }

    @Test
    void ofAnyKindAsPropertiesComeBack() {
        Random random = new Random(28);
        for (int i = 0; i < 2000; ++i) same(any(random, 3));
    }

    private static Object any(Random random, int depth) {
        switch (random.nextInt(depth > 0 ? 8 : 6)) {
            case 0: return random.nextLong() >> random.nextInt(64);
            case 1: return random.nextBoolean();
            case 2: return random.nextGaussian();
            case 3: return text(random);
            case 4: return new BigInteger(200, random).add(BigInteger.TWO.pow(70));
            case 5: return Shape.of(random.longs(random.nextInt(5), 0, 100).toArray());
            case 6:
                List<Object> list = new ArrayList<>();
                for (int i = random.nextInt(random.nextInt(10) == 0 ? 60 : 5); i > 0; --i) list.add(any(random, depth - 1));
                return list;
            default:
                Map<Object, Object> map = new LinkedHashMap<>();
                for (int i = random.nextInt(random.nextInt(10) == 0 ? 60 : 5); i > 0; --i) map.put(text(random), any(random, depth - 1));
                return map;
        }
    }

    private static String text(Random random) {
        StringBuilder text = new StringBuilder();
        int top = new int[] {0x80, 0x800, 0xd800, 0x110000}[random.nextInt(4)];
        for (int n = random.nextInt(12); n > 0; --n) {
            int c = random.nextInt(top);
            if (c < 0xd800 || c > 0xdfff) text.appendCodePoint(c);
        }
        return text.toString();
    }

    @Test
    void longContainersArePassedWhole() {
        List<Object> list = new ArrayList<>();
        for (long i = 0; i < 20_000; ++i) list.add(i % 3 == 0 ? (Object) i : "text of item " + i);
        same(list);
        Map<Object, Object> map = new LinkedHashMap<>();
        for (long i = 0; i < 5_000; ++i) map.put("key " + i, i);
        same(map);
        Object deep = 1L;
        for (int i = 0; i < 50; ++i) deep = List.of(deep);
        same(deep);
    }

    @Test
    void recordsAreMapsByTheirNames() {
        Line line = new Line("l", List.of(new Point(1, 2.5), new Point(3, 4)));
        Map<?, ?> map = (Map<?, ?>) ECHO.call(line);
        assertEquals(List.of("name", "points"), new ArrayList<>(map.keySet()));
        assertEquals(Map.of("x", 1L, "y", 2.5), ((List<?>) map.get("points")).get(0));
        assertEquals(new Point(1, 2.5), ECHO.callAs(Point.class, new Point(1, 2.5)));
        ArgumentException error = assertThrows(ArgumentException.class, () -> ECHO.callAs(Point.class, Map.of("x", "no", "y", 1)));
        assertEquals("Point.x", error.function());
    }

    @Test
    void thatCannotBePassedAreRefusedAndNothingIsLeftBehind() {
        List<Object> circle = new ArrayList<>();
        circle.add(List.of(circle));
        Map<String, Object> ring = new LinkedHashMap<>();
        ring.put("a", ring);
        for (Object value : new Object[] {new Object(), 'c', Thread.currentThread(), new java.util.Date(), new String[] {"a"}, List.of(List.of(new Object())),
                "half \ud800", "\udc00 half of the other kind", "\ud800", List.of("\ud800 in a list"), Map.of("\udfff", 1)}) {
            assertThrows(IllegalArgumentException.class, () -> ECHO.call(value), value.toString());
        }
        for (Object value : new Object[] {circle, ring}) {
            assertEquals("RecursionError", assertThrows(PortcallException.class, () -> ECHO.call(value)).kind());
        }
        Object[] many = new Object[1001];
        assertThrows(IllegalArgumentException.class, () -> ECHO.call(many));
        assertEquals(16, Stack.get().top());
        assertEquals(0, Stack.get().count);
        same(1L);
        assertTrue(Portcall.names().contains("testing.echo"));
    }

    @Test
    void itemsThatCallFunctionsWhileTheyArePassedAreFine() {
        List<Object> lazy = new java.util.AbstractList<>() {
            @Override
            public Object get(int i) {
                return ECHO.call("item number " + i + " of a list");
            }

            @Override
            public int size() {
                return 100;
            }
        };
        List<?> got = (List<?>) ECHO.call(lazy);
        for (int i = 0; i < 100; ++i) assertEquals("item number " + i + " of a list", got.get(i));
    }
}
