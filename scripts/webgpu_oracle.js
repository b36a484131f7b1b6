// Runs models with onnxruntime-node; webgpu_oracle.py starts it. A line of JSON in is a question, a line out its answer.
// Tensors lie in files: {"model", "provider", "level", "verbose", "inputs": {NAME: {"type", "dims", "file"}}, "folder"}.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const ort = require(require.resolve("onnxruntime-node", { paths: [process.argv[2]] }));

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int64: BigInt64Array, uint64: BigUint64Array,
  int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array,
  bool: Uint8Array,
};

function readTensor({ type, dims, file }) {
  const bytes = fs.readFileSync(file);
  if (type === "string") return new ort.Tensor(type, JSON.parse(bytes.toString("utf8")), dims);
  const whole = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length); // begins where an array may
  return new ort.Tensor(type, new ARRAYS[type](whole), dims);
}

function writeTensor(tensor, file) {
  const { type, dims, data } = tensor;
  if (type === "string") fs.writeFileSync(file, JSON.stringify(data));
  else fs.writeFileSync(file, Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  return { type, dims, file };
}

async function answer({ model, provider, level, verbose, inputs, folder }) {
  const session = await ort.InferenceSession.create(model, {
    executionProviders: [provider],
    graphOptimizationLevel: level,
    logSeverityLevel: verbose ? 0 : 3,
  });
  try {
    if (inputs === null) return {};
    const feeds = Object.fromEntries(Object.entries(inputs).map(([name, given]) => [name, readTensor(given)]));
    const results = Object.entries(await session.run(feeds));
    return { outputs: Object.fromEntries(results.map(
      ([name, tensor], index) => [name, writeTensor(tensor, path.join(folder, `output-${index}`))])) };
  } finally {
    await session.release();
  }
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const reply = await answer(JSON.parse(line)).catch((error) => ({ error: String(error.message ?? error) }));
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
})();
