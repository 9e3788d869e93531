// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;
import java.util.Objects;

/** The functions of this process by name, for Java and for all other languages in it. */
public final class Portcall {
    private static final PackedFunc NAMES = get("portcall.ListGlobalNames"), REMOVE = get("ffi.FunctionRemoveGlobal");

    /**
     * A function by its name.
     * @throws FunctionNotFoundException there is none
     */
    public static PackedFunc get(String name) {
        PackedFunc found = find(name);
        if (found != null) return found;
        throw new FunctionNotFoundException("FunctionNotFoundError", "no function is registered as '" + name + "'", "", null);
    }

    /** A function by its name; null where there is none. */
    public static PackedFunc find(String name) {
        long found = Native.global(Values.utf8(name));
        return found == 0 ? null : new PackedFunc(found);
    }

    /** Registers a function of Java, in the place of one that has the name. Arguments come as they are. */
    public static void register(String name, PackedFunc.Body body) { register(name, PackedFunc.named(name, body)); }

    /** Registers a function of a functional interface, whose types check and convert the arguments. */
    public static <T> void register(String name, Class<T> type, T function) {
        register(name, PackedFunc.named(name, Typed.body(type, Objects.requireNonNull(function, "the function"))));
    }

    /** Registers a function, in the place of one that has the name. */
    public static void register(String name, PackedFunc function) {
        if (name.isEmpty()) throw new IllegalArgumentException("a function is registered by a name, got \"\"");
        byte[] bytes = Values.utf8(name);
        function.handle.with(address -> {
            Native.setGlobal(bytes, address, true);
            return null;
        });
    }

    /** Removes a name; whether it was there. */
    public static boolean remove(String name) { return REMOVE.callAs(boolean.class, name); }

    /** The names of all functions. */
    public static List<String> names() {
        return ((List<?>) NAMES.call()).stream().map(Object::toString).sorted().toList();
    }

    /**
     * Passes records of a class as objects of a described type, by the names of their components, instead of as maps.
     * @throws PortcallException there is no such type: the library that describes it is to be loaded first
     */
    public static void bind(Class<? extends Record> record, String typeKey) {
        Records.bind(record, typeKey);
    }

    private Portcall() {}
}
