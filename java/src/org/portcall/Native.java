// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/** The functions of java/jni. Objects of the core, and cells in a stack, are addresses here; nothing is checked. */
final class Native {
    static {
        Loader.load();
        start(Upcall.class);
    }

    private static native void start(Class<?> upcalls);
    static native void call(long call, long self, long stack, int frame, int count);
    static native long makeFunction(Object body, byte[] name);
    static native long global(byte[] name);
    static native void setGlobal(byte[] name, long function, boolean override);
    static native byte[] functionInfo(long function, long[] callSelfFlags);

    static native long text(long cell, byte[] bytes, int type, boolean plain);
    static native byte[] bytes(long object);
    static native byte[] words(long object);
    static native int parseDType(byte[] name);
    static native byte[] nameDType(int bits);

    static native void retain(long object);
    static native void release(long object);
    static native void own(long cell);
    static native byte[] typeKey(int type);
    static native int typeIndex(byte[] key);
    static native boolean member(long object, byte[] name, int what, long cell);
    static native byte[] fieldNames(int type);

    static native long make(int type, long cells, int count);
    static native long splice(long object, long start, long removed, long cells, int count);
    static native long size(long object);
    static native boolean item(long object, long i, long cell);
    static native long pair(long map, long after, long cells);
    static native boolean lookUp(long map, long cell, boolean erase);
    static native long makeShape(long[] extents);
    static native long[] shape(long object);

    static native long allocate(long[] shape, int dtype, long device);
    static native long wrap(Buffer buffer, long offset, long[] shape, int dtype, boolean readOnly);
    static native long reshape(long tensor, long[] shape, long firstByte);
    static native long[] tensorInfo(long tensor);
    static native long address(Buffer buffer);
    static native ByteBuffer buffer(long address, long nbytes);
    static native void copy(long from, long to);
    static native long copyView(long view);
    static native void returnView(long copy, long view);

    private Native() {}
}
