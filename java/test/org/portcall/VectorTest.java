// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The vectors that Python makes (portcall.testing.conformance), and JavaScript runs: those of values and of errors. */
class VectorTest {
    private static final int HEAD = 16; // two type indices, and the size
    private static List<?> vectors;

    @BeforeAll
    static void read() throws Exception {
        vectors = (List<?>) new Json(Support.run(Support.python(), "-c", "import json, portcall.testing as t; print(json.dumps(t.conformance()))")).value();
        Portcall.get("portcall.LoadPlugin").call("ir");
    }

    @Test
    void valuesAreReadAndWrittenAsTheSameBytes() {
        PackedFunc from = Portcall.get("portcall.ir.FromBytes"), to = Portcall.get("portcall.ir.ToBytes");
        int count = 0;
        for (Object each : vectors) {
            Map<?, ?> vector = (Map<?, ?>) each;
            if (!"values".equals(vector.get("feature"))) continue;
            ++count;
            byte[] hex = HexFormat.of().parseHex((String) vector.get("hex"));
            byte[] value = java.util.Arrays.copyOfRange(hex, HEAD + 1, hex.length); // behind whether types of others are in it
            Object read = from.call((Object) value, 1 << 20, 1 << 10);
            assertEquals(vector.get("meaning"), meaningOf(read), (String) vector.get("name"));
            assertArrayEquals(value, to.callAs(byte[].class, read), (String) vector.get("name"));
        }
        assertTrue(count >= 4);
    }

    private static Object meaningOf(Object value) {
        if (value instanceof byte[] bytes) return Map.of("bytes", HexFormat.of().formatHex(bytes));
        if (value instanceof Shape shape) return Map.of("shape", shape.toList());
        if (value instanceof Tensor tensor) {
            List<Object> elements = new ArrayList<>();
            for (float x : tensor.toFloatArray()) elements.add((double) x);
            return Map.of("dtype", tensor.dtype().toString(), "shape", Shape.of(tensor.shape()).toList(), "elements", elements);
        }
        if (value instanceof List<?> list) return list.stream().map(VectorTest::meaningOf).toList();
        Map<Object, Object> pairs = new LinkedHashMap<>();
        if (!(value instanceof Map<?, ?> map)) return value;
        map.forEach((key, item) -> pairs.put(key, meaningOf(item)));
        return pairs;
    }

    @Test
    void errorsOfServersAreRead() {
        for (Object each : vectors) {
            Map<?, ?> vector = (Map<?, ?>) each;
            if (!"exception".equals(vector.get("name"))) continue;
            Map<?, ?> meaning = (Map<?, ?>) vector.get("meaning");
            List<String> texts = texts(HexFormat.of().parseHex((String) vector.get("hex")));
            PortcallException error = (PortcallException) Errors.make("RemoteError".getBytes(), texts.get(0).getBytes(UTF_8), texts.get(1).getBytes(UTF_8), null, 0);
            assertEquals(meaning.get("class"), error.kind());
            assertEquals(meaning.get("message"), error.getMessage());
            List<?> frame = (List<?>) ((List<?>) meaning.get("frames")).get(0);
            assertTrue(error.trace().contains((String) frame.get(0)));
        }
    }

    /** The texts of a frame of an exception: size, code, number of values; each is its type, its size, and bytes. */
    private static List<String> texts(byte[] frame) {
        ByteBuffer in = ByteBuffer.wrap(frame).order(ByteOrder.LITTLE_ENDIAN).position(12);
        int count = in.getInt();
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; ++i) {
            in.getInt();
            byte[] text = new byte[(int) in.getLong()];
            in.get(text);
            texts.add(new String(text, UTF_8));
        }
        return texts;
    }

    /** As much of JSON as the vectors have. */
    private static final class Json {
        private final String text;
        private int at;

        Json(String text) {
            this.text = text;
        }

        private char peek() {
            while (Character.isWhitespace(text.charAt(at))) ++at;
            return text.charAt(at);
        }

        private boolean take(char c) {
            boolean there = peek() == c;
            if (there) ++at;
            return there;
        }

        Object value() {
            if (take('[')) {
                List<Object> items = new ArrayList<>();
                while (!take(']')) {
                    items.add(value());
                    take(',');
                }
                return items;
            }
            if (take('{')) {
                Map<Object, Object> pairs = new LinkedHashMap<>();
                while (!take('}')) {
                    Object key = value();
                    take(':');
                    pairs.put(key, value());
                    take(',');
                }
                return pairs;
            }
            if (take('"')) return string();
            int start = at;
            while (at < text.length() && "+-.eE".indexOf(text.charAt(at)) >= 0 || Character.isLetterOrDigit(text.charAt(at))) ++at;
            String word = text.substring(start, at);
            switch (word) {
                case "null": return null;
                case "true": return true;
                case "false": return false;
                default: break;
            }
            try {
                return Long.valueOf(word);
            } catch (NumberFormatException wider) {
                return Double.valueOf(word);
            }
        }

        private String string() {
            StringBuilder made = new StringBuilder();
            for (; text.charAt(at) != '"'; ++at) {
                char c = text.charAt(at);
                if (c != '\\') {
                    made.append(c);
                    continue;
                }
                c = text.charAt(++at);
                if (c == 'u') {
                    made.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                    at += 4;
                } else {
                    made.append(c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c);
                }
            }
            ++at;
            return made.toString();
        }
    }
}
