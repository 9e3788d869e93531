// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.nio.charset.StandardCharsets.UTF_8;

/** The type of elements of a tensor: code, bits and lanes of DLPack. {@code DType.of("float16")} gives any. */
public final class DType {
    public static final DType FLOAT32 = of(2, 32), FLOAT64 = of(2, 64), FLOAT16 = of(2, 16), BFLOAT16 = of(4, 16);
    public static final DType INT8 = of(0, 8), INT16 = of(0, 16), INT32 = of(0, 32), INT64 = of(0, 64);
    public static final DType UINT8 = of(1, 8), UINT16 = of(1, 16), UINT32 = of(1, 32), UINT64 = of(1, 64), BOOL = of(6, 8);

    private final int word; // code, bits, lanes: a byte, a byte and two bytes

    DType(int word) { this.word = word; }

    private static DType of(int code, int bits) { return new DType(code | bits << 8 | 1 << 16); }

    /**
     * The type of a name, such as "float32", "int8x4" or "bool".
     * @throws PortcallException there is no such type
     */
    public static DType of(String name) { return new DType(Native.parseDType(name.getBytes(UTF_8))); }

    int word() { return word; }

    /** The kind of DLPack: 0 int, 1 uint, 2 float, 3 handle, 4 bfloat, 5 complex, 6 bool, and others. */
    public int code() { return word & 0xff; }

    /** Bits of a lane. */
    public int bits() { return word >>> 8 & 0xff; }

    /** Lanes of an element: 1, but for vectors. */
    public int lanes() { return word >>> 16; }

    /** Bits of an element with all of its lanes. */
    int width() { return bits() * lanes(); }

    /** The bytes of so many elements. Those of less than a byte are packed. */
    long nbytes(long elements) {
        long bits = Math.multiplyExact(elements, (long) width());
        return bits / 8 + (bits % 8 == 0 ? 0 : 1);
    }

    @Override public boolean equals(Object other) { return other instanceof DType type && type.word == word; }

    @Override public int hashCode() { return word; }

    @Override public String toString() { return new String(Native.nameDType(word), US_ASCII); }
}
