// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Results that come later. Those of one session are waited for by one thread, in the order of the calls. */
final class Futures {
    private static final PackedFunc SEND = Portcall.get("portcall.SendCall"), RESULT = Portcall.get("portcall.FutureResult"),
            SESSION = Portcall.get("portcall.FutureSession");
    private static final Map<Long, Queue<Runnable>> WAITING = new HashMap<>(); // by session; its thread is there while the queue is
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(body -> {
        Thread thread = new Thread(body, "portcall-results");
        thread.setDaemon(true);
        return thread;
    });

    static CompletableFuture<Object> start(PackedFunc function, Object[] args) {
        CompletableFuture<Object> made = new CompletableFuture<>();
        Object[] all = new Object[args.length + 1];
        all[0] = function;
        System.arraycopy(args, 0, all, 1, args.length);
        PortcallObject sent;
        try {
            sent = hasArrays(args) ? null : (PortcallObject) SEND.call(all);
        } catch (RuntimeException error) {
            made.completeExceptionally(error);
            return made;
        }
        if (sent == null) {
            Object[] own = args.clone();
            THREADS.execute(() -> complete(made, () -> function.call(own)));
            return made;
        }
        watch(SESSION.callLong(sent), () -> complete(made, () -> {
            try (sent) {
                return RESULT.call(sent, -1.0);
            }
        }));
        return made;
    }

    /** Arrays that are copied back when a call is over: it must be waited for. */
    private static boolean hasArrays(Object[] args) {
        for (Object each : args) {
            if (Numbers.isNumbers(each) || each instanceof java.nio.Buffer) return true;
        }
        return false;
    }

    private static void complete(CompletableFuture<Object> made, java.util.function.Supplier<Object> result) {
        try {
            made.complete(result.get());
        } catch (Throwable error) {
            made.completeExceptionally(error);
        }
    }

    private static void watch(long session, Runnable wait) {
        if (session == 0) { // it has come already
            wait.run();
            return;
        }
        synchronized (WAITING) {
            Queue<Runnable> queue = WAITING.get(session);
            if (queue != null) {
                queue.add(wait);
                return;
            }
            WAITING.put(session, new ArrayDeque<>());
        }
        THREADS.execute(() -> {
            for (Runnable next = wait; next != null; next = next(session)) next.run();
        });
    }

    private static Runnable next(long session) {
        synchronized (WAITING) {
            Runnable next = WAITING.get(session).poll();
            if (next == null) WAITING.remove(session);
            return next;
        }
    }

    private Futures() {}
}
