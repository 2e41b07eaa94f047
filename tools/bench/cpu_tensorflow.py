"""The models of cpu_models.py in TensorFlow (Keras), in f32 and with the policy mixed_bfloat16, for tools/bench_cpu.

usage: cpu_tensorflow.py --list | THREADS

With --list prints TensorFlow's version and the names of the works. Otherwise answers lines `NAME REPEATS` with times
(turns.h). Images are channels-last. A step is one tf.function.
"""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # the default depends on the processor

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

from turns import answer_turns, keep_to


def demo():
    return keras.Sequential([layers.Conv2D(16, 3), layers.Flatten(), layers.Dense(10, activation="softmax")])


def cnn():
    return keras.Sequential([layers.Conv2D(32, 5, activation="relu"), layers.MaxPool2D(),
                             layers.Conv2D(64, 5, activation="relu"), layers.MaxPool2D(), layers.Flatten(),
                             layers.Dense(512, activation="relu"), layers.Dense(10)])


def lstm():
    # Keras takes (batch, steps, width).
    return keras.Sequential([layers.LSTM(256), layers.Dense(10)])


def norm_relu(h, relu=True):
    h = layers.BatchNormalization()(h)
    return layers.ReLU()(h) if relu else h


def resnet18():
    x = keras.Input((64, 64, 3))
    h = norm_relu(layers.Conv2D(64, 7, 2, "same", use_bias=False)(x))
    h, width = layers.MaxPool2D(3, 2, "same")(h), 64
    for out in (64, 64, 128, 128, 256, 256, 512, 512):
        stride = 1 if out == width else 2
        y = norm_relu(layers.Conv2D(out, 3, stride, "same", use_bias=False)(h))
        y = norm_relu(layers.Conv2D(out, 3, 1, "same", use_bias=False)(y), relu=False)
        if stride == 2:
            h = norm_relu(layers.Conv2D(out, 1, 2, use_bias=False)(h), relu=False)
        h, width = layers.ReLU()(y + h), out
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling2D()(h)))


def depthwise():
    x = keras.Input((32, 32, 3))
    h = norm_relu(layers.Conv2D(32, 3, 1, "same", use_bias=False)(x))
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2)):
        h = norm_relu(layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(h))
        h = norm_relu(layers.Conv2D(out, 1, use_bias=False)(h))
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling2D()(h)))


def training_step(build, shape, bf16):
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if bf16 else "float32")
    model = build()
    x, target = tf.random.normal(shape), tf.random.uniform((shape[0],), 0, 10, tf.int64)
    model(x)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def update():
        with tf.GradientTape() as tape:
            logits = tf.cast(model(x, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return lambda: update().numpy()


SHAPES = {"demo": (demo, (64, 32, 32, 3)), "cnn": (cnn, (128, 28, 28, 1)), "lstm": (lstm, (32, 64, 256)),
          "resnet18": (resnet18, (32, 64, 64, 3)), "depthwise": (depthwise, (64, 32, 32, 3))}
WORKS = {name + suffix: lambda m=model, s=shape, low=bool(suffix): training_step(m, s, low)
         for name, (model, shape) in SHAPES.items() for suffix in ("", "_bf16")}

if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(tf.__version__, *WORKS)
    else:
        threads = int(sys.argv[1])
        keep_to(threads)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        answer_turns(WORKS)
