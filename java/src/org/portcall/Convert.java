// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;
import java.util.Map;

/** Values of the core as the types of Java's functions and records have them. */
final class Convert {
    /** The value as one of the type. The function and the position, -1 for the result, are for the error. */
    static Object to(Object value, Class<?> type, String function, int position) {
        Object made = value instanceof Number ? number(value, type) : other(value, type);
        if (made != null || (value == null && !type.isPrimitive()) || type == void.class) return made;
        throw new ArgumentException(function, position, nameOf(type), describe(value));
    }

    /** The bits of a number in a cell, as one of a type: INT or FLOAT. */
    static long bits(Stack stack, int cell, int type, boolean owned, String function, int position) {
        if (stack.type(cell) == type) return stack.payload(cell);
        Object value = Values.take(stack, cell, owned);
        if (type == Values.INT) return (Long) to(value, long.class, function, position);
        return Double.doubleToRawLongBits((Double) to(value, double.class, function, position));
    }

    /** Null where it does not fit. */
    private static Object number(Object value, Class<?> type) {
        if (value instanceof Long number) {
            long n = number;
            if (type == long.class || type == Long.class) return number;
            if (type == double.class || type == Double.class) return (double) n;
            if (type == float.class || type == Float.class) return (float) n;
            if (type == int.class || type == Integer.class) return n == (int) n ? (Object) (int) n : null;
            if (type == short.class || type == Short.class) return n == (short) n ? (Object) (short) n : null;
            if (type == byte.class || type == Byte.class) return n == (byte) n ? (Object) (byte) n : null;
            if (type == java.math.BigInteger.class) return java.math.BigInteger.valueOf(n);
        } else if (value instanceof Double number) {
            if (type == double.class) return number;
            if (type == float.class || type == Float.class) return number.floatValue();
        }
        return type.isInstance(value) ? value : null;
    }

    private static Object other(Object value, Class<?> type) {
        if (value == null) return null;
        if (type.isInstance(value) || (value instanceof Boolean && type == boolean.class)) return value;
        if (type.isArray() && type.getComponentType().isPrimitive()) return array(value, type);
        if (type.isRecord()) return Records.make(value, type);
        if (value instanceof PackedFunc function && Typed.isFunctional(type)) return function.as(type);
        if (value instanceof PortcallList list && type == List.class) return list.toList();
        if (value instanceof PortcallDict dict && type == Map.class) return dict.toMap();
        return null;
    }

    private static Object array(Object value, Class<?> type) {
        if (value instanceof Tensor tensor && Numbers.dtypeOf(java.lang.reflect.Array.newInstance(type.getComponentType(), 0)).equals(tensor.dtype())) {
            Object made = java.lang.reflect.Array.newInstance(type.getComponentType(), tensor.length());
            tensor.copyTo(made);
            return made;
        }
        return value instanceof Shape shape && type == long[].class ? shape.toArray() : null;
    }

    private static String nameOf(Class<?> type) {
        return type.isRecord() ? "a map or an object with the fields of " + type.getSimpleName() : type.getSimpleName();
    }

    static String describe(Object value) {
        if (value == null) return "None";
        if (value instanceof Number || value instanceof Boolean) return value.getClass().getSimpleName() + " " + value;
        if (value instanceof PortcallObject object) return object.typeKey();
        return value instanceof List ? "a list" : value instanceof Map ? "a map" : value.getClass().getSimpleName();
    }

    private Convert() {}
}
