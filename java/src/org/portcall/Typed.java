// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.lang.Double.doubleToRawLongBits;
import static java.lang.Double.longBitsToDouble;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;
import java.util.function.LongBinaryOperator;
import java.util.function.LongUnaryOperator;

/** Functional interfaces as types of functions, both ways. Those of numbers box nothing. */
final class Typed {
    private static final ClassValue<Method> METHODS = new ClassValue<>() {
        @Override protected Method computeValue(Class<?> type) { return find(type); }
    };

    /** The one abstract method of an interface; null where there is not one. */
    private static Method find(Class<?> type) {
        List<Method> found = new ArrayList<>();
        for (Method each : type.isInterface() ? type.getMethods() : new Method[0]) {
            if (Modifier.isAbstract(each.getModifiers()) && !isOfObject(each) && !overridden(each, found)) found.add(each);
        }
        if (found.size() != 1) return null;
        found.get(0).trySetAccessible();
        return found.get(0);
    }

    private static boolean isOfObject(Method method) { // as Comparator has equals
        try {
            return Modifier.isPublic(Object.class.getMethod(method.getName(), method.getParameterTypes()).getModifiers());
        } catch (NoSuchMethodException other) {
            return false;
        }
    }

    private static boolean overridden(Method method, List<Method> found) { // the same with a wider result
        return found.stream().anyMatch(other -> other.getName().equals(method.getName())
                && java.util.Arrays.equals(other.getParameterTypes(), method.getParameterTypes()));
    }

    static boolean isFunctional(Class<?> type) { return METHODS.get(type) != null; }

    private static Method methodOf(Class<?> type) {
        Method method = METHODS.get(type);
        if (method != null) return method;
        throw new IllegalArgumentException(type.getName() + " is not a functional interface: it needs one abstract method");
    }

    // ---- Java functions for the core ----

    /** What the core calls for a function of an interface: an Upcall.Direct or a PackedFunc.Body. */
    static Object body(Class<?> type, Object function) {
        if (function instanceof PackedFunc.Body body) return body;
        if (function instanceof LongBinaryOperator f) return direct(Values.INT, 2, f);
        if (function instanceof LongUnaryOperator f) return direct(Values.INT, 1, (a, b) -> f.applyAsLong(a));
        if (function instanceof DoubleBinaryOperator f) {
            return direct(Values.FLOAT, 2, (a, b) -> doubleToRawLongBits(f.applyAsDouble(longBitsToDouble(a), longBitsToDouble(b))));
        }
        if (function instanceof DoubleUnaryOperator f) {
            return direct(Values.FLOAT, 1, (a, b) -> doubleToRawLongBits(f.applyAsDouble(longBitsToDouble(a))));
        }
        return reflected(methodOf(type), function);
    }

    private static PackedFunc.Body reflected(Method method, Object function) {
        Class<?>[] types = method.getParameterTypes();
        return args -> {
            Object[] values = new Object[types.length];
            Args.checkCount(types.length, args.size());
            for (int i = 0; i < types.length; ++i) values[i] = Convert.to(args.get(i), types[i], "", i);
            try {
                return method.invoke(function, values);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        };
    }

    /** A function of the bits of one or two numbers. */
    private static Upcall.Direct direct(int type, int expected, LongBinaryOperator function) {
        return (stack, frame, count) -> {
            Args.checkCount(expected, count);
            long a = Convert.bits(stack, frame + Stack.CELL, type, false, "", 0);
            long b = expected == 1 ? 0 : Convert.bits(stack, frame + 2 * Stack.CELL, type, false, "", 1);
            stack.set(frame, type, function.applyAsLong(a, b));
        };
    }

    // ---- Functions of the core for Java ----

    static Object view(Class<?> type, PackedFunc f) {
        if (type == LongBinaryOperator.class) return (LongBinaryOperator) (a, b) -> f.callBits(Values.INT, 2, a, b);
        if (type == LongUnaryOperator.class) return (LongUnaryOperator) a -> f.callBits(Values.INT, 1, a, 0);
        if (type == DoubleBinaryOperator.class) {
            return (DoubleBinaryOperator) (a, b) -> longBitsToDouble(f.callBits(Values.FLOAT, 2, doubleToRawLongBits(a), doubleToRawLongBits(b)));
        }
        if (type == DoubleUnaryOperator.class) {
            return (DoubleUnaryOperator) a -> longBitsToDouble(f.callBits(Values.FLOAT, 1, doubleToRawLongBits(a), 0));
        }
        Method method = methodOf(type);
        Class<?> result = method.getReturnType();
        InvocationHandler handler = (proxy, called, args) -> {
            if (called.getDeclaringClass() == Object.class) {
                switch (called.getName()) {
                    case "equals": return proxy == args[0];
                    case "hashCode": return System.identityHashCode(proxy);
                    default: return f.toString();
                }
            }
            if (called.isDefault()) return InvocationHandler.invokeDefault(proxy, called, args);
            return Convert.to(f.call(args == null ? new Object[0] : args), result, f.name(), -1);
        };
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler);
    }

    private Typed() {}
}
