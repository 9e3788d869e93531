// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import javax.net.ssl.SSLContext;

/**
 * A session with a server of portcall or TVM. Functions of Java may be arguments: the server calls them back while this side waits
 * for an answer. Any number of threads may use it.
 */
public final class Session implements AutoCloseable {
    private static final PackedFunc CONNECT = Portcall.get("portcall.rpc.Connect"), CLOSE = Portcall.get("portcall.rpc.Close"),
            EMPTY = Portcall.get("portcall.rpc.Empty"), DEVICE = Portcall.get("portcall.rpc.Device"),
            PARTS = Portcall.get("portcall.rpc.DeviceParts");
    private static final int PIECE = 256 << 10;
    final Module root;
    private final Tunnel tunnel;

    private Session(Module root, Tunnel tunnel) {
        this.root = root;
        this.tunnel = tunnel;
    }

    /** How to connect. */
    public static final class Options {
        private String key = "", token = "";
        private double timeout = 10, callTimeout;
        private SSLContext tls;

        /** The key of the server, or of what the tracker or the farm should give. */
        public Options key(String words) { key = words; return this; }

        /** What both sides know, and what never travels. Null, or empty text, for none. */
        public Options token(String secret) { token = secret == null ? "" : secret; return this; }

        /** For each step of the handshake: 10 seconds unless it is said. */
        public Options timeout(Duration time) { timeout = time.toNanos() / 1e9; return this; }

        /** For each answer: any time unless it is said. */
        public Options callTimeout(Duration time) { callTimeout = time.toNanos() / 1e9; return this; }

        /** Encrypt the connection; the server's name is checked. */
        public Options tls(SSLContext context) { tls = context; return this; }
    }

    /** Hears how far a transfer is. */
    @FunctionalInterface
    public interface Progress {
        /** So many bytes of all are there. */
        void at(long done, long total);
    }

    /** Options to fill. */
    public static Options options() { return new Options(); }

    /** A session with a server at "host:port", "[v6]:port" or "unix:/path" that asks for nothing. */
    public static Session connect(String address) { return connect(address, options()); }

    /**
     * A session with a server.
     * @throws ConnectException there is no such server, or it is of another kind
     * @throws AuthenticationException a token is wrong or missing
     */
    public static Session connect(String address, Options options) {
        Objects.requireNonNull(address, "the address");
        Tunnel tunnel = options.tls == null ? null : Tunnel.open(address, options.tls, options.timeout);
        try {
            String place = tunnel == null ? address : tunnel.address();
            return new Session(CONNECT.callModule(place, options.key, options.token, options.timeout, options.callTimeout, true, address), tunnel);
        } catch (RuntimeException | Error failed) {
            if (tunnel != null) tunnel.close();
            throw failed;
        }
    }

    /**
     * A function that the server offers.
     * @throws PortcallException it offers none of that name
     */
    public PackedFunc get(String name) { return root.function(name); }

    private PackedFunc find(String name) {
        try {
            return root.find(name);
        } catch (RemoteException none) {
            return null;
        }
    }

    /** The session as a module. */
    public Module module() { return root; }

    /** A device of the session. */
    public PortcallObject device(Device device) { return DEVICE.callObject(root, device.type(), device.id()); }

    /** The host of the session. */
    public PortcallObject cpu() { return device(Device.CPU); }

    static Device partsOf(PortcallObject device) { return (Device) PARTS.callAs(List.class, device).get(1); }

    /** Memory of the session's host that nobody has written to. */
    public RemoteTensor empty(DType dtype, long... shape) { return empty(dtype, Device.CPU, shape); }

    /** The same on one of its devices. */
    public RemoteTensor empty(DType dtype, Device device, long... shape) {
        return EMPTY.callAs(RemoteTensor.class, root, Shape.of(shape), dtype, device.type(), device.id());
    }

    /** Memory of the session with the elements of a tensor, or of an array, which without extents has one dimension. */
    public RemoteTensor tensor(Object values, long... shape) {
        try (Tensor array = values instanceof Tensor ? null : Tensor.of(values, shape)) {
            Tensor local = array == null ? (Tensor) values : array;
            RemoteTensor made = empty(local.dtype(), local.shape());
            made.copyFrom(local);
            return made;
        }
    }

    /** Sends a file into the session's folder, under its own name. */
    public void upload(Path file) { upload(file, file.getFileName().toString(), (done, total) -> {}); }

    /** Sends a file into the session's folder under a name, piece by piece. */
    public void upload(Path file, String name, Progress progress) {
        try (InputStream in = Files.newInputStream(file)) {
            send(in, Files.size(file), name, progress);
        } catch (IOException error) {
            throw new java.io.UncheckedIOException("cannot read " + file + ": " + error.getMessage(), error);
        }
    }

    /** Sends bytes as a file of the session's folder. */
    public void upload(byte[] content, String name) {
        try {
            send(new java.io.ByteArrayInputStream(content), content.length, name, (done, total) -> {});
        } catch (IOException never) {
            throw new java.io.UncheckedIOException(never);
        }
    }

    private void send(InputStream in, long total, String name, Progress progress) throws IOException {
        PackedFunc write = find("portcall.rpc.file_write");
        if (write == null) { // a server of TVM
            get("tvm.rpc.server.upload").call(name, in.readAllBytes());
            progress.at(total, total);
            return;
        }
        long done = 0;
        try {
            do { // an empty file is one, too
                byte[] piece = in.readNBytes(PIECE);
                write.call(name, done, piece);
                done += piece.length;
                progress.at(done, total);
                if (piece.length < PIECE) break;
            } while (true);
        } catch (IOException | RuntimeException | Error failed) {
            if (done > 0) abandon(name);
            throw failed;
        }
    }

    private void abandon(String name) { // part of a file is of no use
        try {
            remove(name);
        } catch (PortcallException gone) { // with the session
        }
    }

    /** Fetches a file of the session's folder. */
    public byte[] download(String name) {
        PackedFunc read = find("portcall.rpc.file_read");
        if (read == null) return get("tvm.rpc.server.download").callAs(byte[].class, name);
        java.io.ByteArrayOutputStream all = new java.io.ByteArrayOutputStream();
        for (byte[] piece; (piece = read.callAs(byte[].class, name, (long) all.size(), PIECE)).length > 0; ) all.writeBytes(piece);
        return all.toByteArray();
    }

    /** Deletes a file of the session's folder. */
    public void remove(String name) { get("tvm.rpc.server.remove").call(name); }

    /** Loads a library that was uploaded. */
    public Module loadModule(String name) { return get("tvm.rpc.server.load_module").callModule(name); }

    /** Closes it. What belongs to it is gone. */
    @Override
    public synchronized void close() {
        if (root.handle.isClosed()) return;
        try {
            CLOSE.call(root);
        } finally {
            root.close();
            if (tunnel != null) tunnel.close();
        }
    }
}
