// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** An object of the core. One of a described type has fields and methods. */
public class PortcallObject implements AutoCloseable {
    private static final int GET = 0, SET = 1, METHOD = 2;
    final Handle handle;
    final int type;
    final Handle.Watch watch;

    PortcallObject(long object, int type) {
        handle = new Handle(object);
        this.type = type;
        watch = new Handle.Watch(this, handle);
    }

    static PortcallObject make(long object, int type) {
        return keyOf(type).equals("portcall.rpc.Tensor") ? new RemoteTensor(object, type) : new PortcallObject(object, type);
    }

    private static String keyOf(int type) { return new String(Native.typeKey(type), UTF_8); }

    /**
     * A new object of a described type.
     * @param fields values by name; defaults for the others
     * @throws PortcallException there is no such type or field, or a value does not fit
     */
    public static PortcallObject create(String typeKey, Map<String, ?> fields) {
        return Stack.visit(0, (stack, end) -> (PortcallObject) Values.take(stack, create(stack, end, typeKey, fields), true));
    }

    /** The offset of a cell behind {@code end} that has a new object, owned. */
    static int create(Stack stack, int end, String typeKey, Map<String, ?> fields) {
        int type = Native.typeIndex(Values.utf8(typeKey)), cells = end + 15 & ~15, mark = stack.count, before = stack.top();
        String joined = new String(Native.fieldNames(type), UTF_8);
        List<String> names = joined.isEmpty() ? List.of() : Arrays.asList(joined.substring(0, joined.length() - 1).split("\0", -1));
        for (String name : fields.keySet()) {
            if (!names.contains(name)) throw new PortcallException("TypeError", typeKey + " has no field '" + name + "'; it has " + names);
        }
        int behind = cells + Stack.CELL * names.size();
        if (behind + Stack.RESERVED > Stack.BYTES) throw Stack.tooDeep();
        try {
            for (int i = 0; i < names.size(); ++i) {
                int cell = cells + Stack.CELL * i;
                stack.top(behind + 15 & ~15);
                if (fields.containsKey(names.get(i))) behind = Values.put(stack, cell, behind, fields.get(names.get(i)), Values.NESTED);
                else stack.set(cell, Values.UNCHANGED, 0);
            }
            long made = Native.make(type, stack.address + cells, names.size());
            stack.drop(mark);
            stack.set(cells, type, made);
            return cells;
        } finally {
            stack.top(before);
        }
    }

    /** The key of its type, such as "demo.Circle". */
    public String typeKey() { return keyOf(type); }

    /**
     * The value of a field.
     * @throws PortcallException there is no field of that name
     */
    public Object get(String field) { return read(field, GET); }

    /** The value of a field, as one of a class. */
    @SuppressWarnings("unchecked")
    public <T> T get(String field, Class<T> as) { return (T) Convert.to(get(field), as, typeKey() + "." + field, -1); }

    private Object read(String name, int what) {
        return Stack.visit(1, (stack, cell) -> {
            member(stack, name, what, cell);
            return Values.take(stack, cell, true);
        });
    }

    private boolean member(Stack stack, String name, int what, int cell) {
        if (Native.member(handle.use(stack), Values.utf8(name), what, stack.address + cell)) return true;
        String kind = what == METHOD ? "method" : what == SET ? "writable field" : "field";
        throw new PortcallException("AttributeError", typeKey() + " has no " + kind + " '" + name + "'");
    }

    /**
     * Writes a field.
     * @throws PortcallException there is none of that name that may be written, or the value does not fit
     */
    public void set(String field, Object value) {
        Stack.visit(1, (stack, cell) -> {
            Values.put(stack, cell, value);
            return member(stack, field, SET, cell);
        });
    }

    /** Calls a method of the object. */
    public Object call(String method, Object... args) {
        Object[] all = new Object[args.length + 1];
        all[0] = this;
        System.arraycopy(args, 0, all, 1, args.length);
        return ((PackedFunc) read(method, METHOD)).call(all);
    }

    /** A record with the fields that it has of this object. */
    public <T extends Record> T as(Class<T> record) {
        return record.cast(Convert.to(this, record, "", -1));
    }

    /** Whether it is the same object of the core. */
    @Override
    public boolean equals(Object other) {
        return other instanceof PortcallObject object && (this == other
                || (handle.address == object.handle.address && !handle.isClosed() && !object.handle.isClosed()));
    }

    @Override public int hashCode() { return Long.hashCode(handle.address); }

    @Override public String toString() { return typeKey() + "@" + Long.toHexString(handle.address); }

    /** Gives the object back. What others have of it stays. It may be closed while other threads use it. */
    @Override public void close() { watch.end(); }
}
