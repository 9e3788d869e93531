// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;

/**
 * A tensor. Its memory is freed by close(), or by garbage collection, and not before buffers over it are gone. It may be closed while
 * other threads use it.
 */
public final class Tensor extends PortcallObject {
    private static final int HEAD = 4, COMPACT = 1, READ_ONLY = 2, OWN = 4, OVERHEAD = 256, ALIGNMENT = 64;
    private final long[] info; // address, dtype, device, flags, extents

    Tensor(long object) {
        super(object, Values.TENSOR);
        info = Native.tensorInfo(object);
        if ((info[3] & OWN) != 0) handle.count(nbytes() + OVERHEAD);
    }

    /** A tensor of memory that nobody has written to. */
    public static Tensor empty(DType dtype, long... shape) { return empty(dtype, Device.CPU, shape); }

    /** The same on a device. */
    public static Tensor empty(DType dtype, Device device, long... shape) {
        bytesOf(dtype, shape);
        return new Tensor(Native.allocate(shape, dtype.word(), device.word()));
    }

    /** A copy of an array of numbers or truth values, whose type it has (byte[] is int8); without extents it has one dimension. */
    public static Tensor of(Object array, long... shape) {
        Tensor made = empty(Numbers.dtypeOf(array), shape.length == 0 ? new long[] {java.lang.reflect.Array.getLength(array)} : shape);
        try {
            made.copyFrom(array);
        } catch (RuntimeException error) {
            made.close();
            throw error;
        }
        return made;
    }

    /**
     * A tensor in the memory of a direct buffer, from its position on. Nothing is copied, and the buffer's memory lives as long.
     * @throws IllegalArgumentException the buffer is not a direct one, too small, or of the other order of bytes
     */
    public static Tensor wrap(Buffer direct, DType dtype, long... shape) {
        int width = dtypeOf(direct).bits() / 8;
        long nbytes = bytesOf(dtype, shape), there = (long) direct.remaining() * width;
        if (!direct.isDirect()) {
            throw new IllegalArgumentException("the buffer is not a direct one: ByteBuffer.allocateDirect makes one, Tensor.of copies an array");
        }
        if (nbytes > there) {
            throw new IllegalArgumentException(dtype + " of the shape " + Arrays.toString(shape) + " has " + nbytes + " bytes, the buffer " + there);
        }
        if (dtype.bits() > 8 && orderOf(direct) != ByteOrder.nativeOrder()) {
            throw new IllegalArgumentException("the buffer is " + orderOf(direct) + ", and this machine is not: call order(ByteOrder.nativeOrder()) before it is filled");
        }
        return new Tensor(Native.wrap(direct, (long) direct.position() * width, shape, dtype.word(), direct.isReadOnly()));
    }

    /** A direct buffer as an argument: of its own type, with one dimension. */
    static Tensor over(Buffer buffer) { return wrap(buffer, dtypeOf(buffer), buffer.remaining()); }

    private static DType dtypeOf(Buffer buffer) {
        if (buffer instanceof CharBuffer) throw new IllegalArgumentException("a buffer of characters is no tensor");
        return buffer instanceof FloatBuffer ? DType.FLOAT32 : buffer instanceof DoubleBuffer ? DType.FLOAT64
                : buffer instanceof IntBuffer ? DType.INT32 : buffer instanceof LongBuffer ? DType.INT64
                : buffer instanceof ShortBuffer ? DType.INT16 : DType.UINT8;
    }

    private static ByteOrder orderOf(Buffer buffer) {
        if (buffer instanceof ByteBuffer b) return b.order();
        if (buffer instanceof FloatBuffer b) return b.order();
        if (buffer instanceof DoubleBuffer b) return b.order();
        if (buffer instanceof IntBuffer b) return b.order();
        return buffer instanceof LongBuffer b ? b.order() : ((ShortBuffer) buffer).order();
    }

    private static long bytesOf(DType dtype, long[] shape) {
        try {
            long elements = 1;
            for (long each : shape) {
                if (each < 0) throw new IllegalArgumentException("the shape " + Arrays.toString(shape) + " has a negative extent");
                elements = Math.multiplyExact(elements, each);
            }
            return dtype.nbytes(elements);
        } catch (ArithmeticException error) {
            throw new IllegalArgumentException("the shape " + Arrays.toString(shape) + " has more than 2^63 bytes");
        }
    }

    /** The extents. */
    public long[] shape() { return Arrays.copyOfRange(info, HEAD, info.length); }

    /** The type of the elements. */
    public DType dtype() { return new DType((int) info[1]); }

    /** Where it lies. */
    public Device device() { return new Device(info[2]); }

    /** The number of elements. */
    public long size() {
        long size = 1;
        for (int i = HEAD; i < info.length; ++i) size *= info[i];
        return size;
    }

    /** The bytes of its elements. */
    public long nbytes() { return dtype().nbytes(size()); }

    /** Whether its elements lie one beside the other, row by row. */
    public boolean isCompact() { return (info[3] & COMPACT) != 0; }

    /** Whether its memory must not be written to. */
    public boolean isReadOnly() { return (info[3] & READ_ONLY) != 0; }

    /** Whether compiled code could not take it as it lies. */
    boolean isMisplaced() {
        return (int) info[2] == Device.CPU.type() && (info[0] % ALIGNMENT != 0 || (info[3] & (COMPACT | READ_ONLY)) != COMPACT);
    }

    /** Elements as the length of an array. */
    int length() {
        if (size() > Integer.MAX_VALUE - 8) {
            throw new IllegalStateException(size() + " elements; an array of Java has at most 2^31 - 1: take parts of it by rows()");
        }
        return (int) size();
    }

    private boolean isHostMemory() { return (int) info[2] == Device.CPU.type() && isCompact(); }

    /** Its memory, which must not go meanwhile. */
    private ByteBuffer memory() {
        if (!isHostMemory()) throw new IllegalStateException("the tensor is not compact memory of the host: copy it by copyTo()");
        long nbytes = nbytes();
        if (nbytes > Integer.MAX_VALUE) {
            throw new IllegalStateException(nbytes + " bytes; a buffer of Java has at most 2^31 - 1: take parts of it by rows()");
        }
        ByteBuffer made = nbytes == 0 ? ByteBuffer.allocateDirect(0) : Native.buffer(info[0], nbytes);
        return made.order(ByteOrder.nativeOrder());
    }

    /** Its memory. The buffer, and every view of it, keeps the memory: it stays when the tensor is closed. */
    public ByteBuffer buffer() {
        Handle kept = handle;
        return kept.with(address -> {
            ByteBuffer memory = memory();
            kept.use();
            new Handle.Watch(memory, new Handle(address) { // views of a buffer, and views of views, hold the first one
                @Override void done() { kept.done(); }
            });
            return isReadOnly() ? memory.asReadOnlyBuffer().order(ByteOrder.nativeOrder()) : memory;
        });
    }

    private ByteBuffer buffer(DType expected) {
        if (!dtype().equals(expected)) throw new IllegalStateException("the tensor is of " + dtype() + ", not of " + expected);
        return buffer();
    }

    /** Its memory as floats. */
    public FloatBuffer floats() { return buffer(DType.FLOAT32).asFloatBuffer(); }

    /** Its memory as doubles. */
    public DoubleBuffer doubles() { return buffer(DType.FLOAT64).asDoubleBuffer(); }

    /** Its memory as ints. */
    public IntBuffer ints() { return buffer(DType.INT32).asIntBuffer(); }

    /** Its memory as longs. */
    public LongBuffer longs() { return buffer(DType.INT64).asLongBuffer(); }

    /**
     * Writes all elements, from an array of so many: byte[] for any type of bytes, others for their own type.
     * @throws IllegalArgumentException the array is of another type or length
     */
    public void copyFrom(Object array) {
        if (array instanceof Tensor other) copy(other, this);
        else transfer(array, true);
    }

    /** Reads all elements into an array of so many. */
    public void copyTo(Object array) {
        if (array instanceof Tensor other) copy(this, other);
        else transfer(array, false);
    }

    private static void copy(Tensor from, Tensor to) {
        if (to.isReadOnly()) throw new IllegalStateException("the tensor is read-only");
        from.handle.with(address -> to.handle.with(there -> {
            Native.copy(address, there);
            return null;
        }));
    }

    /** A copy in new memory of the host. */
    Tensor copy() {
        Tensor made = empty(dtype(), shape());
        made.copyFrom(this);
        return made;
    }

    private void transfer(Object array, boolean in) {
        DType given = Numbers.dtypeOf(array);
        boolean bytes = given.width() == 8 && dtype().width() == 8;
        int length = java.lang.reflect.Array.getLength(array);
        if ((!bytes && !given.equals(dtype())) || length != size()) {
            throw new IllegalArgumentException("a tensor of " + size() + " " + dtype() + " and an array of " + length + " " + given);
        }
        if (in && isReadOnly()) throw new IllegalStateException("the tensor is read-only");
        handle.use();
        try {
            if (isHostMemory()) {
                Numbers.put(memory(), array, in);
                return;
            }
            try (Tensor stage = empty(dtype(), shape())) {
                if (in) Numbers.put(stage.memory(), array, true);
                copy(in ? stage : this, in ? this : stage);
                if (!in) Numbers.put(stage.memory(), array, false);
            }
        } finally {
            handle.done();
        }
    }

    private <T> T filled(T array) {
        copyTo(array);
        return array;
    }

    /** Its elements, copied. */
    public float[] toFloatArray() { return filled(new float[length()]); }

    /** Its elements, copied. */
    public double[] toDoubleArray() { return filled(new double[length()]); }

    /** Its elements, copied. */
    public int[] toIntArray() { return filled(new int[length()]); }

    /** Its elements, copied. */
    public long[] toLongArray() { return filled(new long[length()]); }

    /** Its elements, copied, of a type of a byte. */
    public byte[] toByteArray() { return filled(new byte[length()]); }

    /** The same elements, in the same memory, in another shape. */
    public Tensor reshape(long... shape) {
        if (bytesOf(dtype(), shape) != nbytes() || !isCompact()) {
            throw new IllegalArgumentException(describe() + " cannot be seen as one of the shape " + Arrays.toString(shape));
        }
        return viewOf(shape, 0);
    }

    /** Rows {@code from} up to {@code to} of the first dimension, in the same memory. */
    public Tensor rows(long from, long to) {
        if (info.length == HEAD || from < 0 || to < from || to > info[HEAD] || !isCompact()) {
            throw new IndexOutOfBoundsException("rows " + from + " up to " + to + " of " + describe());
        }
        long[] shape = shape();
        shape[0] = 1;
        long bits = dtype().width() * (bytesOf(DType.INT8, shape));
        if (bits % 8 != 0) throw new IllegalArgumentException("a row of " + describe() + " does not end with a byte");
        shape[0] = to - from;
        return viewOf(shape, from * (bits / 8));
    }

    private Tensor viewOf(long[] shape, long first) {
        return handle.with(address -> new Tensor(Native.reshape(address, shape, first)));
    }

    private String describe() { return "a tensor of " + dtype() + Arrays.toString(shape()); }

    @Override
    public String toString() {
        return "Tensor " + dtype() + Arrays.toString(shape()) + (device().equals(Device.CPU) ? "" : " on " + device());
    }
}
