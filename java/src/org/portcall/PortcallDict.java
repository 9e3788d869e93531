// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.Map;

/** A map of the core that changes for all who have it: {@code ffi.Dict}. (Maps, which do not change, come as a Map of Java.) */
public final class PortcallDict extends PortcallObject {
    PortcallDict(long object) {
        super(object, Values.DICT);
    }

    /** A new one. */
    public static PortcallDict of(Map<?, ?> pairs) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cell = stack.reserve(1);
        try {
            Values.putMap(stack, cell, stack.top(), pairs, Values.DICT);
            return (PortcallDict) Values.take(stack, cell, false);
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** The number of pairs. */
    public long size() {
        long object = handle.use();
        try {
            return Native.size(object);
        } finally {
            handle.done();
        }
    }

    /** The value of a key; null where there is none. (A field of an object is no item: the name is that of a key.) */
    public Object getItem(Object key) {
        return lookUp(key, false);
    }

    /** Writes a value. */
    public void put(Object key, Object value) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cells = stack.reserve(2);
        try {
            int end = Values.put(stack, cells, stack.top(), key, Values.NESTED);
            stack.top(end + 15 & ~15);
            Values.put(stack, cells + Stack.CELL, stack.top(), value, Values.NESTED);
            Native.splice(handle.use(stack), 0, 0, stack.address + cells, 2);
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** Removes a key; whether it was there. */
    public boolean remove(Object key) {
        return (Boolean) lookUp(key, true);
    }

    private Object lookUp(Object key, boolean erase) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cell = stack.reserve(1);
        try {
            Values.put(stack, cell, stack.top(), key, Values.NESTED);
            boolean found = Native.lookUp(handle.use(stack), stack.address + cell, erase);
            return erase ? (Object) found : found ? Values.take(stack, cell, true) : null;
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** All pairs, copied, in their order. */
    public Map<Object, Object> toMap() {
        long object = handle.use();
        try {
            return Values.pairs(Stack.get(), object);
        } finally {
            handle.done();
        }
    }
}
