// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class ObjectTest {
    private static final PackedFunc ECHO = Portcall.get("testing.echo");
    private static PortcallObject counter;

    record Circle(String name, Object tags, double radius, PortcallObject inner) {}

    record Round(String name, double radius) {}

    @BeforeAll
    static void load() {
        counter = Support.kernels().function("counter").callObject();
    }

    @Test
    void ofACompiledTypeHaveItsFieldsAndMethods() {
        assertEquals("test.Counter", counter.typeKey());
        counter.set("count", 3);
        assertEquals(3L, counter.get("count"));
        assertEquals(7L, counter.call("add", 4));
        assertEquals(7L, ECHO.callObject(counter).get("count", long.class));
        assertEquals(counter, ECHO.call(counter));
        assertEquals("AttributeError", assertThrows(PortcallException.class, () -> counter.get("nothing")).kind());
        assertEquals("AttributeError", assertThrows(PortcallException.class, () -> counter.set("nothing", 1)).kind());
        assertEquals("AttributeError", assertThrows(PortcallException.class, () -> counter.call("nothing")).kind());
        assertEquals("TypeError", assertThrows(PortcallException.class, () -> counter.set("count", "three")).kind());
        assertThrows(ArgumentException.class, () -> counter.get("count", String.class));
        assertThrows(IllegalArgumentException.class, () -> counter.set("count", new Object()));
    }

    @Test
    void areMadeFromFieldsAndInherit() {
        PortcallObject inner = PortcallObject.create("test.Circle", Map.of("name", "inner", "radius", 1));
        assertEquals(List.of("inner", 1.0), List.of(inner.get("name"), inner.get("radius")));
        assertNull(inner.get("inner"));
        PortcallObject outer = PortcallObject.create("test.Circle", Map.of("name", "a name of some length", "radius", 2.5, "inner", inner, "tags", List.of("a", Map.of("b", 1))));
        assertEquals(inner, outer.get("inner"));
        assertEquals(List.of("a", Map.of("b", 1L)), outer.get("tags"));
        outer.set("radius", 5);
        assertEquals(5.0, outer.get("radius"));
        assertEquals("AttributeError", assertThrows(PortcallException.class, () -> outer.set("name", "b")).kind());
        for (Map<String, ?> wrong : List.of(Map.of("name", 1, "radius", 2), Map.of("name", "c"), Map.of("name", "c", "radius", 2, "other", 1))) {
            assertEquals("TypeError", assertThrows(PortcallException.class, () -> PortcallObject.create("test.Circle", wrong)).kind());
        }
        assertThrows(PortcallException.class, () -> PortcallObject.create("test.Nothing", Map.of()));
        inner.close();
        assertThrows(IllegalStateException.class, () -> inner.get("name"));
        assertEquals("inner", ((PortcallObject) outer.get("inner")).get("name"));
    }

    @Test
    void areRecordsByTheirFields() {
        PortcallObject object = PortcallObject.create("test.Circle", Map.of("name", "c", "radius", 2));
        assertEquals(new Round("c", 2.0), object.as(Round.class));
        assertThrows(PortcallException.class, () -> counter.as(Round.class));
        Portcall.bind(Circle.class, "test.Circle");
        PortcallObject made = (PortcallObject) ECHO.call(new Circle("bound", List.of(1), 3, object));
        assertEquals("test.Circle", made.typeKey());
        assertEquals(object, made.get("inner"));
        assertEquals("bound", made.as(Circle.class).name());
        assertEquals("bound", ((PortcallObject) ((List<?>) ECHO.call(List.of(new Circle("bound", null, 3, null)))).get(0)).get("name"));
        assertThrows(PortcallException.class, () -> Portcall.bind(Round.class, "test.Nothing"));
    }

    @Test
    void thatAreListsAndDictsChangeForAll() {
        PortcallList list = (PortcallList) Support.kernels().function("list").call();
        PortcallList again = (PortcallList) ECHO.call(list);
        list.add("three");
        list.add(List.of(4));
        list.set(0, 10);
        list.remove(1);
        assertEquals(List.of(10L, "three", List.of(4L)), again.toList());
        assertEquals(3, again.size());
        assertEquals(List.of(4L), again.get(2));
        for (long i : new long[] {-1, 3, Long.MAX_VALUE}) {
            assertThrows(IndexOutOfBoundsException.class, () -> list.get(i));
            assertThrows(IndexOutOfBoundsException.class, () -> list.set(i, 1));
            assertThrows(IndexOutOfBoundsException.class, () -> list.remove(i));
        }
        PortcallDict dict = PortcallDict.of(Map.of("a", 1));
        dict.put("b", list);
        dict.put("a key that is longer than a cell", 2);
        assertEquals(3, ((PortcallDict) ECHO.call(dict)).size());
        assertEquals(1L, dict.getItem("a"));
        assertEquals(2L, dict.getItem("a key that is longer than a cell"));
        assertNull(dict.getItem("c"));
        assertTrue(dict.remove("a"));
        assertFalse(dict.remove("a"));
        assertEquals(list, dict.toMap().get("b"));
        assertEquals(List.of(1L, 2L), PortcallList.of(List.of(1, 2)).toList());
        list.close();
        assertThrows(IllegalStateException.class, () -> list.get(0));
        assertThrows(IllegalStateException.class, list::size);
        assertThrows(IllegalStateException.class, list::toList);
        assertThrows(IllegalStateException.class, () -> ECHO.call(list));
        assertThrows(IllegalStateException.class, list::size);
    }

    @Test
    void manyItemsAndPairsAreRead() {
        PortcallList list = PortcallList.of(List.of());
        Map<Object, Object> pairs = new HashMap<>();
        for (long i = 0; i < 1000; ++i) {
            list.add(i);
            pairs.put(i, "value " + i);
        }
        assertEquals(1000, new ArrayList<>(list.toList()).size());
        assertEquals(pairs, PortcallDict.of(pairs).toMap());
    }

    @Test
    void thatAreModulesHaveFunctions() throws Exception {
        Module kernels = Support.kernels();
        assertTrue(kernels.names().containsAll(List.of("add_one", "counter")));
        assertThrows(FunctionNotFoundException.class, () -> kernels.function("nothing"));
        assertNull(kernels.find("nothing"));
        PackedFunc size = Module.load(Support.compile("js/test/native/kernels.c")).function("size"); // it knows text of C alone
        for (int n : new int[] {0, 7, 8, 3000, 10_000, 100_000}) assertEquals(n, size.callLong("x".repeat(n)));
        assertEquals(6, size.callLong("ä 123"));
        assertEquals(10, size.callLong("ä 1234567"));
        assertEquals(8, kernels.function("next").callFunction().callLong((java.util.function.LongUnaryOperator) x -> x * 7, 1));
        PortcallException wrong = assertThrows(PortcallException.class, () -> kernels.function("next").callFunction().call((PackedFunc.Body) a -> "text"));
        assertEquals("TypeError", wrong.kind());
        Path copy = Support.FOLDER.resolve("again.so");
        java.nio.file.Files.copy(Support.compile("java/test/kernels.c"), copy);
        Module again = Module.load(copy);
        PackedFunc one = again.function("add_one");
        kernels.importModule(again);
        assertInstanceOf(Module.class, kernels.imports().get(0));
        again.close();
        assertThrows(IllegalStateException.class, () -> again.function("add_one"));
        float[] out = new float[1];
        one.call(new float[] {1}, out);
        assertEquals(2f, out[0]);
        Path broken = java.nio.file.Files.writeString(Support.FOLDER.resolve("broken.so"), "no library");
        assertThrows(ModuleLoadException.class, () -> Module.load(broken));
    }
}
