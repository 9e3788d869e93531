// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;

/** The arguments of a call of a function of Java, while it lasts. What {@link #get} returned may be kept. */
public final class Args {
    private final Stack stack;
    private final int frame, count;
    private Thread thread = Thread.currentThread();
    private Tensor[] views; // copies of borrowed tensors: what is written into them goes back

    Args(Stack stack, int frame, int count) {
        this.stack = stack;
        this.frame = frame;
        this.count = count;
    }

    /** The number of arguments. */
    public int size() { return count; }

    /** An argument: null, Long, Double, Boolean, String, byte[], DType, Device, Shape, List, Map, or an object of portcall. */
    public Object get(int i) {
        int cell = cell(i);
        return stack.type(cell) == Values.VIEW ? view(cell, i) : Values.take(stack, cell, false);
    }

    /** A whole number. */
    public long asLong(int i) { return Convert.bits(stack, cell(i), Values.INT, false, "", i); }

    /** A number. */
    public double asDouble(int i) { return Double.longBitsToDouble(Convert.bits(stack, cell(i), Values.FLOAT, false, "", i)); }

    /** Text. */
    public String asString(int i) { return as(i, String.class); }

    /** A tensor. What is written to one that was borrowed from an array goes back into the array. */
    public Tensor asTensor(int i) { return as(i, Tensor.class); }

    /** A function. */
    public PackedFunc asFunction(int i) { return as(i, PackedFunc.class); }

    /** A list. */
    @SuppressWarnings("unchecked")
    public List<Object> asList(int i) { return as(i, List.class); }

    /** An argument as a value of a class: those above, arrays of numbers, records, functional interfaces. */
    @SuppressWarnings("unchecked")
    public <T> T as(int i, Class<T> type) { return (T) Convert.to(get(i), type, "", i); }

    private int cell(int i) {
        if (thread != Thread.currentThread()) {
            throw new IllegalStateException("arguments are there for their call alone: keep what get() returned");
        }
        if (i < 0 || i >= count) throw new ArgumentException("", i, "an argument", "none: there are " + count);
        return frame + Stack.CELL * (i + 1);
    }

    private Tensor view(int cell, int i) {
        if (views == null) views = new Tensor[count];
        if (views[i] == null) {
            views[i] = (Tensor) Values.take(stack, cell, false);
            views[i].handle.use(); // also when the function closes it
        }
        return views[i];
    }

    /** Copies back what the function wrote. */
    void giveBack() {
        for (int i = 0; views != null && i < count; ++i) {
            if (views[i] != null) Native.returnView(views[i].handle.address, stack.payload(frame + Stack.CELL * (i + 1)));
        }
    }

    void end() {
        thread = null;
        for (int i = 0; views != null && i < count; ++i) {
            if (views[i] != null) views[i].handle.done();
        }
    }

    static void checkCount(int expected, int got) {
        if (expected != got) throw new ArgumentException("", -1, expected + (expected == 1 ? " argument" : " arguments"), Integer.toString(got));
    }

}
