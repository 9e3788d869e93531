// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.lang.ref.PhantomReference;
import java.lang.ref.ReferenceQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongFunction;

/**
 * One reference to an object of the core, as the number of its users: the Java object that has it, until that is closed or
 * collected, and calls that take it as an argument. With the last one it is released, so that close() is safe while another
 * thread calls.
 */
class Handle extends AtomicInteger {
    private static final long LEAST_LIMIT = 256L << 20;
    private static final int MOST_DRAINS = 50;
    private static final AtomicLong BYTES = new AtomicLong();
    private static final AtomicInteger COLLECTING = new AtomicInteger();
    private static volatile long limit = LEAST_LIMIT;

    final long address;
    private long nbytes;

    Handle(long address) {
        super(1);
        this.address = address;
    }

    /** The address, which stays valid until done(). */
    final long use() {
        for (;;) {
            int now = get();
            if (now <= 0) throw new IllegalStateException("the object of portcall is closed");
            if (compareAndSet(now, now + 1)) return address;
        }
    }

    /** The address, for the innermost call: valid until that is over. */
    final long use(Stack stack) {
        use();
        stack.hold(this);
        return address;
    }

    /** What a body makes of the address, which stays valid meanwhile. */
    final <T> T with(LongFunction<T> body) {
        long used = use();
        try {
            return body.apply(used);
        } finally {
            done();
        }
    }

    void done() {
        if (decrementAndGet() != 0) return;
        Native.release(address);
        if (nbytes != 0) BYTES.addAndGet(-nbytes);
    }

    final boolean isClosed() { return get() <= 0; }

    /** Memory that the collector does not see: where there is much, it is asked to look, as for direct buffers. */
    final void count(long size) {
        nbytes = size;
        if (BYTES.addAndGet(size) <= limit || !COLLECTING.compareAndSet(0, 1)) return;
        try {
            Watch found = new Watch(new Object(), new Handle(0) { // of garbage: it tells when the dead come, late on a busy machine
                @Override void done() {}
            });
            System.gc();
            for (int i = 0; i < MOST_DRAINS && (i == 0 || Watch.ALL.contains(found)); ++i) Watch.drain();
            limit = Math.max(LEAST_LIMIT, 2 * BYTES.get()); // what lives may live
        } finally {
            COLLECTING.set(0);
        }
    }

    /** The end of a Java object: by close(), or when it is collected. Whoever makes one frees some that are dead. */
    static final class Watch extends PhantomReference<Object> {
        private static final ReferenceQueue<Object> DEAD = new ReferenceQueue<>();
        private static final Set<Watch> ALL = ConcurrentHashMap.newKeySet();
        private static final int FREED_BY_MAKERS = 4, DRAIN_MILLISECONDS = 20;
        private final Handle handle;

        static {
            Thread reaper = new Thread("portcall-reaper") { // no lambda: the first one of a program takes 10 ms
                @Override public void run() { reap(); }
            };
            reaper.setDaemon(true);
            reaper.start();
        }

        Watch(Object owner, Handle handle) {
            super(owner, DEAD);
            this.handle = handle;
            ALL.add(this);
            for (int i = 0; i < FREED_BY_MAKERS && DEAD.poll() instanceof Watch dead; ++i) dead.end();
        }

        private static void reap() {
            for (;;) {
                try {
                    ((Watch) DEAD.remove()).end();
                } catch (Throwable goOn) { // nobody may stop it
                }
            }
        }

        static void drain() {
            try {
                while (DEAD.remove(DRAIN_MILLISECONDS) instanceof Watch dead) dead.end();
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }

        void end() {
            if (ALL.remove(this)) {
                clear();
                handle.done();
            }
        }
    }
}
