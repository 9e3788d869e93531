// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/**
 * A copy of a tensor for compiled code, which needs compact memory at 64 bytes that it may write to: one for a call, however often
 * the tensor is passed. What is written to it comes back when the call is over.
 */
final class Aligned extends Handle {
    private final Handle original;
    private final Tensor copy;
    private final boolean back;

    private Aligned(Tensor tensor, Tensor copy) {
        super(tensor.handle.address);
        original = tensor.handle;
        this.copy = copy;
        back = !tensor.isReadOnly();
    }

    static Tensor of(Tensor tensor, Stack stack, int mark) {
        if (stack.find(tensor.handle, mark) instanceof Aligned before) return before.copy;
        long from = tensor.handle.use();
        Tensor copy = null;
        try {
            copy = Tensor.empty(tensor.dtype(), tensor.shape());
            Native.copy(from, copy.handle.address);
        } catch (RuntimeException | Error failed) {
            tensor.handle.done();
            if (copy != null) copy.close();
            throw failed;
        }
        stack.hold(new Aligned(tensor, copy));
        return copy;
    }

    @Override
    void done() {
        try {
            if (back) Native.copy(copy.handle.address, original.address);
        } finally {
            original.done();
            copy.close();
        }
    }
}
