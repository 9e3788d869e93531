// SPDX-License-Identifier: Apache-2.0
// Classes of the core's types, made from their descriptions (docs/ir.md): fields are properties, methods are methods. The
// core checks what is written. core/ir/objects.cc has the functions.

import { TypeIndex } from "../values.js";
import { CoreDict, CoreList, CoreShape } from "./containers.js";
import { CoreObject, type Keeper, type ObjectClass, type PackedFunc } from "./objects.js";
import { showObject } from "./show.js";

const HAS_DEFAULT = 1 << 1; // flags of fields and methods (core/include/portcall/c_api.h)
const STATIC = 1 << 2;
const HIDDEN = 1 << 6;

type FieldRow = [name: string, doc: string, flags: number, schema: string, get: PackedFunc, set: PackedFunc | null];
type MethodRow = [name: string, doc: string, flags: number, method: PackedFunc | null];
type TypeRow = [
  key: string,
  parent: number,
  doc: string,
  creatable: boolean,
  init: PackedFunc | null,
  fields: FieldRow[],
  methods: MethodRow[],
];

const CONTAINERS: Record<number, new (keeper: Keeper) => CoreObject> = {
  [TypeIndex.List]: CoreList,
  [TypeIndex.Dict]: CoreDict,
  [TypeIndex.Shape]: CoreShape,
};
const ROOT = CoreObject as unknown as ObjectClass;

/** The classes of one core, each made when it is first needed. */
export class Classes {
  readonly #keeper: Keeper;
  readonly #known = new Map<number, ObjectClass>([[TypeIndex.Object, ROOT]]);

  constructor(keeper: Keeper) {
    this.#keeper = keeper;
  }

  /** Return the class of a type.
   * @throws PortcallError There is no type of that key. */
  named(key: string): ObjectClass {
    return this.#of(this.#keeper.call("portcall.ir.TypeIndex", key));
  }

  /** Return what stands for an object of a type, which the caller connects with it. */
  stand(type: number, key: string): CoreObject {
    const Container = CONTAINERS[type];
    if (Container) return new Container(this.#keeper);
    const Class = type < TypeIndex.FirstDynamic ? ROOT : this.#of(type);
    return Reflect.construct(CoreObject, [this.#keeper, key], Class);
  }

  #of(type: number): ObjectClass {
    let found = this.#known.get(type);
    if (!found) {
      found = this.#make(type);
      this.#known.set(type, found);
    }
    return found;
  }

  #make(type: number): ObjectClass {
    const keeper = this.#keeper;
    const [key, parent, doc, creatable, init, fields, methods]: TypeRow = keeper.call("portcall.ir.DescribeType", type);
    const base = parent < 0 ? ROOT : this.#of(parent);
    const create = (values = {}) => {
      if (!creatable) throw new TypeError(`objects of ${key} cannot be made from their fields`);
      return keeper.call("portcall.ir.CreateObject", type, new Map(Object.entries(values)));
    };
    const made = derive(base, key, init ?? create);
    const own = fields.map(([name, text, flags, schema, , set]) => ({
      name,
      property: propertyOf(name),
      doc: text,
      type: typeOf(schema),
      writable: set !== null,
      hasDefault: Boolean(flags & HAS_DEFAULT),
      hidden: Boolean(flags & HIDDEN),
    }));
    define(made, { typeKey: key, doc, creatable, fields: [...(base.fields ?? []), ...own] });
    define(made.prototype, {
      toString(this: CoreObject) {
        return showObject(this);
      },
    });
    for (const field of fields) addField(made, key, field);
    for (const [name, , flags, method] of methods) if (method) addMethod(made, name, flags, method);
    return made;
  }
}

/** A class below another, whose constructor gives what stands for a new object of the core. */
function derive(base: ObjectClass, key: string, make: (...args: any[]) => object): ObjectClass {
  const name = key.slice(key.lastIndexOf(".") + 1);
  const made = function (...args: unknown[]): object {
    if (!new.target) throw new TypeError(`${name} is a class: write new ${name}(…)`);
    return Object.setPrototypeOf(make(...args), new.target.prototype);
  } as unknown as ObjectClass;
  Object.setPrototypeOf(made, base);
  define(made, { prototype: Object.create(base.prototype) });
  define(made, { name });
  define(made.prototype, { constructor: made });
  return made;
}

function define(target: object, properties: Record<string, unknown>): void {
  for (const [key, value] of Object.entries(properties)) Object.defineProperty(target, key, { value, writable: true });
}

function addField(made: ObjectClass, key: string, [name, , , , get, set]: FieldRow): void {
  Object.defineProperty(made.prototype, propertyOf(name), {
    get(this: CoreObject) {
      return get(this);
    },
    set(this: CoreObject, value: unknown) {
      if (!set) throw new TypeError(`${key}.${name} does not change`);
      set(this, value);
    },
    enumerable: true,
    configurable: true,
  });
}

function addMethod(made: ObjectClass, name: string, flags: number, method: PackedFunc): void {
  if (flags & STATIC) return define(made, { [name]: (...args: unknown[]) => method(...args) });
  define(made.prototype, {
    [propertyOf(name)](this: CoreObject, ...args: unknown[]) {
      return method(this, ...args);
    },
  });
}

function propertyOf(name: string): string {
  return name in CoreObject.prototype || name === "typeKey" ? `${name}_` : name;
}

/** What the description of a field says of its type. */
function typeOf(schema: string): string {
  try {
    const { type, type_schema: inner } = JSON.parse(schema);
    return type ?? JSON.parse(inner).type;
  } catch {
    return "Any";
  }
}
