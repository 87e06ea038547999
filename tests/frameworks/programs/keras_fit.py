"""A digit classifier as Keras' guide shows it: `fit`, its bars, and BackupAndRestore."""

import argparse
import time
from pathlib import Path

import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.1)
    arguments = parser.parse_args()
    import keras

    class Pause(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(arguments.pause)

    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    images = generator.normal(size=(320, 28, 28, 1)).astype("float32")
    labels = generator.integers(0, 10, 320)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    Path("out").mkdir(exist_ok=True)
    model.fit(
        images,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        callbacks=[Pause(), keras.callbacks.BackupAndRestore("out/backup")],
    )
    model.save("out/model.keras")


if __name__ == "__main__":
    main()
