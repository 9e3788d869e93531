// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;

/** A list of the core that changes for all who have it: {@code ffi.List}. (Arrays, which do not change, come as a List of Java.) */
public final class PortcallList extends PortcallObject {
    PortcallList(long object) {
        super(object, Values.LIST);
    }

    /** A new list. */
    public static PortcallList of(List<?> items) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cell = stack.reserve(1);
        try {
            Values.putItems(stack, cell, stack.top(), items.iterator(), Values.LIST);
            return (PortcallList) Values.take(stack, cell, false);
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** The number of items. */
    public long size() {
        long object = handle.use();
        try {
            return Native.size(object);
        } finally {
            handle.done();
        }
    }

    /** An item. */
    public Object get(long i) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cell = stack.reserve(1);
        try {
            long list = handle.use(stack);
            if (!Native.item(list, i, stack.address + cell)) throw new IndexOutOfBoundsException("item " + i + " of " + Native.size(list));
            return Values.take(stack, cell, true);
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** Replaces an item. */
    public void set(long i, Object value) {
        if (i < 0 || i >= size()) throw new IndexOutOfBoundsException("item " + i + " of " + size());
        splice(i, 1, value);
    }

    /** Adds an item at the end. */
    public void add(Object value) {
        splice(size(), 0, value);
    }

    /** Removes an item. */
    public void remove(long i) {
        if (i < 0 || i >= size()) throw new IndexOutOfBoundsException("item " + i + " of " + size());
        splice(i, 1);
    }

    private void splice(long at, long removed, Object... values) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, cell = stack.reserve(1);
        try {
            for (Object value : values) Values.put(stack, cell, stack.top(), value, Values.NESTED);
            Native.splice(handle.use(stack), at, removed, stack.address + cell, values.length);
        } finally {
            stack.leave(frame, mark);
        }
    }

    /** All items, copied. */
    public List<Object> toList() {
        long object = handle.use();
        try {
            return Values.items(Stack.get(), object);
        } finally {
            handle.done();
        }
    }
}
