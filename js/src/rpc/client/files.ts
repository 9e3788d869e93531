// SPDX-License-Identifier: Apache-2.0
// Files of a session: in pieces where the server is one of portcall, and whole where it is one of TVM.

import { checkBytes, checkCallback, checkText } from "../../check.js";
import { RemoteProtocolError } from "../../errors.js";
import type { Owner } from "./remote.js";

/** Called with the bytes that have arrived, and the bytes in all. */
export type Progress = (done: number, total: number) => void;

const PIECE = 1 << 20; // bytes
const ON_THE_WAY = 4; // pieces that are sent before the first is answered

export async function upload(owner: Owner, path: string, bytes: Uint8Array, onProgress?: Progress): Promise<void> {
  checkText(path, "path");
  checkBytes(bytes, "bytes");
  checkCallback(onProgress, "onProgress");
  const write = await owner.find("portcall.rpc.file_write");
  if (!write) {
    await (await owner.get("tvm.rpc.server.upload"))(path, bytes);
    return onProgress?.(bytes.length, bytes.length);
  }
  const answers: Promise<unknown>[] = [];
  let done = 0;
  try {
    for (let at = 0; at === 0 || at < bytes.length; at += PIECE) {
      const piece = bytes.subarray(at, at + PIECE);
      const answer = write(path, at, piece).then(() => {
        done += piece.length;
        onProgress?.(done, bytes.length);
      });
      answer.catch(() => {}); // it is waited for below
      answers.push(answer);
      if (answers.length >= ON_THE_WAY) await answers[answers.length - ON_THE_WAY];
    }
    await Promise.all(answers);
  } catch (error) {
    await Promise.allSettled(answers);
    // A part of a file is of no use.
    if (done && !owner.pipeline.closed) await (await owner.get("tvm.rpc.server.remove"))(path).catch(() => {});
    throw error;
  }
}

export async function download(owner: Owner, path: string, onProgress?: Progress): Promise<Uint8Array> {
  checkText(path, "path");
  checkCallback(onProgress, "onProgress");
  const read = await owner.find("portcall.rpc.file_read");
  if (!read) return (await owner.get("tvm.rpc.server.download"))(path);
  const size: number = await (await owner.get("portcall.rpc.file_size"))(path);
  const whole = new Uint8Array(size);
  const answers: Promise<number>[] = [];
  const fetch = async (at: number): Promise<number> => {
    const piece: Uint8Array = await read(path, at, Math.min(PIECE, size - at));
    if (piece.length > Math.min(PIECE, size - at)) {
      throw new RemoteProtocolError(`${owner.pipeline.peer} sent more of '${path}' than was asked for`);
    }
    whole.set(piece, at);
    return piece.length;
  };
  let done = 0;
  for (let at = 0; at < size; at += PIECE) {
    while (answers.length < ON_THE_WAY && at + answers.length * PIECE < size) {
      const answer = fetch(at + answers.length * PIECE);
      answer.catch(() => {}); // it is waited for below
      answers.push(answer);
    }
    const count = await answers.shift()!;
    done += count;
    onProgress?.(done, size);
    if (count < Math.min(PIECE, size - at)) break; // the file has become shorter
  }
  await Promise.allSettled(answers);
  return whole.subarray(0, done);
}
