// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * TLS for the core, which has none: a local socket, in a folder that is this user's alone, whose one connection goes on to the server
 * encrypted. What travels is the core's affair.
 */
final class Tunnel implements AutoCloseable {
    private final SSLSocket outside;
    private final ServerSocketChannel inside;
    private final Path folder, path;

    private Tunnel(SSLSocket outside) throws IOException {
        this.outside = outside;
        folder = Files.createTempDirectory("portcall-tls-");
        path = folder.resolve("s");
        inside = ServerSocketChannel.open(StandardProtocolFamily.UNIX).bind(UnixDomainSocketAddress.of(path));
    }

    static Tunnel open(String address, SSLContext context, double timeout) {
        int colon = address.lastIndexOf(':');
        try {
            if (colon < 1 || address.startsWith("unix:")) throw new IOException("TLS needs an address of the form host:port");
            String host = address.substring(0, colon).replaceAll("^\\[|\\]$", "");
            int milliseconds = (int) Math.min(Integer.MAX_VALUE, Math.max(1, timeout * 1000));
            Socket plain = new Socket();
            try {
                plain.connect(new InetSocketAddress(host, Integer.parseInt(address.substring(colon + 1))), milliseconds);
                plain.setTcpNoDelay(true);
                plain.setSoTimeout(milliseconds);
                SSLSocket secure = (SSLSocket) context.getSocketFactory().createSocket(plain, host, plain.getPort(), true);
                SSLParameters checks = secure.getSSLParameters();
                checks.setEndpointIdentificationAlgorithm("HTTPS");
                secure.setSSLParameters(checks);
                secure.startHandshake();
                secure.setSoTimeout(0);
                Tunnel made = new Tunnel(secure);
                made.start();
                return made;
            } catch (IOException | RuntimeException error) {
                plain.close();
                throw error;
            }
        } catch (javax.net.ssl.SSLException error) {
            throw new AuthenticationException("AuthenticationError", address + ": TLS: " + error.getMessage(), "", error);
        } catch (IOException | IllegalArgumentException error) {
            throw new ConnectException("ConnectError", "cannot connect to " + address + ": " + error.getMessage(), "", error);
        }
    }

    String address() { return "unix:" + path; }

    private void start() {
        spawn(() -> {
            try (SocketChannel core = inside.accept(); outside) {
                inside.close();
                delete();
                Thread back = spawn(() -> receive(core));
                send(core);
                outside.shutdownOutput();
                back.join();
            } catch (IOException | InterruptedException over) { // the core sees its connection end
            } finally {
                close();
            }
        });
    }

    private static Thread spawn(Runnable body) {
        Thread thread = new Thread(body, "portcall-tls");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void send(SocketChannel core) throws IOException {
        ByteBuffer piece = ByteBuffer.allocate(64 << 10);
        OutputStream out = outside.getOutputStream();
        while (core.read(piece.clear()) >= 0) out.write(piece.array(), 0, piece.position());
    }

    private void receive(SocketChannel core) {
        try (OutputStream to = Channels.newOutputStream(core)) {
            InputStream in = outside.getInputStream();
            in.transferTo(to);
        } catch (IOException over) { // either side is gone
        }
    }

    private void delete() {
        try {
            Files.deleteIfExists(path);
            Files.deleteIfExists(folder);
        } catch (IOException left) { // in the folder for temporary files
        }
    }

    @Override
    public void close() {
        try {
            inside.close();
            delete();
            outside.close();
        } catch (IOException over) { // it was closed
        }
    }
}
