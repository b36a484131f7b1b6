"""Decoders of language models with the operators, names and shapes of the builders of generative models."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, POSITIONS = 60, 64, 4, 2, 16, 96, 32
BLOCK = 32  # numbers that share a scale in quantised weights


class Decoder:
    """A decoder under construction; `build` makes the model.

    Args:
        layers: number of layers.
        rotary: `attention`: inside GroupQueryAttention; `operator`: in RotaryEmbedding, from `position_ids`.
        quantised: the projections are MatMulNBits, weights of 4 bits.
        packed: query, key and value come from one projection.
        opset: of ONNX's domain.
    """

    def __init__(self, layers=2, *, rotary="attention", quantised=False, packed=False, opset=14):
        self.layers, self.rotary, self.quantised, self.packed, self.opset = layers, rotary, quantised, packed, opset
        self.random = np.random.default_rng(layers)
        self.nodes, self.weights = [], []

    def build(self):
        """Return the model."""
        self.mask()
        self.add("Gather", [self.weight("embed", VOCABULARY, HIDDEN, scale=1.0), "input_ids"], "hidden")
        table = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(HEAD // 2) / (HEAD // 2))
        self.constant("cos_cache", np.cos(table).astype(np.float32))
        self.constant("sin_cache", np.sin(table).astype(np.float32))
        norm = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
        self.add("SimplifiedLayerNormalization", ["hidden", self.scale("norm")], "normed.0", **norm)
        residual, normed = "hidden", "normed.0"
        for layer in range(self.layers):
            attended = self.attention(f"layers.{layer}", layer, normed)
            residual, normed = self.skip(f"layers.{layer}.post", attended, residual)
            fed = self.feed_forward(f"layers.{layer}.mlp", normed)
            residual, normed = self.skip(f"layers.{layer}.next", fed, residual, last=layer == self.layers - 1)
        self.project(normed, "lm_head", HIDDEN, VOCABULARY, result="logits")
        return self.model()

    def mask(self):
        self.constant("one", np.array([1], np.int64))
        self.constant("index", np.array(1, np.int64))
        self.add("ReduceSum", ["attention_mask", "one"], "mask.sum")
        self.add("Sub", ["mask.sum", "one"], "mask.last")
        self.add("Cast", ["mask.last"], "seqlens_k", to=TensorProto.INT32)
        self.add("Shape", ["attention_mask"], "mask.shape")
        self.add("Gather", ["mask.shape", "index"], "mask.length", axis=0)
        self.add("Cast", ["mask.length"], "total_length", to=TensorProto.INT32)

    def attention(self, name, layer, normed):
        if self.packed:
            query, key, value = self.project(normed, f"{name}.qkv", HIDDEN, HIDDEN + 2 * KV_HEADS * HEAD), "", ""
        else:
            query = self.project(normed, f"{name}.q", HIDDEN, HIDDEN)
            key = self.project(normed, f"{name}.k", HIDDEN, KV_HEADS * HEAD)
            value = self.project(normed, f"{name}.v", HIDDEN, KV_HEADS * HEAD)
        caches, inside = ["cos_cache", "sin_cache"], self.rotary == "attention"
        if not inside:
            query, key = (
                self.add("RotaryEmbedding", [x, "position_ids", *caches], f"{x}.rotated", domain="com.microsoft")
                for x in (query, key)
            )
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        self.add(
            "GroupQueryAttention",
            [query, key, value, *past, "seqlens_k", "total_length", *(caches if inside else [])],
            f"{name}.attended",
            f"present.{layer}.key",
            f"present.{layer}.value",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=int(inside),
        )
        return self.project(f"{name}.attended", f"{name}.o", HIDDEN, HIDDEN)

    def feed_forward(self, name, normed):
        gate, up = (self.project(normed, f"{name}.{which}", HIDDEN, INNER) for which in ("gate", "up"))
        sigmoid = self.add("Sigmoid", [gate], f"{name}.sigmoid")
        silu = self.add("Mul", [gate, sigmoid], f"{name}.silu")
        return self.project(self.add("Mul", [silu, up], f"{name}.inner"), f"{name}.down", INNER, HIDDEN)

    def skip(self, name, value, residual, *, last=False):
        outputs = [f"{name}.normed"] if last else [f"{name}.normed", "", "", f"{name}.sum"]
        inputs = [residual, value, self.scale(f"{name}.norm")]
        self.add("SkipSimplifiedLayerNormalization", inputs, *outputs, domain="com.microsoft", epsilon=1e-5)
        return outputs[-1], outputs[0]

    def project(self, value, name, rows, columns, result=None):
        result = result or f"{name}.projected"
        if not self.quantised:
            return self.add("MatMul", [value, self.weight(name, rows, columns)], result)
        blocks = rows // BLOCK
        quanta = self.random.integers(0, 256, (columns, blocks, BLOCK // 2), np.uint8)
        scales = self.random.uniform(0.5, 1.5, (columns * blocks,)) / (5.0 * np.sqrt(rows))
        inputs = [value, self.constant(f"{name}.quanta", quanta)]
        inputs.append(self.constant(f"{name}.scales", scales.astype(np.float32)))
        sizes = {"K": rows, "N": columns, "bits": 4, "block_size": BLOCK}
        return self.add("MatMulNBits", inputs, result, domain="com.microsoft", **sizes)

    def add(self, op_type, inputs, *outputs, **attributes):
        self.nodes.append(helper.make_node(op_type, inputs, outputs, f"/{outputs[0]}/{op_type}", **attributes))
        return outputs[0]

    def weight(self, name, rows, columns, scale=None):
        values = self.random.normal(0.0, scale or rows**-0.5, (rows, columns))
        return self.constant(f"{name}.weight", values.astype(np.float32))

    def scale(self, name):
        return self.constant(f"{name}.weight", self.random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    def constant(self, name, values):
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def model(self):
        ints = ["input_ids", "attention_mask"] + ["position_ids"] * (self.rotary == "operator")
        lengths = {"attention_mask": "total_sequence_length"}
        inputs = [
            helper.make_tensor_value_info(n, TensorProto.INT64, ["batch_size", lengths.get(n, "sequence_length")])
            for n in ints
        ]
        outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", VOCABULARY])
        ]
        for layer in range(self.layers):
            for which in ("key", "value"):
                past = ["batch_size", KV_HEADS, "past_sequence_length", HEAD]
                name = f"past_key_values.{layer}.{which}"
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, past))
                present = ["batch_size", KV_HEADS, "total_sequence_length", HEAD]
                name = f"present.{layer}.{which}"
                outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, present))
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.weights)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def feeds(model, *, batch=1, length=3, past=4, seed=0):
    """Return inputs for a step of `length` tokens after `past` ones."""
    random = np.random.default_rng(seed)
    arrays = {
        "input_ids": random.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, past + length), np.int64),
    }
    for info in model.graph.input:
        if info.name == "position_ids":
            arrays[info.name] = np.tile(np.arange(past, past + length), (batch, 1))
        elif info.name.startswith("past"):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            arrays[info.name] = random.normal(0.0, 1.0, (batch, KV_HEADS, past, HEAD)).astype(np.float32).astype(dtype)
    return arrays
