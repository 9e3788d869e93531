// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.Map;

/** A map of the core that changes for all who have it: {@code ffi.Dict}. (Maps, which do not change, come as a Map of Java.) */
public final class PortcallDict extends PortcallObject {
    PortcallDict(long object) { super(object, Values.DICT); }

    /** A new one. */
    public static PortcallDict of(Map<?, ?> pairs) {
        return (PortcallDict) Stack.visit(1, (stack, cell) -> {
            Values.putMap(stack, cell, stack.top(), pairs, Values.DICT);
            return Values.take(stack, cell, false);
        });
    }

    /** The number of pairs. */
    public long size() { return handle.with(Native::size); }

    /** The value of a key; null where there is none. (A field of an object is no item: the name is that of a key.) */
    public Object getItem(Object key) { return lookUp(key, false); }

    /** Writes a value. */
    public void put(Object key, Object value) {
        Stack.visit(2, (stack, cells) -> {
            Values.put(stack, cells, key);
            Values.put(stack, cells + Stack.CELL, value);
            return Native.splice(handle.use(stack), 0, 0, stack.address + cells, 2);
        });
    }

    /** Removes a key; whether it was there. */
    public boolean remove(Object key) { return (Boolean) lookUp(key, true); }

    private Object lookUp(Object key, boolean erase) {
        return Stack.visit(1, (stack, cell) -> {
            Values.put(stack, cell, key);
            boolean found = Native.lookUp(handle.use(stack), stack.address + cell, erase);
            return erase ? (Object) found : found ? Values.take(stack, cell, true) : null;
        });
    }

    /** All pairs, copied, in their order. */
    public Map<Object, Object> toMap() { return handle.with(Values::pairs); }
}
