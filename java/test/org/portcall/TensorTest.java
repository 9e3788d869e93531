// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

class TensorTest {
    private static final PackedFunc ECHO = Portcall.get("testing.echo");
    private static final PackedFunc ADD_ONE = Support.kernels().function("add_one"), ADDRESS = Support.kernels().function("address");

    private static ByteBuffer direct(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    @Test
    void areSharedWithFunctionsAndKeepTypeAndShape() {
        try (Tensor x = Tensor.of(new float[] {1, 2, 3, 4, 5, 6}, 2, 3); Tensor y = Tensor.empty(DType.FLOAT32, 2, 3)) {
            assertArrayEquals(new long[] {2, 3}, x.shape());
            assertEquals(List.of(DType.FLOAT32, 6L, 24L, Device.CPU), List.of(x.dtype(), x.size(), x.nbytes(), x.device()));
            ADD_ONE.call(x, y);
            assertArrayEquals(new float[] {2, 3}, Arrays.copyOf(y.toFloatArray(), 2));
            Tensor same = ECHO.callTensor(x);
            same.floats().put(0, 9);
            assertEquals(9f, x.toFloatArray()[0]);
            assertEquals(x, same);
        }
    }

    @Test
    void ofEveryTypeOfArrayAreCopies() {
        assertArrayEquals(new double[] {1.5, -2}, Tensor.of(new double[] {1.5, -2}).toDoubleArray());
        assertArrayEquals(new int[] {1, -2}, Tensor.of(new int[] {1, -2}).toIntArray());
        assertArrayEquals(new long[] {1, -2}, Tensor.of(new long[] {1, -2}).toLongArray());
        assertArrayEquals(new byte[] {1, -2}, Tensor.of(new byte[] {1, -2}).toByteArray());
        short[] shorts = new short[2];
        Tensor.of(new short[] {1, -2}).copyTo(shorts);
        assertArrayEquals(new short[] {1, -2}, shorts);
        Tensor truths = Tensor.empty(DType.BOOL, 2);
        truths.copyFrom(new boolean[] {true, false});
        assertArrayEquals(new byte[] {1, 0}, truths.toByteArray());
        assertEquals(0, Tensor.of(new float[0]).toFloatArray().length);
        assertEquals(0, Tensor.of(new float[0]).buffer().capacity());
    }

    @Test
    void thatAreArraysOfJavaAreCopiedInAndOut() {
        for (int n : new int[] {1, 1000, 1025, 5000, 300_000}) {
            float[] in = new float[n], out = new float[n];
            Arrays.fill(in, n);
            ADD_ONE.call(in, out);
            assertEquals(n + 1f, out[n - 1]);
            assertEquals(n + 1f, out[0]);
        }
        for (Object array : new Object[] {new double[] {1}, new int[] {1}, new long[] {1}, new short[] {1}, new boolean[] {true}, new double[5000]}) {
            PackedFunc.of(a -> {
                Tensor t = a.asTensor(0);
                assertEquals(Numbers.dtypeOf(array), t.dtype());
                t.buffer().put(0, (byte) 0);
                return null;
            }).call(array);
            assertFalse("1".equals(java.lang.reflect.Array.get(array, 0).toString()));
        }
        assertArrayEquals(new float[] {1, 2}, ((Tensor) ((List<?>) ECHO.call(List.of(new float[] {1, 2}))).get(0)).toFloatArray());
    }

    @Test
    void overDirectBuffersAreInPlace() {
        ByteBuffer memory = direct(1 << 20);
        long at = Native.address(memory);
        int offset = (int) (-at & 63);
        memory.position(offset);
        try (Tensor x = Tensor.wrap(memory, DType.FLOAT32, 4, 1000)) {
            assertEquals(at + offset, ADDRESS.callLong(x));
            ADD_ONE.call(x, x);
            assertEquals(1f, memory.getFloat(offset));
        }
        FloatBuffer floats = memory.slice(offset, 64).order(ByteOrder.nativeOrder()).asFloatBuffer();
        assertEquals(at + offset, ADDRESS.callLong(floats));
        assertEquals(at + offset, ADDRESS.callLong(memory));
    }

    @Test
    void thatAreNotWhereCompiledCodeNeedsThemGoThroughOneCopy() {
        ByteBuffer memory = direct(256);
        memory.position((int) (-Native.address(memory) & 63) + 4);
        int first = memory.position();
        try (Tensor x = Tensor.wrap(memory, DType.FLOAT32, 2)) {
            ADD_ONE.call(x, x);
            assertEquals(1f, memory.getFloat(first));
            ADD_ONE.call(x, x);
            assertEquals(2f, memory.getFloat(first));
        }
        try (Tensor fixed = Tensor.wrap(memory.asReadOnlyBuffer().order(ByteOrder.nativeOrder()), DType.FLOAT32, 2)) {
            assertTrue(fixed.isReadOnly());
            float[] out = new float[2];
            ADD_ONE.call(fixed, out);
            assertEquals(3f, out[0]);
            ADD_ONE.call(fixed, fixed);
            assertEquals(2f, memory.getFloat(first));
            assertThrows(IllegalStateException.class, () -> fixed.copyFrom(new float[2]));
            assertThrows(ReadOnlyBufferException.class, () -> fixed.floats().put(0, 1f));
        }
    }

    @Test
    void keepTheirMemoryAsLongAsABufferOverIt() throws Exception {
        Tensor x = Tensor.of(new float[] {1, 2, 3});
        FloatBuffer view = x.floats();
        x.close();
        for (int i = 0; i < 20; ++i) {
            System.gc();
            Handle.Watch.drain();
            Tensor.of(new float[] {7, 7, 7}).close();
        }
        assertEquals(2f, view.get(1));
    }

    @Test
    void thatAreReadOnlyKeepTheirMemoryAsLongAsPartsOfABufferOverIt() throws Exception {
        WeakReference<Object>[] memory = new WeakReference[1];
        FloatBuffer part = partOfReadOnly(memory);
        for (int i = 0; i < 20; ++i) {
            System.gc();
            Handle.Watch.drain();
        }
        assertEquals(3f, part.get(0));
        assertTrue(memory[0].get() != null);
        part = null;
        assertTrue(Support.collectUntil(() -> memory[0].get() == null));
    }

    private static FloatBuffer partOfReadOnly(WeakReference<Object>[] memory) {
        ByteBuffer made = direct(4096).putFloat(4, 3);
        memory[0] = new WeakReference<>(made);
        try (Tensor x = Tensor.wrap(made.asReadOnlyBuffer().order(ByteOrder.nativeOrder()), DType.FLOAT32, 1024)) {
            return x.floats().slice(1, 10);
        }
    }

    @Test
    void keepTheBufferThatTheyAreOver() throws Exception {
        Tensor x = Tensor.wrap(direct(4096).putInt(0, 42), DType.INT32, 1024);
        for (int i = 0; i < 20; ++i) {
            System.gc();
            direct(4096);
        }
        assertEquals(42, x.ints().get(0));
    }

    @Test
    void haveViewsOfTheirMemory() {
        try (Tensor x = Tensor.of(new int[] {0, 1, 2, 3, 4, 5}, 3, 2)) {
            assertArrayEquals(new int[] {2, 3, 4, 5}, x.rows(1, 3).toIntArray());
            assertArrayEquals(new long[] {2, 3}, x.reshape(2, 3).shape());
            x.rows(2, 3).ints().put(0, 9);
            assertEquals(9, x.toIntArray()[4]);
            assertThrows(IndexOutOfBoundsException.class, () -> x.rows(1, 4));
            assertThrows(IndexOutOfBoundsException.class, () -> x.rows(-1, 1));
            assertThrows(IllegalArgumentException.class, () -> x.reshape(7));
        }
        try (Tensor x = Tensor.empty(DType.of("int4"), 4, 4)) {
            assertEquals(4, x.rows(1, 3).nbytes());
            assertThrows(IllegalArgumentException.class, () -> x.reshape(16).rows(1, 2)); // in the middle of a byte
        }
    }

    @Test
    void thatAreWrongAreRefused() {
        ByteBuffer memory = direct(64);
        for (Runnable wrong : new Runnable[] {
            () -> Tensor.wrap(ByteBuffer.allocate(64), DType.FLOAT32, 2),
            () -> Tensor.wrap(memory, DType.FLOAT32, 17),
            () -> Tensor.wrap(memory, DType.FLOAT32, -1),
            () -> Tensor.wrap(memory, DType.FLOAT32, Long.MAX_VALUE, 4),
            () -> Tensor.wrap(ByteBuffer.allocateDirect(64), DType.FLOAT32, 2), // big-endian, as Java makes them
            () -> Tensor.wrap(CharBuffer.allocate(2), DType.INT16, 2),
            () -> ECHO.call(ByteBuffer.allocateDirect(64).asFloatBuffer()),
            () -> ECHO.call(FloatBuffer.allocate(2)),
            () -> Tensor.of(new float[3], 4),
            () -> Tensor.empty(DType.FLOAT32, 1L << 62, 4),
            () -> Tensor.empty(DType.FLOAT32, -1),
            () -> Tensor.of(new float[3]).copyFrom(new double[3]),
            () -> Tensor.of(new float[3]).copyTo(new float[4]),
            () -> Tensor.of(new float[3]).copyTo("text"),
        }) {
            assertThrows(IllegalArgumentException.class, wrong::run);
        }
        assertThrows(NullPointerException.class, () -> Tensor.of((float[]) null));
        assertThrows(NullPointerException.class, () -> Tensor.wrap(null, DType.INT8, 1));
        assertThrows(IllegalStateException.class, () -> Tensor.of(new float[3]).ints());
        assertThrows(PortcallException.class, () -> Tensor.empty(DType.FLOAT32, 1L << 55));
        assertThrows(PortcallException.class, () -> Tensor.empty(DType.FLOAT32, new Device(99, 0), 1));
        assertThrows(PortcallException.class, () -> DType.of("nonsense"));
        assertThrows(PortcallException.class, () -> Tensor.empty(DType.INT8, new long[65]));
        assertThrows(PortcallException.class, () -> ADD_ONE.call(1)); // a kernel that says so
    }

    @Test
    void ofMoreThanAnArrayHoldsAreReadInParts() {
        try (Tensor large = Tensor.empty(DType.INT8, 3, 1L << 30)) { // nobody touches most of it
            assertThrows(IllegalStateException.class, large::toByteArray);
            assertThrows(IllegalStateException.class, large::buffer);
            large.rows(2, 3).buffer().put(5, (byte) 7);
            assertEquals(7, large.rows(2, 3).buffer().get(5));
        }
    }

    @Test
    void thatAreClosedCannotBeUsed() {
        Tensor x = Tensor.of(new float[2]);
        x.close();
        x.close();
        assertThrows(IllegalStateException.class, () -> ECHO.call(x));
        assertThrows(IllegalStateException.class, () -> ECHO.call(List.of(x)));
        assertThrows(IllegalStateException.class, () -> ADD_ONE.call(x, x));
        assertThrows(IllegalStateException.class, x::buffer);
        assertThrows(IllegalStateException.class, x::toFloatArray);
        assertThrows(IllegalStateException.class, () -> x.reshape(2));
        assertThrows(IllegalStateException.class, () -> x.get("field"));
        assertThrows(IllegalStateException.class, () -> Tensor.of(new float[2]).copyFrom(x));
        assertEquals(0, Stack.get().count);
    }
}
