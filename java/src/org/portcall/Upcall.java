// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** What java/jni calls. */
final class Upcall {
    /** A function that reads and writes cells itself: the result is owned by the core. */
    interface Direct {
        void run(Stack stack, int frame, int count) throws Throwable;
    }

    /** Runs a function of Java on the frame that C wrote; its result becomes the first cell. False: there is none. */
    static boolean run(Object body, int frame, int count) throws Throwable {
        Stack stack = Stack.get();
        if (body instanceof Direct direct) {
            direct.run(stack, frame, count);
            return true;
        }
        int mark = stack.count;
        Args args = new Args(stack, frame, count);
        try {
            Object result = ((PackedFunc.Body) body).call(args);
            args.giveBack();
            if (result == null) return false;
            Values.put(stack, frame, stack.top(), result, Values.NESTED);
            int type = stack.type(frame);
            if (type > Values.DEVICE && type != Values.SMALL_TEXT && type != Values.SMALL_BYTES) {
                Native.own(stack.address + frame);
            }
            return true;
        } finally {
            args.end();
            if (stack.count != mark) stack.drop(mark);
        }
    }

    static long makeStack() { return Stack.get().address; }

    static byte[][] describe(Throwable thrown) { return Errors.describe(thrown); }

    static Throwable makeException(byte[] kind, byte[] message, byte[] trace, Throwable original, long facts) {
        return Errors.make(kind, message, trace, original, facts);
    }

    private Upcall() {}
}
