// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.math.BigInteger;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Values of Java as cells of the core, in a stack, and back. */
final class Values {
    static final int NONE = 0, INT = 1, BOOL = 2, FLOAT = 3, POINTER = 4, DTYPE = 5, DEVICE = 6, VIEW = 7, RAW_TEXT = 8, RAW_BYTES = 9,
            SMALL_TEXT = 11, SMALL_BYTES = 12, UNCHANGED = 13, OBJECT = 64, STR = 65, BYTES = 66, FUNCTION = 68, SHAPE = 69,
            TENSOR = 70, ARRAY = 71, MAP = 72, MODULE = 73, LIST = 75, DICT = 76, BIG_INT = 78;
    private static final int TEXT_HERE = -8, BYTES_HERE = -9; // what C copied into the stack
    /** Flags of a call beside those of the function: the value will be part of another, or a result. */
    static final int NESTED = 1 << 16, GENERATED = 4;
    private static final int CHUNK = 16; // items of a container at a time

    // ---- Java to the core ----

    /** Writes the cell at {@code at}, and what it points to from {@code end} on; returns the new end. */
    static int put(Stack stack, int at, int end, Object value, int flags) {
        if (value instanceof Long number) return set(stack, at, INT, number, end);
        if (value instanceof Integer number) return set(stack, at, INT, number, end);
        if (value instanceof Double number) return set(stack, at, FLOAT, Double.doubleToRawLongBits(number), end);
        if (value instanceof Tensor tensor) return hold(stack, at, TENSOR, tensor.handle, end);
        if (value == null) return set(stack, at, NONE, 0, end);
        stack.top(end + 15 & ~15); // what is made from here on, and garbage that goes meanwhile, may call functions of Java
        return putOther(stack, at, end, value, flags);
    }

    /** Writes a cell of a visit, and keeps what it points to. */
    static void put(Stack stack, int at, Object value) { stack.top(put(stack, at, stack.top(), value, NESTED) + 15 & ~15); }

    private static int putOther(Stack stack, int at, int end, Object value, int flags) {
        if (value instanceof String text) return putText(stack, at, text, end, flags);
        if (value instanceof Boolean truth) return set(stack, at, BOOL, truth ? 1 : 0, end);
        if (value instanceof byte[] bytes) return putBytes(stack, at, bytes, end);
        if (Numbers.isNumbers(value)) return Numbers.put(stack, at, end, value, flags);
        if (value instanceof PortcallObject object) return hold(stack, at, object.type, object.handle, end);
        if (value instanceof PackedFunc function) return hold(stack, at, FUNCTION, function.handle, end);
        if (value instanceof Float number) return set(stack, at, FLOAT, Double.doubleToRawLongBits(number), end);
        if (value instanceof Short || value instanceof Byte) return set(stack, at, INT, ((Number) value).longValue(), end);
        if (value instanceof PackedFunc.Body body) return put(stack, at, FUNCTION, Native.makeFunction(body, null), end);
        if (value instanceof DType dtype) return set(stack, at, DTYPE, dtype.word(), end);
        if (value instanceof Device device) return set(stack, at, DEVICE, device.word(), end);
        if (value instanceof Shape shape) return put(stack, at, SHAPE, Native.makeShape(shape.toArray()), end);
        if (value instanceof Session session) return hold(stack, at, MODULE, session.root.handle, end);
        if (value instanceof BigInteger number) return putWide(stack, at, number, end);
        if (value instanceof Buffer buffer) return putNew(stack, at, Tensor.over(buffer), end);
        if (value instanceof List<?> list) return putItems(stack, at, end, list.iterator(), ARRAY);
        if (value instanceof Map<?, ?> map) return putMap(stack, at, end, map, MAP);
        if (value instanceof Record record) return Records.put(stack, at, end, record);
        Class<?> type = value.getClass();
        if (type.isHidden() || type.isSynthetic()) { // a lambda
            Class<?>[] interfaces = type.getInterfaces();
            if (interfaces.length > 0) return put(stack, at, FUNCTION, Native.makeFunction(Typed.body(interfaces[0], value), null), end);
        }
        throw new IllegalArgumentException("the core takes no " + type.getName()
                + ": pass null, a number, text, bytes, an array, a direct buffer, a list, a map, a record, a lambda or an object of portcall");
    }

    private static int set(Stack stack, int at, int type, long payload, int end) {
        stack.set(at, type, payload);
        return end;
    }

    /** A new reference, which goes when the call is over. */
    static int put(Stack stack, int at, int type, long made, int end) {
        stack.hold(new Handle(made));
        stack.set(at, type, made);
        return end;
    }

    private static int putNew(Stack stack, int at, Tensor made, int end) {
        hold(stack, at, TENSOR, made.handle, end);
        made.close(); // the call has it
        return end;
    }

    static int hold(Stack stack, int at, int type, Handle handle, int end) {
        handle.use();
        stack.hold(handle);
        stack.set(at, type, handle.address);
        return end;
    }

    private static int putText(Stack stack, int at, String text, int end, int flags) {
        ByteBuffer m = stack.memory;
        int n = text.length();
        if (n <= 7) {
            long word = 0;
            for (int i = 0; i < n; ++i) {
                char c = text.charAt(i);
                if (c >= 0x80) return putLongText(stack, at, text, end, flags);
                word |= (long) c << 8 * i;
            }
            stack.word(at, SMALL_TEXT | (long) n << 32);
            stack.word(at + 8, word);
            return end;
        }
        if (n > Stack.RESERVED || end + n >= Stack.BYTES - Stack.RESERVED) return putLongText(stack, at, text, end, flags);
        for (int i = 0; i < n; ++i) {
            char c = text.charAt(i);
            if (c == 0 || c >= 0x80) return putLongText(stack, at, text, end, flags);
            m.put(end + i, (byte) c);
        }
        m.put(end + n, (byte) 0);
        return set(stack, at, RAW_TEXT, stack.address + end, end + n + 1);
    }

    private static int putLongText(Stack stack, int at, String text, int end, int flags) {
        return putObject(stack, at, utf8(text), STR, flags, end);
    }

    private static int putObject(Stack stack, int at, byte[] content, int type, int flags, int end) {
        long made = Native.text(stack.address + at, content, type, (flags & GENERATED) != 0);
        if (made != 0) stack.hold(new Handle(made));
        return end;
    }

    /** UTF-8, of which Java makes something else where half of a surrogate pair is alone. */
    static byte[] utf8(String text) {
        for (int i = 0; i < text.length(); ++i) {
            char c = text.charAt(i);
            if (!Character.isSurrogate(c)) continue;
            boolean pair = Character.isHighSurrogate(c) && i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1));
            if (!pair) throw new IllegalArgumentException("the text has half of a surrogate pair at index " + i + ", which is no character");
            ++i;
        }
        return text.getBytes(UTF_8);
    }

    private static int putBytes(Stack stack, int at, byte[] bytes, int end) {
        int start = (end + 7 & ~7) + 16;
        if (bytes.length > Stack.RESERVED || start + bytes.length >= Stack.BYTES - Stack.RESERVED) {
            return putObject(stack, at, bytes, BYTES, 0, end);
        }
        stack.word(start - 16, stack.address + start);
        stack.word(start - 8, bytes.length);
        stack.memory.put(start, bytes);
        return set(stack, at, RAW_BYTES, stack.address + start - 16, start + bytes.length);
    }

    private static int putWide(Stack stack, int at, BigInteger number, int end) {
        if (number.bitLength() < 64) return set(stack, at, INT, number.longValue(), end);
        byte[] given = number.toByteArray(), words = new byte[(given.length + 7) / 8 * 8]; // the other end first
        for (int i = 0; i < words.length; ++i) {
            words[i] = i < given.length ? given[given.length - 1 - i] : (byte) (number.signum() < 0 ? -1 : 0);
        }
        return putObject(stack, at, words, BIG_INT, 0, end);
    }

    static int putMap(Stack stack, int at, int end, Map<?, ?> map, int type) {
        Iterator<? extends Map.Entry<?, ?>> entries = map.entrySet().iterator();
        return putItems(stack, at, end, new Iterator<Object>() {
            private Map.Entry<?, ?> entry;

            @Override public boolean hasNext() { return entry != null || entries.hasNext(); }

            @Override
            public Object next() {
                if (entry == null) return (entry = entries.next()).getKey();
                Object value = entry.getValue();
                entry = null;
                return value;
            }
        }, type);
    }

    /** A container of what an iterator gives. Iterators and items may call functions, above this frame. */
    static int putItems(Stack stack, int at, int end, Iterator<?> items, int type) {
        int cells = end + 15 & ~15, before = stack.top(), mark = stack.count;
        if (cells + Stack.CELL * (CHUNK + 1) + Stack.RESERVED > Stack.BYTES) throw Stack.tooDeep();
        long made = 0;
        boolean done = false;
        try {
            do {
                int n = 0, behind = cells + Stack.CELL * CHUNK;
                stack.top(behind);
                for (; n < CHUNK && items.hasNext(); ++n) {
                    behind = put(stack, cells + Stack.CELL * n, behind, items.next(), NESTED);
                    stack.top(behind + 15 & ~15);
                }
                if (n % 2 != 0 && (type == MAP || type == DICT)) throw new java.util.ConcurrentModificationException();
                long first = stack.address + cells;
                made = made == 0 ? Native.make(type, first, n) : Native.splice(made, Native.size(made), 0, first, n);
                stack.drop(mark);
            } while (items.hasNext());
            done = true;
        } finally {
            if (!done && made != 0) Native.release(made);
            stack.top(before);
        }
        return put(stack, at, type, made, end);
    }

    // ---- The core to Java ----

    /** Reads a cell. An owned one gives its reference to the value that is returned. */
    static Object take(Stack stack, int at, boolean owned) {
        long head = stack.word(at), payload = stack.payload(at);
        int type = (int) head, size = (int) (head >> 32);
        switch (type) {
            case NONE: return null;
            case INT: return payload;
            case BOOL: return payload != 0;
            case FLOAT: return Double.longBitsToDouble(payload);
            case DTYPE: return new DType((int) payload);
            case DEVICE: return new Device(payload);
            case VIEW: return new Tensor(Native.copyView(payload));
            case TEXT_HERE: return text(stack.memory, (int) payload, size);
            case BYTES_HERE: return bytes(stack.memory, (int) payload, size);
            case SMALL_TEXT: return text(stack.memory, at + 8, size);
            case SMALL_BYTES: return bytes(stack.memory, at + 8, size);
            default: return type < OBJECT ? (Object) payload : takeObject(type, payload, owned);
        }
    }

    private static Object takeObject(int type, long object, boolean owned) {
        switch (type) {
            case STR, BYTES, SHAPE, BIG_INT, ARRAY, MAP:
                try {
                    return copy(type, object);
                } finally {
                    if (owned) Native.release(object);
                }
            default:
        }
        if (!owned) Native.retain(object);
        switch (type) {
            case TENSOR: return new Tensor(object);
            case FUNCTION: return new PackedFunc(object);
            case MODULE: return new Module(object);
            case LIST: return new PortcallList(object);
            case DICT: return new PortcallDict(object);
            default: return PortcallObject.make(object, type);
        }
    }

    private static Object copy(int type, long object) {
        switch (type) {
            case STR: return new String(Native.bytes(object), UTF_8);
            case BYTES: return Native.bytes(object);
            case SHAPE: return Shape.of(Native.shape(object));
            case BIG_INT: return wide(Native.words(object));
            case ARRAY: return items(object);
            default: return pairs(object);
        }
    }

    private static BigInteger wide(byte[] words) {
        for (int i = 0, j = words.length - 1; i < j; ++i, --j) {
            byte each = words[i];
            words[i] = words[j];
            words[j] = each;
        }
        return new BigInteger(words);
    }

    /** The items of a sequence, copied. */
    static List<Object> items(long object) {
        return Stack.visit(1, (stack, cell) -> {
            List<Object> items = new ArrayList<>((int) Math.min(Native.size(object), 1 << 20));
            for (long i = 0; Native.item(object, i, stack.address + cell); ++i) items.add(take(stack, cell, true));
            return items;
        });
    }

    /** The pairs of a map, copied, in its order. */
    static Map<Object, Object> pairs(long object) {
        return Stack.visit(2, (stack, cells) -> {
            Map<Object, Object> pairs = new LinkedHashMap<>();
            for (long pair = 0; (pair = Native.pair(object, pair, stack.address + cells)) != 0; ) {
                Object key = take(stack, cells, true);
                pairs.put(key, take(stack, cells + Stack.CELL, true));
            }
            return pairs;
        });
    }

    private static byte[] bytes(ByteBuffer m, int offset, int size) {
        byte[] bytes = new byte[size];
        m.get(offset, bytes);
        return bytes;
    }

    private static String text(ByteBuffer m, int offset, int size) { return new String(bytes(m, offset, size), UTF_8); }

    private Values() {}
}
