// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.LongBinaryOperator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class ServingTest {
    interface Sum {
        double of(Tensor values);
    }

    @BeforeAll
    static void register() {
        Portcall.register("served.add", LongBinaryOperator.class, (a, b) -> a + b);
        Portcall.register("served.join", args -> args.asString(0) + args.asString(1));
        Portcall.register("served.apply", args -> args.asFunction(0).call(args.get(1)));
        Portcall.register("served.fail", args -> {
            throw new IndexOutOfBoundsException("no such place");
        });
        Portcall.register("served.sum", Sum.class, values -> {
            double all = 0;
            for (float value : values.toFloatArray()) all += value;
            return all;
        });
    }

    @AfterAll
    static void remove() {
        for (String name : List.of("add", "join", "apply", "fail", "sum")) Portcall.remove("served." + name);
    }

    @Test
    void servesClientsOfJava() {
        List<String> log = new CopyOnWriteArrayList<>();
        try (Serving serving = Serving.listen(Serving.options().key("java").token("a token long enough").log(log::add), "served.*")) {
            Session.Options options = Session.options().key("java").token("a token long enough");
            try (Session session = Session.connect("127.0.0.1:" + serving.port(), options)) {
                assertEquals(3, session.get("served.add").callLong(1, 2));
                assertEquals("ab", session.get("served.join").callString("a", "b"));
                assertEquals(42L, session.get("served.apply").call(PackedFunc.of(a -> a.asLong(0) + 1), 41));
                try (RemoteTensor values = session.tensor(new float[] {1, 2, 3})) {
                    assertEquals(6.0, session.get("served.sum").callDouble(values));
                }
                PortcallException failed = assertThrows(PortcallException.class, () -> session.get("served.fail").call());
                assertEquals("IndexError", failed.kind());
                assertThrows(PortcallException.class, () -> session.get("portcall.Version").call());
            }
            assertThrows(PortcallException.class, () -> Session.connect("127.0.0.1:" + serving.port(), Session.options().key("other").token("a token long enough")));
            assertThrows(AuthenticationException.class, () -> Session.connect("127.0.0.1:" + serving.port(), Session.options().key("java").token("another")));
        }
        assertTrue(log.stream().anyMatch(line -> line.contains("opened")), log::toString);
        assertTrue(log.stream().anyMatch(line -> line.contains("refused")), log::toString);
    }

    @Test
    void servesClientsOfPython() throws Exception {
        try (Serving serving = Serving.listen("served.*")) {
            String said = Support.run(Support.python(), "-c", """
                    import sys
                    import numpy as np
                    from portcall import rpc
                    with rpc.connect("127.0.0.1:" + sys.argv[1]) as remote:
                        assert remote["served.add"](1, 2) == 3
                        assert remote["served.join"]("größe ", "𝄞") == "größe 𝄞"
                        assert remote["served.apply"](lambda x: x * 2, 21) == 42
                        assert remote["served.sum"](remote.tensor(np.arange(5, dtype="float32"))) == 10.0
                        try:
                            remote["served.fail"]()
                        except IndexError as error:
                            print("caught", error)
                    """, Integer.toString(serving.port()));
            assertTrue(said.contains("caught"), said);
        }
    }

    @Test
    void servesClientsOfTvm() throws Exception {
        try (Serving serving = Serving.listen(Serving.options().key("java"), "served.*")) {
            Support.run(Support.python(), "-c", """
                    import sys
                    from tvm import rpc
                    remote = rpc.connect("127.0.0.1", int(sys.argv[1]), key="java")
                    assert remote.get_function("served.add")(1, 2) == 3
                    """, Integer.toString(serving.port()));
        }
    }

    @Test
    void servesClientsOfJavaScript() throws Exception {
        Path client = Support.ROOT.resolve("js/build/src/index.js"); // of make js
        try (Serving serving = Serving.listen("served.*")) {
            Path program = Support.FOLDER.resolve("client.mjs");
            Files.writeString(program, """
                    import { rpc } from "%s";
                    const remote = await rpc.connect("127.0.0.1:%d");
                    const add = await remote.getFunction("served.add");
                    const three = await add(1, 2);
                    remote.close();
                    process.exit(Number(three) === 3 ? 0 : 1);
                    """.formatted(client.toUri(), serving.port()));
            Support.run("node", program.toString());
        }
    }

    @Test
    void endsItsSessionsWhenItIsClosed() {
        Serving serving = Serving.listen("served.*");
        try (Session session = Session.connect("127.0.0.1:" + serving.port())) {
            assertEquals(3, session.get("served.add").callLong(1, 2));
            serving.close();
            assertThrows(PortcallException.class, () -> session.get("served.add").callLong(1, 2));
        }
        assertThrows(ConnectException.class, () -> Session.connect("127.0.0.1:" + serving.port()));
        serving.close();
    }

    @Test
    void eightThreadsUseWhatOneCloses() throws Exception {
        Portcall.register("served.items", args -> List.of(1, "two"));
        try (Serving serving = Serving.listen("served.*")) {
            for (int round = 0; round < 10; ++round) {
                Session session = Session.connect("127.0.0.1:" + serving.port());
                RemoteTensor remote = session.tensor(new float[] {1, 2, 3});
                PortcallList list = PortcallList.of(List.of(1, 2, 3));
                PortcallDict dict = PortcallDict.of(java.util.Map.of("a", 1));
                Module library = Module.load(Support.compile("java/test/kernels.c"));
                PackedFunc sum = session.get("served.sum");
                List<AutoCloseable> all = List.of(list, dict, library, remote, session);
                LifetimeTest.inThreads(8, id -> {
                    for (int i = 0; i < 200; ++i) {
                        if (i == 100 && id < all.size()) all.get(id).close();
                        if (i == 150) for (AutoCloseable each : all) each.close();
                        for (java.util.concurrent.Callable<?> use : List.<java.util.concurrent.Callable<?>>of(() -> list.get(1), () -> dict.getItem("a"), list::toList,
                                () -> library.function("threads").callFunction(), () -> sum.call(remote), remote::toFloatArray, () -> session.get("served.items").call())) {
                            try {
                                use.call();
                            } catch (IllegalStateException | PortcallException closed) { // by another
                            }
                        }
                    }
                });
            }
        } finally {
            Portcall.remove("served.items");
        }
    }

    @Test
    void refusesStrangersAndPortsThatAreTaken() {
        assertThrows(IllegalArgumentException.class, () -> Serving.listen(Serving.options().host("0.0.0.0"), "served.*"));
        try (Serving first = Serving.listen("served.*")) {
            assertThrows(PortcallException.class, () -> Serving.listen(Serving.options().port(first.port()), "served.*"));
        }
        assertThrows(RuntimeException.class, () -> Serving.listen(Serving.options().port(70000), "served.*"));
    }

    @Test
    void startsAndStopsTheProgram() throws Exception {
        Path server = Path.of(System.getProperty("portcall.server"));
        try (ServerProcess process = ServerProcess.start(server)) {
            try (Session session = Session.connect(process.address())) {
                assertEquals(5, session.get("testing.echo").callLong(5));
            }
            assertTrue(process.isRunning());
            assertTrue(process.address().endsWith(":" + process.port()));
            process.close();
            assertFalse(process.isRunning());
            assertTrue(process.log().stream().anyMatch(line -> line.contains("ready")), () -> process.log().toString());
        }
        assertThrows(IOException.class, () -> ServerProcess.start(server, "--no-such-option"));
        assertThrows(IOException.class, () -> ServerProcess.start(Path.of("/no/such/program")));
    }
}
