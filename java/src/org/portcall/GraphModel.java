// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A compiled model that is a graph, with memory for one run at a time. */
public final class GraphModel implements AutoCloseable {
    private final Module executor;
    private final PackedFunc setInput, run, getOutput, outputCount;

    private GraphModel(Module executor) {
        this.executor = executor;
        setInput = executor.function("set_input");
        run = executor.function("run");
        getOutput = executor.function("get_output");
        outputCount = executor.function("get_num_outputs");
    }

    /**
     * Loads a library with its graph and parameters inside, such as {@code portcall compile} writes, and makes an executor.
     * @throws ModuleLoadException it is no such library
     */
    public static GraphModel load(Path library, Device device) {
        try (Module module = Module.load(library)) {
            return of(module, device);
        }
    }

    /** An executor of a library that was loaded, on a device. */
    public static GraphModel of(Module library, Device device) { return make(library, device); }

    /** An executor of a library of a session, on a device that {@link Session#device} gave. */
    public static GraphModel of(Module library, PortcallObject device) { return make(library, device); }

    private static GraphModel make(Module library, Object device) {
        return new GraphModel(library.function("default").callModule(device));
    }

    /** A call during which the function stays, also while another thread closes the model. */
    private static <T> T call(PackedFunc function, Class<T> type, Object... args) {
        return function.handle.with(used -> function.callAs(type, args));
    }

    /** Copies a tensor, an array or a direct buffer to an input. */
    public void setInput(String name, Object value) { call(setInput, void.class, name, value); }

    /** Runs it with the inputs that were set. */
    public void run() { call(run, void.class); }

    /** An output of the last run, in memory that the next run writes to again. In a session it is a RemoteTensor. */
    public PortcallObject output(int i) { return call(getOutput, PortcallObject.class, i); }

    /** The number of outputs. */
    public int outputs() { return call(outputCount, Integer.class); }

    /** The names of the inputs that are not parameters, in their order. */
    public List<String> inputNames() { return names("get_input_info"); }

    /** The names of the outputs, in their order. */
    public List<String> outputNames() { return names("get_output_info"); }

    private List<String> names(String function) { // [shape: [name: ...], dtype: [name: ...]]
        Map<?, ?> info = executor.function(function).callAs(Map.class);
        return ((Map<?, ?>) info.get("shape")).keySet().stream().map(Object::toString).toList();
    }

    /** Sets inputs, runs, and returns copies of all outputs by their names, in their order. */
    public Map<String, Tensor> run(Map<String, ?> inputs) {
        inputs.forEach(this::setInput);
        run();
        Map<String, Tensor> results = new LinkedHashMap<>();
        int i = 0;
        for (String name : outputNames()) {
            try (PortcallObject output = output(i++)) {
                results.put(name, output instanceof RemoteTensor remote ? remote.toTensor() : ((Tensor) output).copy());
            }
        }
        return results;
    }

    /** The executor as a module, with all functions that docs/graph.md lists. */
    public Module module() { return executor; }

    /** Gives the memory of the model back. */
    @Override
    public void close() {
        for (PackedFunc each : new PackedFunc[] {setInput, run, getOutput, outputCount}) each.release();
        executor.close();
    }
}
