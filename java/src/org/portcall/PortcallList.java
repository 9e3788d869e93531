// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;

/** A list of the core that changes for all who have it: {@code ffi.List}. (Arrays, which do not change, come as a List of Java.) */
public final class PortcallList extends PortcallObject {
    PortcallList(long object) { super(object, Values.LIST); }

    /** A new list. */
    public static PortcallList of(List<?> items) {
        return (PortcallList) Stack.visit(1, (stack, cell) -> {
            Values.putItems(stack, cell, stack.top(), items.iterator(), Values.LIST);
            return Values.take(stack, cell, false);
        });
    }

    /** The number of items. */
    public long size() { return handle.with(Native::size); }

    /** An item. */
    public Object get(long i) {
        return Stack.visit(1, (stack, cell) -> {
            if (!Native.item(handle.use(stack), i, stack.address + cell)) throw noItem(i);
            return Values.take(stack, cell, true);
        });
    }

    /** Replaces an item. */
    public void set(long i, Object value) { splice(i, 1, value); }

    /** Adds an item at the end. */
    public void add(Object value) { splice(size(), 0, value); }

    /** Removes an item. */
    public void remove(long i) { splice(i, 1); }

    private IndexOutOfBoundsException noItem(long i) {
        return new IndexOutOfBoundsException("item " + i + " of " + size());
    }

    private void splice(long at, long removed, Object... values) {
        if (removed != 0 && (at < 0 || at >= size())) throw noItem(at);
        Stack.visit(1, (stack, cell) -> {
            for (Object value : values) Values.put(stack, cell, value);
            return Native.splice(handle.use(stack), at, removed, stack.address + cell, values.length);
        });
    }

    /** All items, copied. */
    public List<Object> toList() { return handle.with(Values::items); }
}
