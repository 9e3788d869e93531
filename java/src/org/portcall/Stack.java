// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;

/**
 * Memory of a thread in which calls, one within the other, have their frames of cells. Its first word says where free memory
 * begins. Virtual threads, of which there may be very many, borrow theirs for their outermost call.
 */
final class Stack {
    static final int BYTES = 65536, RESERVED = 4096, CELL = 16;
    private static final int FIRST = 16;
    private static final ThreadLocal<Stack> OF_THREAD = new ThreadLocal<>();
    static final ArrayDeque<Stack> FREE = new ArrayDeque<>();
    private static Stack first; // of the first thread, often the only one: a ThreadLocal takes ten loads, one after the other

    final ByteBuffer memory = ByteBuffer.allocateDirect(BYTES).order(ByteOrder.nativeOrder());
    final long address = Native.address(memory);
    private final LongBuffer words = memory.asLongBuffer(); // less code than a ByteBuffer, which may be of any order
    private final Thread owner; // null where virtual threads borrow it
    private Handle[] held = new Handle[16];
    int count;

    private Stack(Thread owner) {
        this.owner = owner;
        top(FIRST);
    }

    static Stack get() {
        Stack stack = first;
        if (stack != null && stack.owner == Thread.currentThread()) return stack;
        stack = OF_THREAD.get();
        return stack != null ? stack : take();
    }

    private static Stack take() {
        Stack stack = null;
        boolean virtual = isVirtual();
        if (virtual) {
            synchronized (FREE) {
                stack = FREE.poll();
            }
        }
        if (stack == null) stack = new Stack(virtual ? null : Thread.currentThread());
        if (first == null && !virtual) first = stack;
        OF_THREAD.set(stack);
        return stack;
    }

    /** The end of a call: what it held goes, also where one of that fails, and its memory is free. */
    void leave(int frame, int mark) {
        if (count != mark) drop(mark);
        top(frame);
        if (owner == null && frame == FIRST) {
            OF_THREAD.remove();
            synchronized (FREE) {
                FREE.push(this);
            }
        }
    }

    /** What reads or writes cells of its own, between calls. */
    interface Visit<T> {
        T at(Stack stack, int cells);
    }

    static <T> T visit(int cells, Visit<T> visit) {
        Stack stack = get();
        int frame = stack.top(), mark = stack.count;
        try {
            return visit.at(stack, stack.reserve(cells));
        } finally {
            stack.leave(frame, mark);
        }
    }

    int top() { return (int) word(0); }

    void top(int offset) { word(0, offset); }

    long word(int at) { return words.get(at >> 3); }

    void word(int at, long value) { words.put(at >> 3, value); }

    /** Room for cells of a visit to a container; top(result) gives it back. */
    int reserve(int cells) {
        int at = top() + 15 & ~15;
        if (at + CELL * cells > BYTES) throw tooDeep();
        top(at + CELL * cells);
        return at;
    }

    static PortcallException tooDeep() {
        return new PortcallException("RecursionError", "calls or values of portcall are nested too deep, or a value contains itself");
    }

    void set(int at, int type, long payload) {
        word(at, type & 0xffffffffL);
        word(at + 8, payload);
    }

    int type(int at) { return (int) word(at); }

    long payload(int at) { return word(at + 8); }

    /** A handle that the innermost call uses. */
    void hold(Handle handle) {
        if (count == held.length) held = Arrays.copyOf(held, 2 * count);
        held[count++] = handle;
    }

    /** What the innermost call holds of the same object first. */
    Handle find(Handle like, int mark) {
        for (int i = mark; i < count; ++i) {
            if (held[i].address == like.address) return held[i];
        }
        return null;
    }

    void drop(int mark) {
        RuntimeException first = null;
        while (count > mark) {
            Handle handle = held[--count];
            held[count] = null;
            try {
                handle.done();
            } catch (RuntimeException error) {
                if (first == null) first = error;
            }
        }
        if (first != null) throw first;
    }

    /** By their group, which JDK 21 has a name for: Thread.isVirtual() by reflection would take 10 ms at the start. */
    private static boolean isVirtual() {
        ThreadGroup group = Thread.currentThread().getThreadGroup();
        return group != null && group.getName().equals("VirtualThreads");
    }
}
