// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.LongUnaryOperator;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class SessionTest {
    private static final String TOKEN = "a token of some length";
    private static Support.Server server;
    private static Session session;

    record Point(long x, double y) {}

    @BeforeAll
    static void start() throws Exception {
        Path functions = Files.writeString(Support.FOLDER.resolve("served.py"), """
                import ctypes, os, time
                import portcall
                @portcall.register_func("java.crash")
                def crash(): ctypes.string_at(0)
                @portcall.register_func("java.sleep")
                def sleep(seconds): time.sleep(seconds)
                @portcall.register_func("java.call")
                def call(f, *args): return f(*args)
                @portcall.register_func("java.fail")
                def fail(): raise IndexError("over \\x1b[31mthere")
                """);
        server = new Support.Server("--import", functions.toString(), "--token-file",
                Files.writeString(Support.FOLDER.resolve("token"), TOKEN).toString());
        session = open();
    }

    @AfterAll
    static void stop() throws Exception {
        session.close();
        server.close();
    }

    private static Session open() {
        return Session.connect(server.address, Session.options().token(TOKEN));
    }

    @Test
    void valuesAndFunctionsTravel() {
        PackedFunc echo = session.get("testing.echo");
        for (Object value : List.of(1L, 2.5, true, "text ✓ of more", List.of(1L, "two"), Map.of("a", 1L), Shape.of(2, 3))) {
            assertEquals(value, echo.call(value));
        }
        assertArrayEquals(new byte[300_000], echo.callAs(byte[].class, new byte[300_000]));
        assertEquals(new Point(1, 2.5), echo.callAs(Point.class, new Point(1, 2.5)));
        PackedFunc call = session.get("java.call");
        assertEquals(42L, call.call((LongUnaryOperator) x -> 6 * x, 7)); // the server calls Java
        assertEquals("ab", call.call((PackedFunc.Body) a -> a.asString(0) + "b", "a"));
        IllegalStateException mine = new IllegalStateException("mine");
        PortcallException error = assertThrows(PortcallException.class, () -> call.call((PackedFunc.Body) a -> {
            throw mine;
        }));
        assertTrue(error.getMessage().contains("mine"), error.toString());
        assertThrows(PortcallException.class, () -> session.get("java.nothing"));
        assertThrows(IllegalArgumentException.class, () -> echo.call(new Object()));
    }

    @Test
    void errorsOfTheServerHaveTheirClassAndFrames() {
        RemoteException error = assertThrows(RemoteException.class, () -> session.get("java.fail").call());
        assertEquals(List.of("IndexError", "over there"), List.of(error.kind(), error.getMessage()));
        assertEquals("fail", error.getStackTrace()[0].getMethodName());
        assertTrue(Arrays.stream(error.getStackTrace()).anyMatch(frame -> frame.getMethodName().contains("errorsOfTheServer")));
        assertTrue(error.peer().contains(server.address), error.peer());
    }

    @Test
    void tensorsStayThere() throws Exception {
        session.upload(Support.compile("js/test/native/kernels.c"), "k.so", (done, total) -> {});
        Module kernels = session.loadModule("k.so");
        assertEquals("rpc", kernels.kind());
        try (RemoteTensor x = session.tensor(new float[] {1, 2, 3}); RemoteTensor y = session.empty(DType.FLOAT32, 3)) {
            kernels.function("add_one").call(x, y);
            assertArrayEquals(new float[] {2, 3, 4}, y.toFloatArray());
            assertArrayEquals(new long[] {3}, y.shape());
            assertEquals(DType.FLOAT32, y.dtype());
            y.copyFrom(new float[] {7, 8, 9});
            x.copyFrom(y);
            float[] back = new float[3];
            x.copyTo(back);
            assertArrayEquals(new float[] {7, 8, 9}, back);
            assertArrayEquals(new float[] {8, 9}, x.view(DType.FLOAT32, 4, 2).toFloatArray());
            assertThrows(IllegalArgumentException.class, () -> x.copyFrom(new float[4]));
            assertThrows(PortcallException.class, () -> x.copyFrom(Tensor.of(new float[4])));
            Timing timing = kernels.timeEvaluator("add_one", session.cpu()).number(3).repeat(5).run(x, y);
            assertEquals(5, timing.seconds().length);
            assertTrue(timing.min() > 0 && timing.min() <= timing.median() && timing.median() <= timing.max());
            assertThrows(PortcallException.class, () -> kernels.timeEvaluator("add_one", session.cpu()).repeat(-1).run(x, y));
        }
        float[] out = new float[2];
        kernels.function("add_one").call(new float[] {1, 2}, out); // arrays of this process go, and come back
        assertArrayEquals(new float[] {2, 3}, out);
    }

    @Test
    void filesGoAndComeBackPieceByPiece() throws Exception {
        for (int size : new int[] {0, 1, 256 << 10, 700_001}) {
            byte[] content = new byte[size];
            new java.util.Random(size).nextBytes(content);
            Path file = Files.write(Support.FOLDER.resolve("file.bin"), content);
            List<Long> steps = new ArrayList<>();
            session.upload(file, "name.bin", (done, total) -> {
                assertEquals(size, total);
                steps.add(done);
            });
            assertEquals(size, steps.get(steps.size() - 1));
            assertArrayEquals(content, session.download("name.bin"));
        }
        session.upload("text".getBytes(), "b.txt");
        assertArrayEquals("text".getBytes(), session.download("b.txt"));
        session.remove("b.txt");
        assertThrows(PortcallException.class, () -> session.download("b.txt"));
        RuntimeException enough = new RuntimeException("enough");
        Path large = Files.write(Support.FOLDER.resolve("large.bin"), new byte[1 << 20]);
        assertSame(enough, assertThrows(RuntimeException.class, () -> session.upload(large, "large.bin", (done, total) -> {
            throw enough;
        })));
        assertThrows(PortcallException.class, () -> session.download("large.bin"));
        assertThrows(java.io.UncheckedIOException.class, () -> session.upload(Path.of("nonesuch")));
        assertThrows(PortcallException.class, () -> session.upload(new byte[1], "../outside"));
    }

    @Test
    void callsFollowEachOtherBeforeTheirResultsCome() throws Exception {
        PackedFunc echo = session.get("testing.echo");
        List<CompletableFuture<Object>> all = new ArrayList<>();
        for (long i = 0; i < 500; ++i) all.add(echo.callAsync(i));
        for (int i = 0; i < 500; ++i) assertEquals((long) i, all.get(i).get());
        assertEquals("IndexError", ((RemoteException) assertThrows(ExecutionException.class, () -> session.get("java.fail").callAsync().get()).getCause()).kind());
        assertEquals(List.of(1L, "b"), echo.callAsync(1).thenCombine(echo.callAsync("b"), List::of).get());
        try (Tensor t = Tensor.of(new float[] {1})) {
            assertArrayEquals(new float[] {1}, ((PortcallObject) echo.callAsync(t).get()) instanceof RemoteTensor r ? r.toFloatArray() : null);
        }
    }

    @Test
    void aCallThatTakesTooLongEnds() {
        try (Session own = open()) {
            assertThrows(SessionTimeoutException.class, () -> own.get("java.sleep").withTimeout(0.2).call(60));
        }
        assertEquals("TypeError", assertThrows(PortcallException.class, () -> Portcall.get("testing.echo").withTimeout(1)).kind());
    }

    @Test
    void tokensAreAskedFor() {
        assertThrows(AuthenticationException.class, () -> Session.connect(server.address, Session.options().token("wrong")));
        assertThrows(AuthenticationException.class, () -> Session.connect(server.address));
        assertThrows(ConnectException.class, () -> Session.connect("127.0.0.1:1"));
        assertThrows(ConnectException.class, () -> Session.connect("no address"));
        assertThrows(ConnectException.class, () -> Session.connect("unix:/nonesuch"));
        assertThrows(ConnectException.class, () -> Session.connect(server.address, Session.options().token(TOKEN).key("another")));
        assertThrows(PortcallException.class, () -> Session.connect(server.address, Session.options().key("two words")));
        assertThrows(NullPointerException.class, () -> Session.connect(null));
    }

    @Test
    void aCrashIsThatSessionsAlone() {
        try (Session own = open()) {
            PortcallException crash = assertThrows(PortcallException.class, () -> own.get("java.crash").call());
            assertTrue(crash instanceof RemoteCrashException || crash instanceof SessionBrokenException, crash.toString());
            assertThrows(PortcallException.class, () -> own.get("testing.echo").call(1));
        }
        assertEquals(1L, session.get("testing.echo").call(1));
    }

    @Test
    void whatIsOfASessionEndsWithIt() throws Exception {
        Session own = open();
        RemoteTensor x = own.tensor(new float[] {1});
        PackedFunc echo = own.get("testing.echo");
        own.close();
        own.close();
        assertThrows(SessionBrokenException.class, () -> echo.call(1));
        assertThrows(SessionBrokenException.class, x::toFloatArray);
        assertThrows(IllegalStateException.class, () -> own.get("testing.echo"));
        assertThrows(ExecutionException.class, () -> echo.callAsync(1).get());
        x.close();
        try (Support.Server other = new Support.Server(); Session lost = Session.connect(other.address)) {
            other.close();
            assertThrows(SessionBrokenException.class, () -> {
                for (;;) lost.get("testing.echo").call(1);
            });
        }
    }

    @Test
    void connectionsMayBeEncrypted() throws Exception {
        Support.run(Support.python(), "js/test/certificates.py", Support.FOLDER.toString());
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = Files.newInputStream(Support.FOLDER.resolve("ca.pem"))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        try (Support.Server secure = new Support.Server("--tls-cert", Support.FOLDER.resolve("127.0.0.1.pem").toString());
                Session safe = Session.connect(secure.address, Session.options().tls(context).timeout(Duration.ofSeconds(20)))) {
            byte[] large = new byte[3 << 20];
            new java.util.Random(1).nextBytes(large);
            assertArrayEquals(large, safe.get("testing.echo").callAs(byte[].class, large));
            assertEquals(12L, safe.get("testing.apply").call((LongUnaryOperator) x -> x + 5, 7));
            assertThrows(AuthenticationException.class, () -> Session.connect(secure.address, Session.options().tls(SSLContext.getDefault())));
            assertThrows(PortcallException.class, () -> Session.connect(secure.address));
        }
        try (Support.Server other = new Support.Server("--tls-cert", Support.FOLDER.resolve("elsewhere.pem").toString())) {
            assertThrows(AuthenticationException.class, () -> Session.connect(other.address, Session.options().tls(context)));
        }
        assertThrows(ConnectException.class, () -> Session.connect("unix:/nowhere", Session.options().tls(context)));
        assertThrows(PortcallException.class, () -> Session.connect(server.address, Session.options().tls(context).timeout(Duration.ofSeconds(5))));
        try (var left = Files.list(Path.of(System.getProperty("java.io.tmpdir")))) {
            assertEquals(0, left.filter(each -> each.getFileName().toString().startsWith("portcall-tls-")
                    && each.toFile().lastModified() > java.lang.ProcessHandle.current().info().startInstant().orElseThrow().toEpochMilli()).count());
        }
    }
}
