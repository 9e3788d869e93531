// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.Arrays;
import java.util.List;

/** Extents of a tensor as a value: {@code ffi.Shape} of the core. */
public final class Shape {
    private final long[] extents;

    private Shape(long[] extents) { this.extents = extents; }

    /** A shape of these extents. */
    public static Shape of(long... extents) { return new Shape(extents.clone()); }

    /** The number of dimensions. */
    public int size() { return extents.length; }

    /** One extent. */
    public long get(int i) { return extents[i]; }

    /** All extents. */
    public long[] toArray() { return extents.clone(); }

    /** All extents, as a list. */
    public List<Long> toList() { return Arrays.stream(extents).boxed().toList(); }

    @Override
    public boolean equals(Object other) {
        return other instanceof Shape shape && Arrays.equals(extents, shape.extents);
    }

    @Override public int hashCode() { return Arrays.hashCode(extents); }

    @Override public String toString() { return "Shape" + Arrays.toString(extents); }
}
