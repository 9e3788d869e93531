// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.Arrays;

/** Memory of a session. Functions of the same session take it as an argument. It is freed by close(), or by garbage collection. */
public final class RemoteTensor extends PortcallObject {
    RemoteTensor(long object, int type) { super(object, type); }

    private static PackedFunc rpc(String name) { return Portcall.get("portcall.rpc." + name); }

    /** The extents. */
    public long[] shape() { return rpc("TensorShape").callAs(Shape.class, this).toArray(); }

    /** The type of the elements. */
    public DType dtype() { return rpc("TensorDtype").callAs(DType.class, this); }

    /** Sends all elements: of a tensor of the same shape and type, or of an array of so many. */
    public void copyFrom(Object source) {
        if (source instanceof RemoteTensor other) {
            rpc("CopyAmong").call(other, this);
        } else if (source instanceof Tensor local) {
            rpc("CopyTo").call(this, local);
        } else {
            try (Tensor local = Tensor.empty(dtype(), shape())) {
                local.copyFrom(source);
                rpc("CopyTo").call(this, local);
            }
        }
    }

    /** Fetches all elements into a tensor or an array. */
    public void copyTo(Object target) {
        if (target instanceof Tensor local) {
            rpc("CopyFrom").call(this, local);
        } else {
            try (Tensor local = toTensor()) {
                local.copyTo(target);
            }
        }
    }

    /** A copy here. */
    public Tensor toTensor() {
        Tensor local = Tensor.empty(dtype(), shape());
        rpc("CopyFrom").call(this, local);
        return local;
    }

    /** Its elements, fetched. */
    public float[] toFloatArray() {
        try (Tensor local = toTensor()) {
            return local.toFloatArray();
        }
    }

    /** A part of the same memory, or all of it, in another shape. */
    public RemoteTensor view(DType dtype, long firstByte, long... shape) {
        return rpc("View").callAs(RemoteTensor.class, this, Shape.of(shape), dtype, firstByte);
    }

    @Override
    public String toString() {
        return handle.isClosed() ? "RemoteTensor, closed" : "RemoteTensor " + dtype() + Arrays.toString(shape());
    }
}
