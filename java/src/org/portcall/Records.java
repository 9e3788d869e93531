// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.RecordComponent;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Records as objects of described types, and as maps by the names of their components. */
final class Records {
    private static final Map<Class<?>, String> KEYS = new ConcurrentHashMap<>();

    static void bind(Class<? extends Record> type, String key) {
        Native.typeIndex(key.getBytes(java.nio.charset.StandardCharsets.UTF_8)); // an error for one that is not known
        KEYS.put(type, key);
    }

    static int put(Stack stack, int at, int end, Record record) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (RecordComponent each : record.getClass().getRecordComponents()) fields.put(each.getName(), read(record, each));
        String key = KEYS.get(record.getClass());
        if (key == null) return Values.put(stack, at, end, fields, 0);
        int cell = PortcallObject.create(stack, end, key, fields);
        return Values.put(stack, at, stack.type(cell), stack.payload(cell), end);
    }

    private static Object read(Record record, RecordComponent component) {
        try {
            component.getAccessor().setAccessible(true);
            return component.getAccessor().invoke(record);
        } catch (InvocationTargetException error) {
            throw rethrown(error);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("cannot read the record " + record.getClass().getName(), error);
        }
    }

    private static RuntimeException rethrown(InvocationTargetException error) {
        if (error.getCause() instanceof RuntimeException cause) return cause;
        if (error.getCause() instanceof Error cause) throw cause;
        return new IllegalArgumentException(error.getCause());
    }

    /** A record of a map or an object; null where it is neither. */
    static Object make(Object value, Class<?> type) {
        Map<Object, Object> fields = new HashMap<>();
        RecordComponent[] components = type.getRecordComponents();
        if (value instanceof PortcallDict dict) fields.putAll(dict.toMap());
        else if (value instanceof Map<?, ?> map) fields.putAll(map);
        else if (value instanceof PortcallObject object) for (RecordComponent each : components) fields.put(each.getName(), object.get(each.getName()));
        else return null;
        Class<?>[] types = new Class<?>[components.length];
        Object[] values = new Object[components.length];
        for (int i = 0; i < types.length; ++i) {
            types[i] = components[i].getType();
            values[i] = Convert.to(fields.get(components[i].getName()), types[i], type.getSimpleName() + "." + components[i].getName(), -1);
        }
        try {
            Constructor<?> constructor = type.getDeclaredConstructor(types);
            constructor.setAccessible(true);
            return constructor.newInstance(values);
        } catch (InvocationTargetException error) {
            throw rethrown(error);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("cannot make the record " + type.getName(), error);
        }
    }

    private Records() {}
}
