// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** A compiled model: y = relu(x @ w), for the graph executor and for the virtual machine; Python's results bit by bit. */
class ModelTest {
    private static final float[] INPUT = {0.5f, -1, 2, 0.25f, -3, 4, 1e-3f, 7};
    private static Path graph, machine;
    private static float[] expected;

    @BeforeAll
    static void compile() throws Exception {
        Path folder = Support.FOLDER;
        Path program = Files.writeString(folder.resolve("model.py"), """
                import subprocess, sys
                import numpy as np, onnx, portcall
                from onnx import TensorProto, helper, numpy_helper
                from portcall import graph
                folder = sys.argv[1]
                w = (np.random.default_rng(1).random((4, 3)) - 0.5).astype("float32")
                value = helper.make_tensor_value_info
                g = helper.make_graph(
                    [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])], "g",
                    [value("x", TensorProto.FLOAT, [2, 4])], [value("y", TensorProto.FLOAT, [2, 3])], [numpy_helper.from_array(w, "w")])
                onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), f"{folder}/m.onnx")
                for words in (["-o", f"{folder}/m.so"], ["-o", f"{folder}/vm.so", "--runtime", "vm"]):
                    subprocess.run([sys.executable, "-m", "portcall", "compile", f"{folder}/m.onnx", *words], check=True)
                m = graph.GraphModule(portcall.load_module(f"{folder}/m.so")["default"](portcall.cpu(0)))
                m.run(x=np.array([%s], "float32").reshape(2, 4))
                m.get_output(0).numpy().tofile(f"{folder}/expected")
                """.formatted(java.util.Arrays.toString(INPUT).replaceAll("[\\[\\]]", "")));
        Support.run(Support.python(), program.toString(), folder.toString());
        graph = folder.resolve("m.so");
        machine = folder.resolve("vm.so");
        expected = new float[6];
        ByteBuffer.wrap(Files.readAllBytes(folder.resolve("expected"))).order(ByteOrder.nativeOrder()).asFloatBuffer().get(expected);
    }

    @Test
    void graphsRun() {
        try (GraphModel model = GraphModel.load(graph, Device.CPU); Tensor x = Tensor.of(INPUT, 2, 4)) {
            assertEquals(List.of("x"), model.inputNames());
            assertEquals(List.of("y"), model.outputNames());
            assertArrayEquals(expected, model.run(Map.of("x", x)).get("y").toFloatArray());
            model.setInput("x", Tensor.of(new float[8], 2, 4));
            model.run();
            try (Tensor y = (Tensor) model.output(0)) {
                assertArrayEquals(new float[6], y.toFloatArray());
            }
            assertEquals(1, model.outputs());
            assertThrows(PortcallException.class, () -> model.setInput("z", x));
            assertThrows(PortcallException.class, () -> model.setInput("x", new float[7]));
            assertThrows(PortcallException.class, () -> model.output(1));
            assertEquals(2, model.module().timeEvaluator("run", Device.CPU).number(2).repeat(2).run().seconds().length);
            model.close();
            assertThrows(IllegalStateException.class, () -> model.run());
            assertThrows(IllegalStateException.class, () -> model.setInput("x", x));
        }
        assertThrows(ModuleLoadException.class, () -> GraphModel.load(Path.of("nonesuch.so"), Device.CPU));
        assertThrows(FunctionNotFoundException.class, () -> GraphModel.of(Support.kernels(), Device.CPU));
    }

    @Test
    void machinesRun() {
        try (Vm vm = Vm.load(machine, Device.CPU); Tensor x = Tensor.of(INPUT, 2, 4)) {
            Object result = vm.call("main", x);
            Tensor y = (Tensor) (result instanceof List<?> list ? list.get(0) : result);
            float[] got = y.toFloatArray();
            for (int i = 0; i < 6; ++i) assertEquals(expected[i], got[i], 1e-6);
            assertThrows(FunctionNotFoundException.class, () -> vm.call("nothing"));
            assertThrows(PortcallException.class, () -> vm.call("main", 1));
        }
        assertThrows(FunctionNotFoundException.class, () -> Vm.of(Support.kernels(), Device.CPU));
    }

    @Test
    void bothRunInASession() throws Exception {
        try (Support.Server server = new Support.Server(); Session session = Session.connect(server.address)) {
            session.upload(graph);
            session.upload(machine);
            try (GraphModel model = GraphModel.of(session.loadModule("m.so"), session.cpu())) {
                assertArrayEquals(expected, model.run(Map.of("x", Tensor.of(INPUT, 2, 4))).get("y").toFloatArray());
            }
            try (Vm vm = Vm.of(session.loadModule("vm.so"), session.cpu()); Tensor x = Tensor.of(INPUT, 2, 4); RemoteTensor there = session.tensor(x)) {
                Object y = vm.call("main", there);
                assertEquals(expected[0], ((RemoteTensor) y).toFloatArray()[0], 1e-6);
            }
        }
    }
}
