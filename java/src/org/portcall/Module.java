// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.file.Path;
import java.util.List;

/** Functions by name: of a compiled library, of a model, of a session. Its functions keep a library alive after close(). */
public final class Module extends PortcallObject {
    private static final PackedFunc LOAD = Portcall.get("ffi.ModuleLoadFromFile"), GET = Portcall.get("ffi.ModuleGetFunction"),
            IMPORT = Portcall.get("ffi.ModuleImportModule"), IMPORTS = Portcall.get("ffi.ModuleImports"),
            NAMES = Portcall.get("portcall.ModuleFunctionNames"), KIND = Portcall.get("ffi.ModuleGetKind"),
            ENTRY = Portcall.get("portcall.ModuleEntryName");

    Module(long object) { super(object, Values.MODULE); }

    /**
     * Loads a shared library that TVM, a kernel compiler, or portcall's headers made.
     * @throws ModuleLoadException the file is missing, or is no such library; the message says why
     */
    public static Module load(Path path) { return LOAD.callModule(path.toString()); }

    /**
     * A function of the module, or of what it imports.
     * @throws FunctionNotFoundException there is none of that name
     */
    public PackedFunc function(String name) {
        PackedFunc found = find(name);
        if (found != null) return found;
        throw new FunctionNotFoundException("FunctionNotFoundError", "the module has no function '" + name + "'; it has " + names(), "", null);
    }

    /** The same as {@link #function}: a module has functions where objects have fields. */
    @Override public PackedFunc get(String name) { return function(name); }

    /** A function; null where there is none of that name. */
    public PackedFunc find(String name) { return (PackedFunc) GET.call(this, name, true); }

    /** The entry function. */
    public PackedFunc main() { return function(ENTRY.callString(this)); }

    /** The names of its functions; empty where they are not known. */
    public List<String> names() { return ((List<?>) NAMES.call(this)).stream().map(Object::toString).toList(); }

    /** Its kind, such as "library", "rpc" or "GraphExecutor". */
    public String kind() { return KIND.callString(this); }

    /** Lets compiled code of this module find the functions of another. */
    public void importModule(Module other) { IMPORT.call(this, other); }

    /** The modules that this one looks for functions in. */
    @SuppressWarnings("unchecked")
    public List<Module> imports() { return (List<Module>) IMPORTS.callAs(List.class, this); }

    /** Measures a function on a device: of this process, or, for a module of a session, of that. */
    public Timing.Evaluator timeEvaluator(String name, Device device) {
        return new Timing.Evaluator(this, name, device);
    }

    /** The same on a device that {@link Session#device} gave. */
    public Timing.Evaluator timeEvaluator(String name, PortcallObject device) {
        return new Timing.Evaluator(this, name, Session.partsOf(device));
    }
}
