// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Function;
import java.util.function.LongBinaryOperator;
import org.junit.jupiter.api.Test;

/** Whatever is passed to whatever method: an exception, or a result, and the JVM goes on. */
class BadInputTest {
    record Point(long x, double y) {}

    record Odd(Object any, float[] array, Odd more) {}

    /** A program that calls random methods of the API, `count` of them, with random things: those of below, and what came of earlier calls. */
    static final class Anything {
        private static final List<Class<?>> CLASSES = List.of(Portcall.class, PackedFunc.class, Args.class, Tensor.class, DType.class, Device.class, Shape.class,
                Module.class, PortcallObject.class, PortcallList.class, PortcallDict.class, GraphModel.class, Vm.class, Session.class, RemoteTensor.class,
                Timing.class, Timing.Evaluator.class, Session.Options.class, Serving.Options.class, Serving.class, PortcallException.class);
        private static final int MOST_RESULTS = 300, DEEP = 20;
        private final Random random;
        private final List<Object> given = new ArrayList<>(), made = new ArrayList<>();
        private final List<Executable> methods = new ArrayList<>();

        Anything(long seed) throws Exception {
            random = new Random(seed);
            for (Class<?> each : CLASSES) {
                for (Method method : each.getMethods()) {
                    boolean ours = method.getDeclaringClass().getName().startsWith("org.portcall") && !Modifier.isAbstract(method.getModifiers());
                    boolean spoils = List.of("remove", "listen", "bind").contains(method.getName()) && each != PortcallList.class && each != PortcallDict.class;
                    if (ours && !spoils) methods.add(method);
                }
                methods.addAll(Arrays.asList(each.getConstructors()));
            }
            methods.sort(Comparator.comparing(Executable::toString)); // Java lists them in any order
        }

        private void give() throws Exception {
            PackedFunc echo = Portcall.get("testing.echo");
            Args[] over = new Args[1];
            PackedFunc.of(a -> {
                over[0] = a;
                return null;
            }).call(1);
            Tensor open = Tensor.of(new float[] {1, 2, 3, 4}, 2, 2), closed = Tensor.of(new int[3]), packed = Tensor.empty(DType.of("int4"), 3, 3);
            closed.close();
            PortcallList list = PortcallList.of(List.of(1, "two")), gone = PortcallList.of(List.of());
            gone.close();
            PortcallDict dict = PortcallDict.of(Map.of("a", 1));
            List<Object> itself = new ArrayList<>();
            itself.add(itself);
            Map<Object, Object> own = new HashMap<>();
            own.put("me", own);
            Session away = Session.connect("127.0.0.1:" + server.port()), ended = Session.connect("127.0.0.1:" + server.port());
            RemoteTensor there = away.tensor(new float[] {1, 2, 3}), lost = ended.tensor(new float[] {1}), freed = away.empty(DType.INT8, 5);
            freed.close();
            ended.close();
            Path library = Support.compile("java/test/kernels.c");
            Module kernels = Module.load(library), shut = Module.load(library);
            shut.close();
            given.addAll(Arrays.asList(null, 0, 1, -1, 7L, Long.MIN_VALUE, Long.MAX_VALUE, Integer.MAX_VALUE, 2.5, Double.NaN, 1e30f, (short) 3, (byte) -1, true, 'c',
                    "", "a", "a\0b", "\uD83D\uDE00 text with an emoji", "half \uD800", "x".repeat(70_000), "float32", "int4", "bool", "float32x99999", "testing.echo",
                    "testing.apply", "../..", "127.0.0.1:1", "unix:/no", new float[0], new float[3], new float[2000], new byte[5000], new byte[1], new long[] {-1}, new long[] {1L << 40, 1L << 40},
                    new long[65], new long[] {2, 2}, new long[0], new boolean[2], new char[2], new String[] {"a", null}, new Object[0], new Object[] {1, null, "x"}, new Object[1001],
                    ByteBuffer.allocate(8), ByteBuffer.allocateDirect(8), ByteBuffer.allocateDirect(64).order(ByteOrder.nativeOrder()), ByteBuffer.allocateDirect(64).asReadOnlyBuffer(),
                    FloatBuffer.allocate(2), CharBuffer.allocate(3), ByteBuffer.allocateDirect(64).order(ByteOrder.nativeOrder()).asFloatBuffer(), open, closed, packed,
                    Tensor.empty(DType.FLOAT32, 0, 4), Tensor.empty(DType.FLOAT64), list, gone, dict, kernels, echo,
                    Portcall.get("testing.apply"), Portcall.get("testing.nop"), Portcall.get("ffi.ModuleGetFunction"), away, ended, away.module(), shut, there, lost, freed, away.cpu(),
                    over[0], Shape.of(), Shape.of(-1, 1L << 62), Shape.of(2, 2), DType.FLOAT32, DType.INT8, DType.of("int4"), DType.of("handle"), DType.BOOL, Device.CPU, new Device(-1, -1),
                    new Device(99, 1), Device.cuda(0), String.class, Runnable.class, Function.class, Comparator.class, LongBinaryOperator.class, int.class, void.class, float[].class,
                    float[][].class, Point.class, Odd.class, List.class, Map.class, Tensor.class, Anything.class, Path.of("/no/such/file"), Path.of("/etc/passwd"), Path.of("."), Path.of(""),
                    itself, own, List.of(1, 2.5), Arrays.asList(1, null, open, closed), Map.of("x", 1, "y", 2.5), new Point(1, 2), new Odd(new Point(1, 2), null, new Odd(closed, new float[1], null)),
                    new Object(), Thread.currentThread(), new Throwable("t"), (PackedFunc.Body) a -> a.size() == 0 ? null : a.get(0), (PackedFunc.Body) a -> {
                        throw new IllegalStateException("mine");
                    }, (Function<Object, Object>) x -> x, (LongBinaryOperator) (a, b) -> a / b, (Runnable) () -> open.floats(), Session.options(), Serving.options()));
        }

        private static Serving server;

        private Object pick(Class<?> type) {
            for (int i = 0; i < DEEP; ++i) {
                List<Object> from = made.isEmpty() || random.nextInt(3) > 0 ? given : made;
                Object found = from.get(random.nextInt(from.size()));
                if (type == int.class && found instanceof Long n) return (int) (long) n;
                if (type == long.class && found instanceof Integer n) return (long) n;
                if (type == double.class && found instanceof Number n) return n.doubleValue();
                if (type.isPrimitive() ? found != null && java.lang.reflect.Array.get(java.lang.reflect.Array.newInstance(type, 1), 0).getClass() == found.getClass()
                        : found == null || type.isInstance(found)) return found;
            }
            return type == boolean.class ? (Object) random.nextBoolean() : type == int.class ? (Object) random.nextInt(4) : type == long.class ? (Object) random.nextLong(4)
                    : type == double.class ? (Object) 0.5 : type == Class.class ? String.class : null;
        }

        private void callOne(boolean aloud) throws Exception {
            Executable method = methods.get(random.nextInt(methods.size()));
            Object[] args = Arrays.stream(method.getParameterTypes()).map(this::pick).toArray();
            Object target = method instanceof Method m && !Modifier.isStatic(m.getModifiers()) ? pick(m.getDeclaringClass()) : null;
            if (aloud) System.err.println(method + " of " + System.identityHashCode(target) + " " + Arrays.stream(args).map(each -> each == null ? "null" : each.getClass().getName()).toList());
            Object result;
            try {
                method.setAccessible(true);
                result = method instanceof Method m ? m.invoke(target, args) : ((java.lang.reflect.Constructor<?>) method).newInstance(args);
            } catch (InvocationTargetException thrown) {
                if (thrown.getCause() instanceof Error error && !(error instanceof StackOverflowError || error instanceof OutOfMemoryError)) throw error;
                return;
            } catch (NullPointerException | IllegalArgumentException wrong) { // of reflection: there is no object to call it of
                return;
            }
            if (result instanceof Session session) session.close();
            else if (result instanceof Serving serving) serving.close();
            else if (result != null && made.size() < MOST_RESULTS) made.add(result);
            else if (result != null) made.set(random.nextInt(MOST_RESULTS), result);
        }

        public static void main(String[] words) throws Exception {
            Portcall.register("served.echo", args -> args.get(0));
            server = Serving.listen("served.*", "testing.*");
            for (long seed = Long.parseLong(words[0]); seed < Long.parseLong(words[1]); ++seed) {
                Anything tried = new Anything(seed);
                tried.give();
                for (int i = 0; i < Integer.parseInt(words[2]); ++i) tried.callOne(words.length > 3);
                if (Stack.get().count != 0) throw new IllegalStateException("something is held");
                if (Portcall.get("testing.echo") == null) throw new IllegalStateException("the core is not as it was");
                System.gc();
            }
            System.out.println("went on");
            System.exit(0);
        }
    }

    @Test
    void anyMethodTakesAnything() throws Exception {
        String printed = LifetimeTest.child(Anything.class, "-Xmx256m", "1", "4", "3000");
        assertEquals("went on", printed.strip());
    }
}
