// SPDX-License-Identifier: Apache-2.0
// What both cores do alike: that in WebAssembly (js/test/wasm) and the native one (js/test/native).

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { CoreObject, CoreTensor, Float, FunctionNotFoundError, load, type Runtime, Tensor } from "../src/index.js";

/** Add the tests of a core. */
export function testCore(backend: "native" | "wasm"): void {
  let core: Runtime;
  before(async () => {
    core = await load({ backend });
    assert.equal(core.backend, backend);
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
}
