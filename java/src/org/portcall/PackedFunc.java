// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.ref.Reference;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;

/**
 * A function of any language: of the core, of a library, of a session, of Java. There is nothing to close: it holds little, and
 * goes with garbage collection. Any number of threads may call it.
 */
public final class PackedFunc {
    /** A function of Java. Arguments are read from {@code args}, during the call only. */
    @FunctionalInterface
    public interface Body {
        /** Returns a value as {@link PackedFunc#call} takes it, or null. */
        Object call(Args args) throws Throwable;
    }

    private static final int LIBRARY = 2, MOST_ARGUMENTS = 1000;
    final Handle handle;
    private final Handle.Watch watch;
    private final long call, self;
    private final int flags;
    private final String name;

    PackedFunc(long address) {
        handle = new Handle(address);
        watch = new Handle.Watch(this, handle);
        long[] info = new long[3];
        byte[] bytes = Native.functionInfo(address, info);
        name = bytes == null ? "" : new String(bytes, UTF_8);
        call = info[0];
        self = info[1];
        flags = (int) info[2] & (LIBRARY | Values.GENERATED);
    }

    /** A function of Java for the core. */
    public static PackedFunc of(Body body) { return named(null, body); }

    /**
     * A function from one of a functional interface: arguments and result are checked and converted by the types of its method.
     * Those of {@code LongBinaryOperator} and the like are not boxed.
     */
    public static <T> PackedFunc of(Class<T> type, T function) {
        return named(null, Typed.body(type, Objects.requireNonNull(function, "the function")));
    }

    static PackedFunc named(String name, Object body) {
        byte[] bytes = name == null ? null : Values.utf8(name);
        return new PackedFunc(Native.makeFunction(Objects.requireNonNull(body, "the function"), bytes));
    }

    /** This function as one of a functional interface. */
    public <T> T as(Class<T> type) { return type.cast(Typed.view(type, this)); }

    /** Its name; empty where it has none. */
    public String name() { return name; }

    /**
     * Calls the function. Arguments are null, numbers, texts, byte[], arrays of numbers (copied in and out), direct buffers (used
     * in place), lists, maps, records, lambdas, DType, Device, Shape, and objects of portcall.
     * @return null, Long, Double, Boolean, String, byte[], DType, Device, Shape, BigInteger, List, Map, or an object of portcall
     * @throws PortcallException the function failed; an unchecked exception of Java that went through it is thrown as it is
     */
    public Object call(Object... args) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count;
        try {
            put(stack, frame, mark, args);
            run(stack, frame, args.length);
            return Values.take(stack, frame, true);
        } finally {
            stack.leave(frame, mark);
            Reference.reachabilityFence(this);
        }
    }

    /** Calls it for a whole number. */
    public long callLong(Object... args) { return callAs(long.class, args); }

    /** Calls it for a number. */
    public double callDouble(Object... args) { return callAs(double.class, args); }

    /** Calls it for text. */
    public String callString(Object... args) { return callAs(String.class, args); }

    /** Calls it for a tensor. */
    public Tensor callTensor(Object... args) { return callAs(Tensor.class, args); }

    /** Calls it for a module. */
    public Module callModule(Object... args) { return callAs(Module.class, args); }

    /** Calls it for an object. */
    public PortcallObject callObject(Object... args) { return callAs(PortcallObject.class, args); }

    /** Calls it for a function. */
    public PackedFunc callFunction(Object... args) { return callAs(PackedFunc.class, args); }

    /**
     * Calls it for a value of a class.
     * @throws ArgumentException the result is of another type
     */
    @SuppressWarnings("unchecked")
    public <T> T callAs(Class<T> type, Object... args) {
        return (T) Convert.to(call(args), type, name.isEmpty() ? "the result" : "the result of " + name, -1);
    }

    /**
     * Begins a call. One of a session is sent at once, and others may follow before its result comes; arguments that are arrays of
     * this process, and functions of this process, run in a thread of their own.
     */
    public CompletableFuture<Object> callAsync(Object... args) { return Futures.start(this, args); }

    /** The same function of a session with a time for each call. */
    public PackedFunc withTimeout(double seconds) {
        return Portcall.get("portcall.rpc.WithTimeout").callFunction(this, seconds);
    }

    private void put(Stack stack, int frame, int mark, Object[] args) {
        int n = args.length, at = frame + Stack.CELL, end = at + Stack.CELL * n;
        if (n > MOST_ARGUMENTS) throw new IllegalArgumentException(n + " arguments; a call takes at most " + MOST_ARGUMENTS);
        if (end + 2 * Stack.RESERVED > Stack.BYTES) throw Stack.tooDeep();
        for (int i = 0; i < n; ++i, at += Stack.CELL) {
            Object value = args[i];
            if ((flags & LIBRARY) != 0 && value instanceof Tensor tensor && tensor.isMisplaced()) {
                stack.top(end + 15 & ~15);
                value = Aligned.of(tensor, stack, mark);
            }
            end = Values.put(stack, at, end, value, flags);
        }
        stack.top(end + 15 & ~15);
    }

    private void run(Stack stack, int frame, int n) { Native.call(call, self, stack.address, frame, n); }

    /** Calls it with one or two numbers of a type, for one of that: by their bits, and nothing is boxed. */
    long callBits(int type, int n, long a, long b) {
        Stack stack = Stack.get();
        int frame = stack.top(), mark = stack.count, end = frame + Stack.CELL * (n + 1);
        if (end + Stack.RESERVED > Stack.BYTES) throw Stack.tooDeep();
        try {
            stack.top(end);
            stack.set(frame + Stack.CELL, type, a);
            if (n > 1) stack.set(frame + 2 * Stack.CELL, type, b);
            run(stack, frame, n);
            return Convert.bits(stack, frame, type, true, name, -1);
        } finally {
            stack.leave(frame, mark);
            Reference.reachabilityFence(this);
        }
    }

    /** Gives it back before it is collected: of an object that is closed. */
    void release() { watch.end(); }

    @Override public String toString() { return "PackedFunc" + (name.isEmpty() ? "" : " " + name); }
}
