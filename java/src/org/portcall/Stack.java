// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.concurrent.ConcurrentLinkedDeque;

/**
 * Memory of a thread in which calls, one within the other, have their frames of cells. Its first word says where free memory
 * begins. Virtual threads, of which there may be very many, borrow theirs for their outermost call.
 */
final class Stack {
    static final int BYTES = 65536, RESERVED = 4096, CELL = 16;
    private static final int FIRST = 16;
    private static final ThreadLocal<Stack> OF_THREAD = new ThreadLocal<>();
    private static final ConcurrentLinkedDeque<Stack> FREE = new ConcurrentLinkedDeque<>();
    private static final MethodHandle IS_VIRTUAL = findIsVirtual();

    final ByteBuffer memory = ByteBuffer.allocateDirect(BYTES).order(ByteOrder.nativeOrder());
    final long address = Native.address(memory);
    final FloatBuffer floats = memory.asFloatBuffer();
    private final boolean borrowed;
    private Handle[] held = new Handle[16];
    int count;

    private Stack(boolean borrowed) {
        this.borrowed = borrowed;
        memory.putLong(0, FIRST);
    }

    static Stack get() {
        Stack stack = OF_THREAD.get();
        return stack != null ? stack : take();
    }

    private static Stack take() {
        Stack stack = null;
        boolean virtual = isVirtual();
        if (virtual) stack = FREE.poll();
        if (stack == null) stack = new Stack(virtual);
        OF_THREAD.set(stack);
        return stack;
    }

    /** The end of a call: what it held goes, also where one of that fails, and its memory is free. */
    void leave(int frame, int mark) {
        if (count != mark) drop(mark);
        top(frame);
        if (borrowed && frame == FIRST) {
            OF_THREAD.remove();
            FREE.push(this);
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

    int top() { return (int) memory.getLong(0); }

    void top(int offset) { memory.putLong(0, offset); }

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
        memory.putLong(at, type & 0xffffffffL);
        memory.putLong(at + 8, payload);
    }

    void set(int at, double value) { set(at, Values.FLOAT, Double.doubleToRawLongBits(value)); }

    int type(int at) { return memory.getInt(at); }

    long payload(int at) { return memory.getLong(at + 8); }

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

    private static MethodHandle findIsVirtual() {
        try {
            return MethodHandles.publicLookup().findVirtual(Thread.class, "isVirtual", MethodType.methodType(boolean.class));
        } catch (ReflectiveOperationException before21) {
            return null;
        }
    }

    private static boolean isVirtual() {
        try {
            return IS_VIRTUAL != null && (boolean) IS_VIRTUAL.invokeExact(Thread.currentThread());
        } catch (Throwable never) {
            return false;
        }
    }
}
