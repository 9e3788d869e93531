// SPDX-License-Identifier: Apache-2.0
// Tensors in the memory of JavaScript.

import { checkView } from "./check.js";
import { countOf, type DataType, dtype, dtypeOf, type TypedArray } from "./dtype.js";

/** A tensor over a typed array, which it shares. `data` shows float16 and bfloat16 as raw 16-bit numbers, and elements that
 * JavaScript does not have as bytes. */
export class Tensor<Data extends TypedArray = TypedArray> {
  readonly data: Data;
  readonly shape: readonly number[];
  readonly dtype: DataType;

  /** @throws RangeError The array has another size than shape and type. */
  constructor(data: Data, shape?: readonly number[], type: string | DataType = dtypeOf(data)) {
    checkView(data, "the data of a tensor");
    shape ??= [data.length];
    const size = dtype(type).bytesOf(countOf(shape));
    if (size !== data.byteLength) throw new RangeError(`the array has ${data.byteLength} bytes, the tensor ${size}`);
    this.data = data;
    this.shape = shape;
    this.dtype = dtype(type);
  }
}
