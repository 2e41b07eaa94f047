#!/usr/bin/env python3
"""Records what Hugging Face's tokenizers do: tests/golden/data_tokenizer.py writes data_tokenizer.safetensors.

This script needs numpy and tokenizers. For each rule that splits words it has NAME/file (a tokenizer.json, trained on the
documentation), NAME/ids and NAME/lengths (of the strings, one after the other), and NAME/decoded (of the ids without the
special tokens). The strings are the same for all: text and text/lengths."""
import glob
import json
import pathlib
import random
import struct

import numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


RULES = {
    "gpt2": byte_level(),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
    "llama3": split(LLAMA3),
    "qwen2": split(QWEN2),
}
SPECIAL = ["<|begin|>", "<|end|>", "<|end|>x"]
TEXT = "".join(sorted(pathlib.Path(p).read_text() for p in glob.glob(str(HERE / "../../docs/tutorials/*.md"))))[:200000]


def trained(name):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer = RULES[name]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if name == "smollm":  # some bytes have no token
        alphabet = [c for c in alphabet if c not in "ĄĆĊÙ"] + ["Ċ"]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    if name == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
        # A token that no merge produces: only ignore_merges finds it. The last one is an added token that is text.
        data = json.loads(tokenizer.to_str())
        data["model"]["vocab"]["zqj"] = len(data["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(data))
        tokenizer.add_tokens([AddedToken("<text>", special=False, normalized=False)])
    return tokenizer


PIECES = [" ", "  ", "\n", "\r\n", "\n\n ", "\t", "'s", "'S", "'ll", "'LL", "'ſ", "don't", "12", "3456", "٣", "½", "Ⅻ", ".",
          "!!\n", "_", "é", "é", " ", " ", "᠎", "\x85", "​", "\x1c", "😀", "日本", "а", "ſ",
          "K", "zqj", "tensor", "<text>", "<|end|>", "<|end|>x", "<|begin|>", "<|en", "\0", "\x04", "\x06"]
RANGES = [(0x20, 0x7E), (0x09, 0x0D), (0x80, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0xD7F), (0x2000, 0x206F),
          (0x2070, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1F6FF),
          (0x10FF00, 0x10FFFF)]


def strings():
    rng = random.Random(1)
    yield from ["", " ", "   ", "a", "\n", "Hello, world", "a" * 200, " " * 100 + "x", "ab" * 150, "0" * 90]
    # Letters and numbers of Unicode 15 and 16.
    yield from ["\U000105c0's \U00013460's\U0001e4d0's", "\U00011bf0's \U00016d70's\ua7da's", "\U000323af's!\U000323b0's"]
    for _ in range(60):
        at = rng.randrange(len(TEXT))
        yield TEXT[at:at + rng.randrange(1, 80)]
        yield "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 15)))
        yield "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randrange(1, 20)))


def write(path, tensors):
    header, data = {}, b""
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        dtype = {"uint8": "U8", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def bytes_of(text):
    return numpy.frombuffer(text.encode(), numpy.uint8)


def concatenated(name, lists, dtype, tensors):
    tensors[name] = numpy.concatenate([numpy.asarray(x, dtype) for x in lists])
    tensors[name + "/lengths"] = numpy.asarray([len(x) for x in lists], numpy.int32)


texts, tensors = list(strings()), {}
concatenated("text", [bytes_of(t) for t in texts], numpy.uint8, tensors)
for rule in RULES:
    tokenizer = trained(rule)
    tensors[rule + "/file"] = bytes_of(tokenizer.to_str())
    ids = [tokenizer.encode(t).ids for t in texts]
    concatenated(rule + "/ids", ids, numpy.int32, tensors)
    concatenated(rule + "/decoded", [bytes_of(tokenizer.decode(i, skip_special_tokens=True)) for i in ids], numpy.uint8,
                 tensors)
write(HERE / "data_tokenizer.safetensors", tensors)
