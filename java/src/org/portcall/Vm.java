// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.file.Path;

/** A virtual machine with the functions of a compiled model of Relax. */
public final class Vm implements AutoCloseable {
    private static final int POOLED = 2; // kind of allocator
    private final Module machine;

    private Vm(Module machine) { this.machine = machine; }

    /** Loads a library with an executable inside. */
    public static Vm load(Path library, Device device) {
        try (Module module = Module.load(library)) {
            return of(module, device);
        }
    }

    /** A machine for a library that was loaded. */
    public static Vm of(Module library, Device device) {
        Module machine = library.function("vm_load_executable").callModule();
        PackedFunc initialize = machine.function("vm_initialization");
        if (device.type() == Device.CPU.type()) initialize.call(device.type(), device.id(), POOLED);
        else initialize.call(device.type(), device.id(), POOLED, Device.CPU.type(), 0, POOLED);
        return new Vm(machine);
    }

    /** The same in a session, on a device that {@link Session#device} gave. */
    public static Vm of(Module library, PortcallObject device) { return of(library, Session.partsOf(device)); }

    /** A function of the model, such as "main". */
    public PackedFunc function(String name) { return machine.function(name); }

    /** Calls a function. Tensors, numbers, Shapes and lists of them go in, and come out. */
    public Object call(String name, Object... args) { return function(name).call(args); }

    /** The machine as a module. */
    public Module module() { return machine; }

    @Override public void close() { machine.close(); }
}
