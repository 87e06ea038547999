"""A custom loop under MultiWorkerMirroredStrategy, as TensorFlow's guide shows it."""

import argparse
import json
import os
import time

import tensorflow as tf


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save_every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    print(f"ranks {strategy.num_replicas_in_sync}", flush=True)
    with strategy.scope():
        weight = tf.Variable(tf.zeros([8, 1]))
        done = tf.Variable(0, dtype=tf.int64)

    # All workers take part in a save, and only the chief's is kept.
    index = json.loads(os.environ["TF_CONFIG"]).get("task", {}).get("index", 0)
    own = arguments.output_dir if index == 0 else f"{arguments.output_dir}/worker-{index}"
    checkpoint = tf.train.Checkpoint(weight=weight, done=done)
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
    if newest := tf.train.latest_checkpoint(arguments.output_dir):
        checkpoint.restore(newest)
        print(f"restored {newest}", flush=True)

    @tf.function
    def step(inputs):
        def replica(inputs):
            with tf.GradientTape() as tape:
                error = inputs @ weight - tf.reduce_sum(inputs, 1, keepdims=True)
                loss = tf.reduce_mean(error * error)
            gradient = tape.gradient(loss, weight)
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.1 * context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient))
            return loss

        losses = strategy.run(replica, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    generator = tf.random.Generator.from_seed(0)
    for number in range(int(done.numpy()) + 1, arguments.steps + 1):
        loss = step(generator.normal([16, 8]))
        done.assign(number)
        time.sleep(arguments.pause)
        print(f"step {number}: loss {float(loss):.4f}", flush=True)
        if number % arguments.save_every == 0:
            manager.save()


if __name__ == "__main__":
    main()
