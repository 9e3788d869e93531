// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Arrays of numbers as arguments. They are copied, and back when the call is over: small ones into the stack, as a borrowed
 * tensor; large ones into a tensor, as do those that are part of another value, which stay there.
 */
final class Numbers {
    private static final int HEADER = 56, ALIGNMENT = 64; // bytes of a DLTensor and its extent; of compiled code

    static boolean isNumbers(Object value) {
        return value instanceof double[] || value instanceof int[] || value instanceof long[] || value instanceof short[]
                || value instanceof boolean[] || value instanceof float[];
    }

    static DType dtypeOf(Object array) {
        if (array instanceof float[]) return DType.FLOAT32;
        if (array instanceof double[]) return DType.FLOAT64;
        if (array instanceof int[]) return DType.INT32;
        if (array instanceof long[]) return DType.INT64;
        if (array instanceof short[]) return DType.INT16;
        if (array instanceof byte[]) return DType.INT8;
        if (array instanceof boolean[]) return DType.BOOL;
        throw new IllegalArgumentException(array.getClass().getSimpleName() + " is no array of numbers");
    }

    static int put(Stack stack, int at, int end, float[] array, int flags) {
        int data = place(stack, end), nbytes = 4 * array.length;
        if ((flags & Values.NESTED) != 0 || !fits(data, 4L * array.length)) return putLarge(stack, at, end, array, flags);
        describe(stack, at, end, data, DType.FLOAT32, array.length);
        stack.floats.put(data / 4, array);
        stack.hold(new Handle(0) {
            @Override void done() { stack.floats.get(data / 4, array); }
        });
        return data + nbytes;
    }

    static int put(Stack stack, int at, int end, Object array, int flags) {
        DType dtype = dtypeOf(array);
        int length = java.lang.reflect.Array.getLength(array), data = place(stack, end);
        long nbytes = dtype.nbytes(length);
        if ((flags & Values.NESTED) != 0 || !fits(data, nbytes)) return putLarge(stack, at, end, array, flags);
        describe(stack, at, end, data, dtype, length);
        put(at(stack, data), array, true);
        stack.hold(new Handle(0) {
            @Override void done() { put(at(stack, data), array, false); }
        });
        return data + (int) nbytes;
    }

    /** Where elements may begin, behind their description. */
    private static int place(Stack stack, int end) {
        int head = end + 7 & ~7;
        return (int) ((stack.address + head + HEADER + ALIGNMENT - 1 & -ALIGNMENT) - stack.address);
    }

    private static boolean fits(int data, long nbytes) {
        return nbytes <= Stack.RESERVED && data + nbytes <= Stack.BYTES - Stack.RESERVED;
    }

    /** A DLTensor: data, device, ndim, dtype, shape, strides, offset; its extent. */
    private static void describe(Stack stack, int at, int end, int data, DType dtype, int length) {
        int head = end + 7 & ~7;
        stack.word(head, stack.address + data);
        stack.word(head + 8, 1);
        stack.word(head + 16, 1 | (long) dtype.word() << 32);
        stack.word(head + 24, stack.address + head + 48);
        stack.word(head + 32, 0);
        stack.word(head + 40, 0);
        stack.word(head + 48, length);
        stack.set(at, Values.VIEW, stack.address + head);
    }

    private static ByteBuffer at(Stack stack, int data) {
        return stack.memory.slice(data, Stack.BYTES - data).order(ByteOrder.nativeOrder());
    }

    /** Copies an array into memory, or out of it. */
    static void put(ByteBuffer memory, Object array, boolean in) {
        if (array instanceof float[] a) {
            if (in) memory.asFloatBuffer().put(a); else memory.asFloatBuffer().get(a);
        } else if (array instanceof double[] a) {
            if (in) memory.asDoubleBuffer().put(a); else memory.asDoubleBuffer().get(a);
        } else if (array instanceof int[] a) {
            if (in) memory.asIntBuffer().put(a); else memory.asIntBuffer().get(a);
        } else if (array instanceof long[] a) {
            if (in) memory.asLongBuffer().put(a); else memory.asLongBuffer().get(a);
        } else if (array instanceof short[] a) {
            if (in) memory.asShortBuffer().put(a); else memory.asShortBuffer().get(a);
        } else if (array instanceof byte[] a) {
            if (in) memory.put(a); else memory.get(a);
        } else if (array instanceof boolean[] a) {
            for (int i = 0; i < a.length; ++i) {
                if (in) memory.put(i, (byte) (a[i] ? 1 : 0)); else a[i] = memory.get(i) != 0;
            }
        }
    }

    private static int putLarge(Stack stack, int at, int end, Object array, int flags) {
        int length = java.lang.reflect.Array.getLength(array);
        Tensor copy = Tensor.empty(dtypeOf(array), length);
        copy.copyFrom(array);
        stack.hold(new Handle(copy.handle.use()) {
            @Override
            void done() {
                if ((flags & Values.NESTED) == 0) copy.copyTo(array);
                copy.handle.done();
                copy.close();
            }
        });
        stack.set(at, Values.TENSOR, copy.handle.address);
        return end;
    }

    private Numbers() {}
}
