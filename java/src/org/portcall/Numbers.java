// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.lang.reflect.Array;
import java.nio.ByteBuffer;

/**
 * Arrays of numbers as arguments. They are copied, and back when the call is over: small ones into the stack, as a borrowed
 * tensor; large ones into a tensor, as do those that are part of another value, which stay there.
 */
final class Numbers {
    private static final int HEADER = 56, ALIGNMENT = 64; // bytes of a DLTensor and its extent; of compiled code

    static boolean isNumbers(Object value) {
        return value instanceof float[] || value instanceof double[] || value instanceof int[] || value instanceof long[]
                || value instanceof short[] || value instanceof boolean[];
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

    static int put(Stack stack, int at, int end, Object array, int flags) {
        DType dtype = dtypeOf(array);
        int length = Array.getLength(array), head = end + 7 & ~7;
        int data = (int) ((stack.address + head + HEADER + ALIGNMENT - 1 & -ALIGNMENT) - stack.address);
        long nbytes = dtype.nbytes(length);
        if ((flags & Values.NESTED) != 0 || nbytes > Stack.RESERVED || data + nbytes > Stack.BYTES - Stack.RESERVED) {
            return putLarge(stack, at, end, array, flags);
        }
        stack.word(head, stack.address + data); // a DLTensor: data, device, ndim, dtype, shape, strides, offset; its extent
        stack.word(head + 8, 1);
        stack.word(head + 16, 1 | (long) dtype.word() << 32);
        stack.word(head + 24, stack.address + head + 48);
        stack.word(head + 32, 0);
        stack.word(head + 40, 0);
        stack.word(head + 48, length);
        stack.set(at, Values.VIEW, stack.address + head);
        put(stack.memory.position(data), array, true);
        stack.hold(new Handle(0) {
            @Override void done() { put(stack.memory.position(data), array, false); }
        });
        return data + (int) nbytes;
    }

    /** Copies an array into memory from its position on, or out of it. */
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
                if (in) memory.put((byte) (a[i] ? 1 : 0)); else a[i] = memory.get() != 0;
            }
        }
    }

    private static int putLarge(Stack stack, int at, int end, Object array, int flags) {
        int length = Array.getLength(array);
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
