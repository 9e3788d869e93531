// SPDX-License-Identifier: Apache-2.0
// What both cores do alike: that in WebAssembly (js/test/wasm) and the native one (js/test/native).

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import {
  CoreDict,
  CoreList,
  CoreObject,
  CoreShape,
  CoreTensor,
  Float,
  FunctionNotFoundError,
  load,
  type Module,
  ModuleLoadError,
  PortcallError,
  type Runtime,
  Tensor,
} from "../src/index.js";

/** Add the tests of a core. `library` loads one with the functions of objects.h. */
export function testCore(backend: "native" | "wasm", library: (core: Runtime) => Promise<Module>): void {
  let core: Runtime;
  before(async () => {
    core = await load({ backend });
    assert.equal(core.backend, backend);
  });

  test("arguments of wrong types are named", async () => {
    const wrong = 5 as never;
    const refused = async (name: string, call: () => unknown) => {
      const isNamed = (error: Error) => error instanceof TypeError && error.message.startsWith(`${name} must be `);
      await assert.rejects(async () => call(), isNamed);
    };
    await refused("the source", () => core.loadModule(wrong));
    await refused("the bytes of a library", () => core.loadModuleSync(wrong));
    await refused("a shape", () => core.empty(wrong));
    await refused("a data type", () => core.empty([1], wrong));
    await refused("the data of a tensor", () => core.tensor(null as never));
    await refused("items", () => core.list(wrong));
    await refused("items", () => core.dict(wrong));
    await refused("the name", () => core.getGlobalFunc(wrong));
    await refused("the name", () => core.registerFunc(["a"] as never, () => 1));
    for (const f of [1, undefined, null, {}])
      await refused("what is registered", () => core.registerFunc("a", f as never));
    await refused("the name", () => core.getGlobalFunc("testing.echo") && (core as any).getGlobalFunc());
    assert.throws(() => core.getGlobalFunc("a"), FunctionNotFoundError);
  });

  test("a library that cannot be read is a ModuleLoadError", async () => {
    for (const source of [
      "nonesuch.wasm",
      ".",
      new URL("file:///nonesuch/k.wasm"),
      new URL("http://127.0.0.1:1/k.wasm"),
    ]) {
      await assert.rejects(core.loadModule(source), ModuleLoadError, String(source));
    }
  });

  test("an array that holds itself is refused", () => {
    const circle: unknown[] = [];
    circle.push([circle]);
    const echo = core.getGlobalFunc("testing.echo");
    assert.throws(() => echo(circle), { name: "RangeError", message: /contains itself/ });
    assert.throws(() => echo(new Map([["a", circle]])), { message: /contains itself/ });
    let deep: unknown = 1;
    for (let i = 0; i < 50; ++i) deep = [deep];
    assert.deepEqual(echo(deep), deep);
  });

  describe("values", () => {
    test("come back from the core as they were passed", () => {
      const echo = core.getGlobalFunc("testing.echo");
      const values = [
        ...[null, true, false, 0, 1, -1, 2 ** 31, -(2 ** 31) - 1, 2 ** 53 - 1, -(2 ** 53) + 1, 2n ** 62n, -(2n ** 63n)],
        ...[1.5, -0, Number.NaN, Number.POSITIVE_INFINITY, 1e300],
        ...["", "short", "1234567", "12345678", "ä", "text ✓ of more than seven bytes", "\ufeff"],
        ...[new Uint8Array(0), new Uint8Array([1, 2, 3]), new Uint8Array(1000).fill(7)],
        ...[
          [],
          [1, "two", [3.5, null]],
          new Map<unknown, unknown>([
            ["a", 1],
            [2, [true]],
          ]),
        ],
      ];
      for (const value of values) assert.deepEqual(echo(value), value);
      assert.deepEqual(echo({ a: 1 }), new Map([["a", 1]]));
      assert.equal(echo(new Float(2)), 2);
      for (const name of ["float32", "int8x4"]) {
        const [type] = [core.empty([1], name).dtype].map((value) => echo(value));
        assert.equal(String(type), name);
      }
    });

    test("that are other objects of JavaScript come back as the same objects, and are given back", async () => {
      const echo = core.getGlobalFunc("testing.echo");
      const objects = [new Date(), new (class Own {})(), Promise.resolve(3), new Error("kept")];
      for (const value of objects) assert.equal(echo(value), value);
      assert.equal(echo([objects[0]])[0], objects[0]);
      core.registerFunc("test.later", async (x: number) => x + 1);
      assert.equal(await core.getGlobalFunc("test.later")(1), 2);
    });

    test("that cannot be passed are refused, and nothing is left behind", () => {
      const echo = core.getGlobalFunc("testing.echo");
      for (const value of [Symbol("s"), "half \ud800", [[Symbol("s")]]]) assert.throws(() => echo(value), TypeError);
      assert.throws(() => echo(2n ** 63n), RangeError);
      assert.equal(echo(1), 1);
    });
  });

  describe("functions", () => {
    test("of JavaScript are called by the core, and those of the core by JavaScript", () => {
      core.registerFunc("test.add", (a, b) => a + b);
      const add = core.getGlobalFunc("test.add");
      assert.deepEqual([add(1, 2), add("a", "b"), add.name], [3, "ab", "test.add"]);
      core.registerFunc("test.adder", (n: number) => (x: number) => x + n);
      assert.equal(core.getGlobalFunc("test.adder")(3)(4), 7);
      core.registerFunc("test.apply", (f, x) => f(x));
      assert.equal(
        core.getGlobalFunc("test.apply")((x: number) => 2 * x, 4),
        8,
      );
    });

    test("that are missing, or there already, are errors", () => {
      assert.throws(() => core.getGlobalFunc("no.such.function"), FunctionNotFoundError);
      core.registerFunc("test.twice", () => 1);
      assert.throws(() => core.registerFunc("test.twice", () => 2));
      core.registerFunc("test.twice", () => 3, { override: true });
      assert.equal(core.getGlobalFunc("test.twice")(), 3);
    });

    test("call each other deeply, until there is no room", () => {
      const down = (n: number): number => (n === 0 ? 0 : 1 + core.getGlobalFunc("test.down")(n - 1));
      core.registerFunc("test.down", down);
      assert.equal(core.getGlobalFunc("test.down")(100), 100);
      assert.throws(() => core.getGlobalFunc("test.down")(1e6), RangeError);
      assert.equal(core.getGlobalFunc("test.down")(3), 3);
    });

    test("that return promises are waited for by f.async(), or by the caller", async () => {
      core.registerFunc("test.soon", async (x: number) => x + 1, { override: true });
      assert.equal(await core.getGlobalFunc("test.soon").async(1), 2);
      await assert.rejects(
        core.getGlobalFunc("testing.test_raise_error").async("TypeError", "wrong"),
        (error: Error) => error instanceof TypeError && error.message === "wrong",
      );
    });

    test("are given back", () => {
      using f = core.getGlobalFunc("testing.nop");
      f.dispose();
      assert.throws(() => f(), TypeError);
    });
  });

  describe("errors", () => {
    test("of the core have the class of their name, or tell it", () => {
      const fail = core.getGlobalFunc("testing.test_raise_error");
      assert.throws(
        () => fail("TypeError", "wrong"),
        (error: Error) => error instanceof TypeError && error.message === "wrong",
      );
      assert.throws(() => fail("ValueError", "boom"), { name: "PortcallError", kind: "ValueError", message: "boom" });
    });

    test("of JavaScript pass through the core as the same objects", () => {
      const thrown = new RangeError("no ✓");
      core.registerFunc("test.throw", () => {
        throw thrown;
      });
      const caught = (f: () => unknown) => {
        try {
          f();
        } catch (error) {
          return error;
        }
        return undefined;
      };
      assert.equal(caught(core.getGlobalFunc("test.throw")), thrown);
      core.registerFunc("test.apply", (f) => f(), { override: true });
      const other = new Error("another");
      const raiser = () => {
        throw other;
      };
      assert.equal(
        caught(() => core.getGlobalFunc("test.apply")(raiser)),
        other,
      );
    });
  });

  describe("tensors", () => {
    test("of the core are shared with functions, and keep their type and shape", () => {
      const tensor = core.tensor(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]);
      assert.deepEqual([tensor.shape, String(tensor.dtype)], [[2, 3], "float32"]);
      core.registerFunc("test.double", (x: CoreTensor) => {
        const data = x.data as Float32Array;
        data.forEach((value, i) => {
          data[i] = 2 * value;
        });
      });
      core.getGlobalFunc("test.double")(tensor);
      assert.deepEqual(tensor.data, new Float32Array([2, 4, 6, 8, 10, 12]));
      const same = core.getGlobalFunc("testing.echo")(tensor);
      assert(same instanceof CoreTensor && same instanceof CoreObject);
      same.data[0] = 9;
      assert.equal(tensor.data[0], 9);
    });

    test("that are arrays of JavaScript are copied in and out", () => {
      const array = new Float32Array([1, 2]);
      core.getGlobalFunc("test.double")(array);
      assert.deepEqual(array, new Float32Array([2, 4]));
      const matrix = new Tensor(new Float32Array([1, 2, 3, 4]), [2, 2]);
      core.getGlobalFunc("test.double")(matrix);
      assert.deepEqual(matrix.data, new Float32Array([2, 4, 6, 8]));
    });

    test("keep their elements when the memory grows, and are freed", () => {
      const tensor = core.tensor(new Int32Array([1, 2, 3]));
      for (let i = 0; i < 100; ++i) core.empty([8 << 20], "int8").dispose();
      const large = core.empty([64 << 20], "int8");
      assert.deepEqual(tensor.data, new Int32Array([1, 2, 3]));
      large.dispose();
      assert.throws(() => large.data, TypeError);
      assert.throws(() => core.empty([2 ** 50]), Error);
      assert.throws(() => core.tensor(new Int32Array(3), [4]), RangeError);
    });
  });

  describe("objects", () => {
    let module: Module;
    let counter: CoreObject & Record<string, any>;
    before(async () => {
      module = await library(core);
      counter = module.get("counter")();
    });

    test("of a compiled type have its fields and methods", () => {
      const Counter = core.objectClass("test.Counter");
      assert(counter instanceof Counter && counter instanceof CoreObject);
      assert.deepEqual([counter.typeKey, Counter.typeKey, Counter.name], ["test.Counter", "test.Counter", "Counter"]);
      counter.count = 3;
      assert.deepEqual([counter.count, counter.add(4), counter.count], [3, 7, 7]);
      assert.equal(core.getGlobalFunc("testing.echo")(counter).count, 7);
      assert.equal(String(counter), "test.Counter(count=7)");
      const [field] = Counter.fields;
      assert.deepEqual([field!.name, field!.doc, field!.type, field!.writable], ["count", "how often", "int", true]);
      assert.throws(() => Counter.zero(1), TypeError);
      assert.throws(() => new Counter({ count: 1 }), TypeError); // nobody says how one is made
    });

    test("have values that the core checks", () => {
      assert.throws(() => {
        counter.count = "three";
      }, TypeError);
      const Circle = core.objectClass("test.Circle");
      assert.throws(() => new Circle({ name: 1, radius: 2 }), TypeError);
      assert.throws(() => new Circle({ name: "c" }), TypeError);
      assert.throws(() => new Circle({ name: "c", radius: 2, other: 1 }), TypeError);
      const circle = new Circle({ name: "c", radius: 2 });
      assert.throws(() => {
        circle.name = "other";
      }, TypeError);
      assert.throws(() => {
        circle.radius = "wide";
      }, TypeError);
      const read = Object.getOwnPropertyDescriptor(Circle.prototype, "radius")!.get!;
      assert.throws(() => read.call(counter), TypeError);
      circle.dispose();
      assert.throws(() => circle.radius, TypeError);
    });

    test("are made from fields, and inherit those of their base", () => {
      const [Shape, Circle] = ["test.Shape", "test.Circle"].map((key) => core.objectClass(key));
      const inner = new Circle!({ name: "inner", radius: 1 });
      const outer = new Circle!({ name: "outer", radius: new Float(2), inner, tags: ["a", new Map([["b", 1]])] });
      assert(outer instanceof Circle! && outer instanceof Shape!);
      assert.deepEqual([outer.name, outer.radius, outer.inner.radius, inner.inner], ["outer", 2, 1, null]);
      assert.deepEqual(outer.tags, ["a", new Map([["b", 1]])]);
      outer.tags = null;
      const text = 'test.Circle(name="inner", tags=null, radius=1, inner=null)';
      assert.equal(`${outer}`, `test.Circle(name="outer", tags=null, radius=2, inner=${text})`);
      assert.equal(Shape!.doc, "What has a name.");
      assert.deepEqual(
        Circle!.fields.map(({ name }) => name),
        ["name", "tags", "radius", "inner"],
      );
      assert.equal(core.objectClass("test.Circle"), Circle);
      assert.throws(() => core.objectClass("test.Nothing"), PortcallError);
    });

    test("are saved as JSON and read again", () => {
      const Circle = core.objectClass("test.Circle");
      const shared = new Circle({ name: "s ✓", radius: 0.1 });
      const text = core.saveJson([shared, shared, 2n ** 62n, 1e300, { a: new Float(3) }]);
      assert.equal(JSON.parse(text).nodes.length, 3);
      const [one, two, wide, large, map] = core.loadJson(text);
      assert.deepEqual([one.name, two.radius, wide, large], ["s ✓", 0.1, 2n ** 62n, 1e300]);
      assert(text.includes("3.0") && map.get("a") === 3);
      one.radius = 5;
      assert.equal(two.radius, 5);
      assert(core.saveJson(shared, { indent: 2 }).includes("\n"));
      assert.throws(() => core.saveJson(() => 1), TypeError);
      assert.throws(() => core.loadJson(text.replaceAll("test.Circle", "test.Nothing")), PortcallError);
      assert.throws(() => core.loadJson("{"), PortcallError);
    });

    test("that are lists, dicts and shapes have items", () => {
      const list: CoreList = module.get("list")();
      assert(list instanceof CoreList);
      const again: CoreList = core.getGlobalFunc("testing.echo")(list);
      list.push("three", [4]);
      list.set(0, 10);
      list.splice(1, 1);
      assert.deepEqual([...again], [10, "three", [4]]);
      assert.deepEqual([again.length, again.at(-1), String(list)], [3, [4], 'ffi.List([10, "three", [4]])']);
      assert.throws(() => list.at(3), RangeError);
      assert.throws(() => list.set(3, 1), Error);
      const dict = core.dict([["a", 1]]);
      assert(dict instanceof CoreDict);
      dict.set("b", list).set("a", 2);
      assert.deepEqual([dict.size, dict.get("a"), dict.has("c"), dict.get("c")], [2, 2, false, undefined]);
      assert.deepEqual([dict.delete("a"), dict.delete("a"), [...dict.get("b")]], [true, false, [10, "three", [4]]]);
      const circle = new (core.objectClass("test.Circle"))({ name: "c", radius: 1, tags: core.list([1]) });
      circle.tags.push(2);
      assert.deepEqual([...circle.tags], [1, 2]);
      const saved = core.loadJson('{"portcall_json": 1, "nodes": [], "root": {"shape": [2, 3]}}');
      assert(saved instanceof CoreShape);
      assert.deepEqual([[...saved], String(saved)], [[2, 3], "ffi.Shape([2, 3])"]);
      list.dispose();
      assert.throws(() => core.getGlobalFunc("testing.echo")(list), TypeError);
    });
  });
}
